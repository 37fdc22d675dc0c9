"""Keeps a local copy of a folder in Cloud Storage while a training writes to it."""

from __future__ import annotations

import logging
import time
from typing import Dict, Optional, Sequence

from estimator_det.programs.cloud import storage
from estimator_det.programs.cloud.connection import THREADS, connect
from estimator_det.programs.cloud.paths import parse

INTERVAL_SECS = 30.0  # between two copies

_LOG = logging.getLogger(__name__)


def follow(
    sources: Sequence[str],
    folder: str,
    *,
    exclude: Sequence[str] = (),
    interval_secs: float = INTERVAL_SECS,
    timeout_secs: Optional[float] = None,
    threads: int = THREADS,
) -> None:
    """Downloads again and again what has changed, until it is interrupted or nothing new comes.

    The sources may be empty at first. Local files stay when the training deletes theirs.

    Args:
        sources: gs://bucket/name; these, `folder`, `exclude` and `threads` as for `download`.
        interval_secs: From the end of a copy to the next listing.
        timeout_secs: Ends after this time without anything new; None for never.
    """
    parsed = [parse(source) for source in sources]
    connection = connect(threads)
    generations: Dict[str, int] = {}  # generation of each local copy by path below the folder
    last_change = time.monotonic()
    while True:
        listed = storage.remote_files(connection, parsed, exclude, may_be_empty=True)
        new = {below: b for below, b in listed.items() if generations.get(below) != b.generation}
        if not generations and not listed:
            _LOG.info("%s: nothing there yet", ", ".join(sources))
        if new:
            last_change = time.monotonic()
            listed_generations = {below: blob.generation for below, blob in new.items()}
            copied, deleted = storage.fetch(connection, new, folder)
            if deleted:  # The next listing shows what became of them.
                _LOG.info("%s was deleted or replaced while it was copied", deleted[0])
            else:
                generations.update(listed_generations)
            _LOG.info(
                "%d files copied, %.1f MB; %d unchanged",
                *(copied.files, copied.size / 1e6, copied.same),
            )
        if timeout_secs is not None and time.monotonic() - last_change >= timeout_secs:
            _LOG.info("nothing new for %g s: done", timeout_secs)
            return
        time.sleep(interval_secs)

"""Keeps a local copy of a folder in Cloud Storage while a training writes to it."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import os
import shutil
import time
from typing import Any, Callable, Dict, Optional, Sequence

from estimator_det.cloud import checksums, storage
from estimator_det.cloud.connection import Connection, Options, connect
from estimator_det.cloud.downloads import PART, FileGone, Writer, read_range
from estimator_det.cloud.listing import RemoteFile
from estimator_det.cloud.paths import parse

INTERVAL_SECS = 30.0  # between two copies

# Files that only grow: their new end is enough, and a reader that has them open continues.
_GROWING = ("*tfevents*", "*.jsonl")

_LOG = logging.getLogger(__name__)


def follow(
    sources: Sequence[str],
    folder: str,
    *,
    exclude: Sequence[str] = (),
    interval_secs: float = INTERVAL_SECS,
    timeout_secs: Optional[float] = None,
    options: Optional[Options] = None,
    connection: Optional[Connection] = None,
    wait: Callable[[float], Any] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Downloads again and again what is new, until it is interrupted or nothing new comes.

    Local files stay when the training deletes theirs.

    Args:
        sources: gs://bucket/name; they may be empty at first.
        folder: Local.
        exclude: Patterns that are left out, as for `storage.download`.
        interval_secs: From the end of a copy to the next listing.
        timeout_secs: Ends after this time without anything new; None for never.
        options: How files are transferred.
        connection: One that exists already, in place of `options`.
        wait: Waits for so many seconds.
        clock: Seconds of a clock that never goes back.

    Raises:
        MissingError: if there is no such bucket.
        StorageError: without credentials or permission, or if the service keeps failing.
    """
    parsed = [parse(source) for source in sources]
    connection = connection or connect(options)
    known: Dict[str, int] = {}  # path below the folder -> generation that is here
    last_change = clock()
    while True:
        wanted = storage.remote_files(connection, parsed, exclude, may_be_empty=True)
        new = {name: one for name, one in wanted.items() if known.get(name) != one.generation}
        if not known and not wanted:
            _LOG.info("%s: nothing there yet", ", ".join(sources))
        if new:
            last_change = clock()
            _copy(connection, new, folder, known)
        if timeout_secs is not None and clock() - last_change >= timeout_secs:
            _LOG.info("nothing new for %g s: done", timeout_secs)
            return
        wait(interval_secs)


def _copy(
    connection: Connection, new: Dict[str, RemoteFile], folder: str, known: Dict[str, int]
) -> None:
    """Copies files and notes in `known` what is here now."""
    whole = {
        name: one
        for name, one in new.items()
        if not _is_growing(name) or not append_end(connection, one, os.path.join(folder, name))
    }
    done, gone = storage.fetch(connection, whole, folder)
    if gone:  # The next listing shows what became of them.
        _LOG.info("%s was deleted or replaced while it was copied", gone[0])
    else:
        known.update({name: one.generation for name, one in new.items()})
    appended = len(new) - len(whole)
    _LOG.info(
        "%d files copied, %.1f MB; %d appended to, %d were here",
        *(done.files, done.size / 1e6, appended, done.same),
    )


def append_end(connection: Connection, remote: RemoteFile, local: str) -> bool:
    """Appends what a file has more than its local copy, whose bytes are its beginning.

    Returns:
        False where the local file is no such copy; it is then unchanged.
    """
    if not os.path.isfile(local) or not 0 < os.path.getsize(local) < remote.size:
        return False
    sofar = checksums.of_file(local)
    end = f"{local}{PART}end"
    try:
        with open(end, "wb") as file:
            read_range(connection, remote, Writer(connection, file, sofar, lambda _: None))
        if sofar.text() != remote.crc32c:
            return False
        with open(end, "rb") as new, open(local, "ab") as file:
            shutil.copyfileobj(new, file)
    except FileGone:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):  # It may not even have been opened.
            os.remove(end)
    return True


def _is_growing(name: str) -> bool:
    base = name.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(base, pattern) for pattern in _GROWING)

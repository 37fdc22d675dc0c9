"""Copies of a run's event files in another folder, where a hosted TensorBoard reads them."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from typing import Dict, Iterator

from estimator_det.compat import tf, tf1

EVERY_SECS = 60.0  # between two copies

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def copied(model_dir: str, log_dir: str) -> Iterator[None]:
    """Context manager: copies event files of a run now and then, and once more at the end.

    A copy that fails is a warning, and the next one tries again. `log_dir` receives the files under
    the same paths. It may be inside of `model_dir`, as for jobs whose `baseOutputDirectory` is
    their model_dir.
    """
    sizes: Dict[str, int] = {}
    copy = functools.partial(_copy_grown, model_dir.rstrip("/"), log_dir.rstrip("/"), sizes)
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(EVERY_SECS):
            copy()

    thread = threading.Thread(target=work, name="event files", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        tf1.summary.FileWriterCache.clear()  # closes writers, whose last events are in memory
        copy()


def _copy_grown(model_dir: str, log_dir: str, sizes: Dict[str, int]) -> None:
    """Copies the event files that have grown; `sizes` are the copied bytes by path."""
    try:
        for folder, _, names in tf.io.gfile.walk(model_dir):
            if f"{folder.rstrip('/')}/".startswith(f"{log_dir}/"):
                continue  # the copies themselves
            for path in (os.path.join(folder, name) for name in names if "tfevents" in name):
                size = tf.io.gfile.stat(path).length
                if sizes.get(path) != size:
                    target = log_dir + path[len(model_dir) :]
                    tf.io.gfile.makedirs(os.path.dirname(target))
                    tf.io.gfile.copy(path, target, overwrite=True)
                    sizes[path] = size
    except Exception as error:  # any error: nothing else would copy from then on
        reason = getattr(error, "message", None) or repr(error)
        _LOG.warning(
            "event files could not be copied to %s: %s; check the rights of this job",
            *(log_dir, reason),
        )

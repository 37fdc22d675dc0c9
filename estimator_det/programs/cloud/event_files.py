"""Copies of a run's event files in another folder, where a hosted TensorBoard reads them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Dict, Iterator

from estimator_det.compat import tf, tf1

EVERY_SECS = 60.0
_EVENTS = "tfevents"

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def copied(model_dir: str, log_dir: str, *, every_secs: float = EVERY_SECS) -> Iterator[None]:
    """Context manager: copies event files of a run now and then, and once more at the end.

    A copy that fails is a warning, and the next one tries again. `log_dir` may be inside of
    `model_dir`, as for jobs whose `baseOutputDirectory` is their model_dir.

    Args:
        log_dir: Receives the files under the same paths.
        every_secs: Between two copies.
    """
    copy = _Copy(model_dir, log_dir)
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(every_secs):
            copy.update()

    thread = threading.Thread(target=work, name="event files", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        tf1.summary.FileWriterCache.clear()  # closes writers, whose last events are in memory
        copy.update()


class _Copy:
    """Event files of one folder in another one."""

    def __init__(self, model_dir: str, log_dir: str) -> None:
        self._model_dir, self._log_dir = model_dir.rstrip("/"), log_dir.rstrip("/")
        self._sizes: Dict[str, int] = {}  # path -> bytes that are copied

    def update(self) -> None:
        """Copies the files that have grown."""
        try:
            for folder, _, names in tf.io.gfile.walk(self._model_dir):
                if f"{folder.rstrip('/')}/".startswith(f"{self._log_dir}/"):
                    continue  # the copies themselves
                for name in names:
                    if _EVENTS in name:
                        self._copy(os.path.join(folder, name))
        except Exception as error:  # any error: nothing else would copy from then on
            reason = getattr(error, "message", None) or repr(error)
            _LOG.warning(
                "event files could not be copied to %s: %s; check the rights of this job",
                *(self._log_dir, reason),
            )

    def _copy(self, path: str) -> None:
        size = tf.io.gfile.stat(path).length
        if self._sizes.get(path) == size:
            return
        target = self._log_dir + path[len(self._model_dir) :]
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(path, target, overwrite=True)
        self._sizes[path] = size

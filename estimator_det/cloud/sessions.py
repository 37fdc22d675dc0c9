"""Addresses of upload sessions, saved until their uploads are complete.

Files of the user's cache folder (XDG_CACHE_HOME, or ~/.cache), readable by the user alone, since an
address authorizes whoever has it. The service ends a session after a week.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from typing import Optional

from estimator_det.cloud.connection import EMULATOR_VARIABLE
from estimator_det.cloud.paths import CloudPath

WEEK_SECS = 7 * 24 * 3600.0

_LOG = logging.getLogger(__name__)


def key(local: str, status: os.stat_result, target: CloudPath) -> str:
    """A name for the upload of this content of a file to this place."""
    parts = (
        os.path.abspath(local),
        status.st_size,
        status.st_mtime_ns,
        target,
        os.environ.get(EMULATOR_VARIABLE, ""),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def save(name: str, address: str) -> None:
    """Saves an address; warns if it cannot, for an interrupted upload then starts anew."""
    path = _path(name)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(address)
    except OSError as error:
        _LOG.warning(
            "%s: %s; if the upload is interrupted, it starts anew. XDG_CACHE_HOME names another "
            "folder",
            *(path, error.strerror),
        )


def find(name: str) -> Optional[str]:
    """The saved address; None if there is none, or if the service has ended it."""
    path = _path(name)
    try:
        if time.time() - os.stat(path).st_mtime > WEEK_SECS:
            os.remove(path)
            return None
        with open(path, encoding="ascii") as file:
            return file.read() or None
    except OSError:  # None is saved, or there is no such place: `save` warns of that.
        return None


def remove(name: str) -> None:
    """Drops a saved address, if there is one."""
    try:
        os.remove(_path(name))
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # as in `find`
        return


def _path(name: str) -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "estimator-det", "uploads", name)

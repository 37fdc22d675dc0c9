"""One trainer a folder: a lock that a second trainer is refused by.

The lock is the kernel's (`flock`) on model_dir/training.lock, so it goes with the process, however
that ends. What the file says, host, process and start time, is for people, and for file systems
without locks: there the lock of a process that is gone from the same host is taken over, and that
of another host is believed until its file is deleted. Network file systems that carry locks, as
NFS does, hold them between hosts. Object stores (gs://, s3://) have no locks: there nothing keeps
a second trainer away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from typing import Any, Dict, Iterator, Optional

from model_fn.failures import FolderInUseError

_LOG = logging.getLogger(__name__)

LOCK_FILE = "training.lock"
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[None]:
    """Holds the lock of a folder, which must exist.

    Raises:
        FolderInUseError: if another process holds it.
        OSError: if the lock file cannot be written.
    """
    if "://" in model_dir:
        _LOG.info("%s has no file locks: see to it that only one process trains there", model_dir)
        yield
        return
    path = os.path.join(model_dir, LOCK_FILE)
    handle = _acquire(path, model_dir)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # Somebody cleaned up the folder.
            os.unlink(path)
        os.close(handle)


def _acquire(path: str, model_dir: str) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _lock(handle):
                raise FolderInUseError(_refusal(path, model_dir, _read(handle)))
            # The file may have been deleted, by the holder's end, between opening and locking.
            if _is_still_there(path, handle):
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(_ourselves()).encode() + b"\n", 0)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        return _is_stale(_read(handle))
    return True


def _is_stale(holder: Optional[Dict[str, Any]]) -> bool:
    if holder is None:
        return True
    if holder["host"] != socket.gethostname():
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return holder["pid"] == os.getpid()


def _is_still_there(path: str, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _ourselves() -> Dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _read(handle: int) -> Optional[Dict[str, Any]]:
    """What the file says; None for one that is empty or was cut short."""
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        return {name: holder[name] for name in ("host", "pid", "started")}
    except (ValueError, KeyError, TypeError):
        return None


def _refusal(path: str, model_dir: str, holder: Optional[Dict[str, Any]]) -> str:
    who = "another process"
    if holder is not None:
        who = f"process {holder['pid']} on {holder['host']}, since {holder['started']},"
    return (
        f"{who} trains in {model_dir}. Two trainers would overwrite each other's checkpoints: "
        "stop that one first, or choose another model_dir. If it is sure that none runs, delete "
        f"{path}. Evaluation may run beside training: estimator-det evaluate"
    )

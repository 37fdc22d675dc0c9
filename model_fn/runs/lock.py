"""One trainer per folder: a lock that refuses a second one.

The lock is the kernel's (`flock`) on model_dir/training.lock, so it ends with the process, however
that ends. The file names host, process and start time, for people and for file systems without
locks: there the lock of an ended process of the same host is taken over, and that of another host
is valid until its file is deleted. Network file systems that carry locks, such as NFS, hold them
between hosts.

Object stores (gs://, s3://) have no locks, so there the file is a lease. Its holder rewrites it
every BEAT_SECS, with a count. A process that sees the same count for LEASE_SECS, by its own clock,
takes the lease over. A holder that was suspended for so long finds out before it writes a
checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import socket
import threading
import time
import uuid
from typing import Any, Callable, Dict, Iterator, Optional

from estimator_det.compat import tf
from estimator_det.config import files
from model_fn.checkpoints.errors import FolderInUseError

_LOG = logging.getLogger(__name__)

LOCK_FILE = "training.lock"
BEAT_SECS = 20.0
LEASE_SECS = 90.0
SETTLE_SECS = 2.0  # in which somebody who took the lease at the same report becomes visible
CERTAINLY_OVER_SECS = 3600.0  # no two clocks differ by that much
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[Callable[[], None]]:
    """Holds the lock of a folder, which must exist.

    Yields:
        A function that raises FolderInUseError if another process has taken the lock meanwhile, as
        can happen in remote storage.
    """
    path = os.path.join(model_dir, LOCK_FILE)
    if files.is_remote(model_dir):
        lease = _Lease(path, model_dir)
        try:
            lease.take()
            yield lease.check
        finally:
            lease.give_back()
        return
    handle = _acquire(path, model_dir)
    try:
        yield lambda: None
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
        except BaseException:  # Signals too: a handle that stays open would keep the lock.
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
    if holder is None or _is_gone(holder):
        return True
    return (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())


def _is_gone(holder: Dict[str, Any]) -> bool:
    """Whether the holder was a process of this host that has ended."""
    if holder["host"] != socket.gethostname():
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # Somebody else's, and there.
    return False


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
    return _parsed(os.pread(handle, 4096, 0))


def _parsed(text: bytes) -> Optional[Dict[str, Any]]:
    """What a lock file says; None for one that is empty or was cut short."""
    try:
        holder = json.loads(text)
    except ValueError:
        return None
    is_complete = isinstance(holder, dict) and {"host", "pid", "started"} <= set(holder)
    return holder if is_complete else None


def _refusal(path: str, model_dir: str, holder: Optional[Dict[str, Any]]) -> str:
    who = "another process"
    if holder is not None:
        who = f"process {holder['pid']} on {holder['host']}, since {holder['started']},"
    return (
        f"{who} trains in {model_dir}. Two trainers would overwrite each other's checkpoints: "
        "stop that one first, or choose another model_dir. If it is sure that none runs, delete "
        f"{path}. Evaluation may run beside training: estimator-det evaluate"
    )


class _Lease:
    """The lock of a folder in remote storage; see the module."""

    def __init__(self, path: str, model_dir: str) -> None:
        self._path, self._model_dir = path, model_dir
        self._said = {**_ourselves(), "lease": uuid.uuid4().hex, "beat": 0}
        self._written_at = -math.inf
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="training lock", daemon=True)

    def take(self) -> None:
        """Waits until it is clear whether somebody holds the lease, and holds it."""
        self._wait()
        self._write()
        time.sleep(SETTLE_SECS)
        self._check_holder()
        self._thread.start()

    def check(self) -> None:
        """Checks that this process holds the lease.

        A file that cannot be read is no reason to stop as long as nobody could take the lease over.
        """
        try:
            self._check_holder()
        except tf.errors.OpError as error:
            secs = time.monotonic() - self._written_at
            if secs >= LEASE_SECS:
                raise FolderInUseError(
                    f"{self._path} cannot be read, and was not renewed for {secs:.0f} s: "
                    f"{error.message}. Another process may train in {self._model_dir} by now, so "
                    "nothing is saved. Run the same command again when the storage answers"
                ) from error
            _LOG.warning("%s could not be read: %s", self._path, error.message)

    def _check_holder(self) -> None:
        holder = self._read()
        if holder is not None and holder.get("lease") != self._said["lease"]:
            raise FolderInUseError(_refusal(self._path, self._model_dir, holder))

    def give_back(self) -> None:
        """Ends the lease, if it is ours."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(tf.errors.OpError, FolderInUseError):
            self._check_holder()
            tf.io.gfile.remove(self._path)

    def _wait(self) -> None:
        first = self._read()
        if first is None or _is_gone(first) or self._is_long_over():
            return
        _LOG.warning(
            "Process %s on %s has not given back %s: waiting up to %g s to see whether it still "
            "trains",
            first["pid"],
            first["host"],
            self._path,
            LEASE_SECS,
        )
        end = time.monotonic() + LEASE_SECS
        while time.monotonic() < end:
            time.sleep(BEAT_SECS / 4)
            now = self._read()
            if now is None:
                return
            if now != first:
                raise FolderInUseError(_refusal(self._path, self._model_dir, now))

    def _is_long_over(self) -> bool:
        try:
            written = tf.io.gfile.stat(self._path).mtime_nsec / 1e9
        except tf.errors.NotFoundError:  # Given back a report ago.
            return True
        return 0 < written < time.time() - CERTAINLY_OVER_SECS  # Not every file system says when.

    def _read(self) -> Optional[Dict[str, Any]]:
        try:
            with tf.io.gfile.GFile(self._path, "rb") as file:
                return _parsed(file.read())
        except tf.errors.NotFoundError:
            return None

    def _write(self) -> None:
        started = time.monotonic()
        files.write_text(self._path, json.dumps(self._said) + "\n")
        self._written_at = started

    def _go_on(self) -> None:
        while not self._ended.wait(BEAT_SECS):
            self._said["beat"] += 1
            try:
                self._check_holder()
                self._write()
            except FolderInUseError as error:
                _LOG.error("%s", error)
                return  # Nothing more is saved here: see `check`.
            except tf.errors.OpError as error:
                _LOG.warning("%s could not be rewritten: %s", self._path, error.message)

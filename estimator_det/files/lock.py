"""One trainer per folder: model_dir/training.lock refuses a second one.

The file names host, process and start time of its holder. Where the file system has locks, the
kernel's lock on the file (`flock`) decides, which ends with the process, however that ends. Network
file systems that carry locks, such as NFS, hold them between hosts.

Elsewhere, as in object stores (gs://, s3://), the file is a lease. Its holder rewrites it every
BEAT_SECS, with a count. A process that sees the same count for LEASE_SECS, by its own clock, takes
the lease over. Process ids say nothing, because containers of one host name have their own. A
holder that was suspended for longer notices it before it writes a checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from typing import Any, Callable, Dict, Iterator, Optional

from estimator_det.compat import tf
from estimator_det.errors import FolderInUseError
from estimator_det.files import atomic

_LOG = logging.getLogger(__name__)

LOCK_FILE = "training.lock"
BEAT_SECS = 20.0
LEASE_SECS = 90.0  # four beats, and some time for slow storage
SETTLE_SECS = 2.0  # in which a process that took the lease at the same moment becomes visible
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[Callable[[], None]]:
    """Holds the lock of a folder, which must exist.

    Yields:
        A function that raises FolderInUseError if another process has taken the lock meanwhile:
        a lease, or the lock of a new folder, after this one was moved away or its file deleted.
    """
    path = os.path.join(model_dir, LOCK_FILE)
    handle = None if atomic.is_remote(model_dir) else _lock(path)
    if handle is None:
        lease = _Lease(path)
        try:
            lease.take()
            yield lease.check
        finally:
            lease.release()
        return
    try:
        yield lambda: _check_same(path, handle)
    finally:
        with contextlib.suppress(FileNotFoundError, FolderInUseError):
            _check_same(path, handle)
            os.unlink(path)
        os.close(handle)


def is_held(model_dir: str) -> bool:
    """True while a process trains in a folder, and after one was killed there."""
    return bool(tf.io.gfile.exists(os.path.join(model_dir, LOCK_FILE)))


def _lock(path: str) -> Optional[int]:
    """Descriptor of the locked file; None if the file system has no locks."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have deleted the file, at its end, between opening and locking.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(handle)):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, json.dumps(_owner()).encode() + b"\n", 0)
                    return handle
        except BlockingIOError:
            holder = _parsed(os.pread(handle, 4096, 0))
            os.close(handle)
            raise _refusal(path, holder) from None
        except BaseException as error:  # Signals too: a handle that stays open would keep the lock.
            os.close(handle)
            if isinstance(error, OSError) and error.errno in _NO_LOCKS_HERE:
                return None
            raise
        os.close(handle)


def _check_same(path: str, handle: int) -> None:
    """Checks that the lock file is still the one that this process holds, or gone."""
    with contextlib.suppress(FileNotFoundError):  # Somebody cleaned up the folder.
        if not os.path.samestat(os.stat(path), os.fstat(handle)):
            with open(path, "rb") as file:
                raise _refusal(path, _parsed(file.read()))


def _owner() -> Dict[str, Any]:
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started}


def _parsed(text: bytes) -> Optional[Dict[str, Any]]:
    """Content of a lock file; None if it is empty or was cut short."""
    try:
        holder = json.loads(text)
    except ValueError:
        return None
    is_complete = isinstance(holder, dict) and {"host", "pid", "started"} <= set(holder)
    return holder if is_complete else None


def _refusal(path: str, holder: Optional[Dict[str, Any]]) -> FolderInUseError:
    name = "another process"
    if holder is not None:
        name = f"process {holder['pid']} on {holder['host']}, since {holder['started']},"
    return FolderInUseError(
        f"{name} trains in {os.path.dirname(path)}. Two trainers would overwrite each other's "
        "checkpoints: stop that one first, or choose another model_dir. If it is sure that none "
        f"runs, delete {path}. Evaluation may run beside training: estimator-det evaluate"
    )


class _Lease:
    """Lock of a folder whose file system has no locks; see the module."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._record = {**_owner(), "lease": uuid.uuid4().hex, "beat": 0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="training lock", daemon=True)

    def take(self) -> None:
        """Waits until nobody else holds the lease, and takes it."""
        self._wait()
        self._write()
        # Object stores have no exclusive creation: the last writer wins, and must see that it has.
        time.sleep(SETTLE_SECS)
        self._check_holder()
        self._thread.start()

    def check(self) -> None:
        """Checks that no other process has taken the lease over."""
        try:
            self._check_holder()
        except tf.errors.OpError as error:
            # If the storage does not answer for long, nothing can be saved either.
            _LOG.warning("%s could not be read: %s", self._path, error.message)

    def release(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(tf.errors.OpError, FolderInUseError):
            self._check_holder()
            tf.io.gfile.remove(self._path)

    def _check_holder(self) -> None:
        holder = self._read()
        if holder is not None and holder.get("lease") != self._record["lease"]:
            raise _refusal(self._path, holder)

    def _wait(self) -> None:
        holder = self._read()
        if holder is None:
            return
        text = "%s is held by process %s on %s: waiting up to %g s to see whether it still trains"
        _LOG.warning(text, self._path, holder["pid"], holder["host"], LEASE_SECS)
        end = time.monotonic() + LEASE_SECS
        while time.monotonic() < end:
            time.sleep(BEAT_SECS / 4)
            latest = self._read()
            if latest is None:
                return
            if latest != holder:
                raise _refusal(self._path, latest)

    def _read(self) -> Optional[Dict[str, Any]]:
        try:
            with tf.io.gfile.GFile(self._path, "rb") as file:
                return _parsed(file.read())
        except tf.errors.NotFoundError:
            return None

    def _write(self) -> None:
        atomic.write(self._path, json.dumps(self._record) + "\n")

    def _renew(self) -> None:
        while not self._ended.wait(BEAT_SECS):
            self._record["beat"] += 1
            try:
                self._check_holder()
                self._write()
            except FolderInUseError as error:
                _LOG.error("%s", error)
                return  # Nothing more is saved here: see `check`.
            except tf.errors.OpError as error:
                _LOG.warning("%s could not be rewritten: %s", self._path, error.message)

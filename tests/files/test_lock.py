from __future__ import annotations

import errno
import json
import os
import pathlib
import socket
import threading
import time
from typing import Any

import pytest

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import FolderInUseError
from estimator_det.files import lock
from inputs import pipeline as input_pipeline
from model_fn.runs import runner
from tests.model_fn import fake


def _hold(path: pathlib.Path, pid: int, host: str) -> None:
    holder = {"host": host, "pid": pid, "started": "yesterday"}
    (path / lock.LOCK_FILE).write_text(json.dumps(holder))


def test_a_file_system_without_locks_has_a_lease(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    monkeypatch.setattr(lock, "BEAT_SECS", 0.1)
    monkeypatch.setattr(lock, "SETTLE_SECS", 0.0)
    (tmp_path / lock.LOCK_FILE).write_text('{"host": "cut sho')
    with lock.locked(str(tmp_path)) as check:
        check()
        refused = pytest.raises(FolderInUseError, match=f"process {os.getpid()} on")
        with refused, lock.locked(str(tmp_path)):
            pass
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(lock, "LEASE_SECS", 0.5)
    _hold(tmp_path, 17, socket.gethostname())
    started = time.monotonic()
    with lock.locked(str(tmp_path)):
        assert time.monotonic() - started >= 0.5


@pytest.fixture
def remote(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in TensorFlow's memory file system, where a lease is renewed often."""
    monkeypatch.setattr(lock, "BEAT_SECS", 0.1)
    monkeypatch.setattr(lock, "SETTLE_SECS", 0.0)
    folder = f"ram://{tmp_path.name}"
    tf.io.gfile.makedirs(folder)
    return folder


def _write(folder: str, **holder: object) -> None:
    said = {"host": "h", "pid": 1, "started": "then", "beat": 0, **holder}
    files.write_text(f"{folder}/{lock.LOCK_FILE}", json.dumps(said))


def test_one_lease_at_a_time(remote, caplog):
    with lock.locked(remote) as check:
        refused = pytest.raises(FolderInUseError, match=f"process {os.getpid()} on")
        with refused, lock.locked(remote):
            pass
        assert "waiting up to 90 s to see whether it still trains" in caplog.text
        check()
    assert tf.io.gfile.listdir(remote) == []


def test_a_lease_that_was_taken_over(remote, monkeypatch, caplog):
    monkeypatch.setattr(lock, "BEAT_SECS", 2.0)  # Nothing is renewed before it is taken over.
    with lock.locked(remote) as check:
        _write(remote, lease="another")
        with pytest.raises(FolderInUseError, match="process 1 on h, since then, trains in"):
            check()
        (thread,) = [each for each in threading.enumerate() if each.name == "training lock"]
        thread.join(60)  # The holder's thread tells it, too, and ends.
        assert "process 1 on h, since then, trains in" in caplog.text
    with tf.io.gfile.GFile(f"{remote}/{lock.LOCK_FILE}") as file:
        assert json.loads(file.read())["lease"] == "another"


def test_two_that_come_at_once(remote, monkeypatch):
    monkeypatch.setattr(lock, "SETTLE_SECS", 0.01)
    monkeypatch.setattr(lock.time, "sleep", lambda _: _write(remote, lease="another"))
    with pytest.raises(FolderInUseError), lock.locked(remote):
        pass


def test_nothing_is_saved_without_the_lease(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECS", 60.0)

    def input_fn(*_: Any, **__: Any) -> Any:
        _write(remote, lease="another")  # As if this process had been asleep for long.
        return fake.train_input_fn()

    fake.install(monkeypatch)
    monkeypatch.setattr(input_pipeline, "build_train_input_fn", lambda *_, **__: input_fn)
    with pytest.raises(FolderInUseError):
        runner.train(fake.pipeline_config(), remote, num_train_steps=2, progress=False)
    assert not tf.io.gfile.glob(f"{remote}/model.ckpt*")


def test_a_lease_that_cannot_be_read_for_now(remote, monkeypatch, caplog):
    monkeypatch.setattr(lock, "BEAT_SECS", 60.0)

    def unavailable(*_: Any, **__: Any) -> Any:
        raise tf.errors.UnavailableError(None, None, "HTTP 503")

    with lock.locked(remote) as check, monkeypatch.context() as patch:
        patch.setattr(tf.io.gfile, "GFile", unavailable)
        check()
        assert f"{remote}/{lock.LOCK_FILE} could not be read: HTTP 503" in caplog.text


def test_a_file_that_is_deleted_before_it_is_locked_is_no_lock(tmp_path, monkeypatch):
    """The holder before deletes it at its end, when this process has opened it already."""
    flock, num_deleted = lock.fcntl.flock, 0

    def flock_late(handle: int, operation: int) -> None:
        nonlocal num_deleted
        if not num_deleted:
            num_deleted += 1
            (tmp_path / lock.LOCK_FILE).unlink()
        flock(handle, operation)

    monkeypatch.setattr(lock.fcntl, "flock", flock_late)
    with lock.locked(str(tmp_path)) as check:
        assert num_deleted and str(os.getpid()) in (tmp_path / lock.LOCK_FILE).read_text()
        with pytest.raises(FolderInUseError), lock.locked(str(tmp_path)):
            pass
        (tmp_path / lock.LOCK_FILE).unlink()
        check()
        _hold(tmp_path, 17, "h")  # A training that began after the folder was moved away.
        with pytest.raises(FolderInUseError, match="process 17 on h"):
            check()
    assert (tmp_path / lock.LOCK_FILE).exists()

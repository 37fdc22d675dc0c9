from __future__ import annotations

import errno
import json
import logging
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from model_fn import run_lock
from model_fn.failures import FolderInUseError


def _hold(path: pathlib.Path, pid: int, host: str) -> None:
    holder = {"host": host, "pid": pid, "started": "yesterday"}
    (path / run_lock.LOCK_FILE).write_text(json.dumps(holder))


def _gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_at_a_time(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path)
    with run_lock.locked(folder):
        said = json.loads((tmp_path / run_lock.LOCK_FILE).read_text())
        assert said["pid"] == os.getpid() and said["host"] == socket.gethostname()
        with pytest.raises(FolderInUseError) as caught, run_lock.locked(folder):
            pass
        assert f"process {os.getpid()} on {said['host']}" in str(caught.value)
        assert said["started"] in str(caught.value) and folder in str(caught.value)
    assert os.listdir(tmp_path) == []
    with run_lock.locked(folder):
        pass


def test_left_over_file_is_no_lock(tmp_path: pathlib.Path) -> None:
    # The kernel's lock went with its process; what the file says does not matter.
    _hold(tmp_path, os.getppid(), socket.gethostname())
    with run_lock.locked(str(tmp_path)):
        assert str(os.getpid()) in (tmp_path / run_lock.LOCK_FILE).read_text()


def test_without_locks_the_text_decides(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", no_locks)
    for pid, host in ((os.getppid(), socket.gethostname()), (_gone(), "another.host")):
        _hold(tmp_path, pid, host)
        refused = pytest.raises(FolderInUseError, match="since yesterday")
        with refused, run_lock.locked(str(tmp_path)):
            pass
    _hold(tmp_path, _gone(), socket.gethostname())
    with run_lock.locked(str(tmp_path)):
        pass
    (tmp_path / run_lock.LOCK_FILE).write_text('{"host": "cut sho')
    with run_lock.locked(str(tmp_path)):
        pass


def test_object_stores_have_none(caplog: pytest.LogCaptureFixture) -> None:
    level = caplog.at_level(logging.INFO, logger="model_fn.run_lock")
    with level, run_lock.locked("gs://bucket/run"):
        pass
    assert "gs://bucket/run has no file locks" in caplog.text

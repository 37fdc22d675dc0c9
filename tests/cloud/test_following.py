"""A local copy of a folder that a training writes to."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Dict, List
from unittest import mock

import pytest

from estimator_det.files import ownership
from estimator_det.programs.cloud import storage
from estimator_det.programs.cloud.connection import connect
from estimator_det.programs.cloud.paths import parse
from tests.cloud.emulator import Emulator

RUN = "gs://data/run"
MARKER = ownership.marker("sync")
EVENTS = "events.out.tfevents.1"


class _Training:
    """Writes to the bucket between two copies."""

    def __init__(self, emulator: Emulator, steps: List[Callable[[], Any]]) -> None:
        self._emulator, self._steps, self._now = emulator, steps, 0.0
        self.downloads: List[int] = []  # requests of each copy

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self.downloads.append(self._emulator.count("GET", "alt=media"))
        self._emulator.requests.clear()
        if self._steps:
            self._steps.pop(0)()

    def monotonic(self) -> float:
        return self._now


def _write(name: str, data: bytes) -> None:
    connect().blob(parse(f"{RUN}/{name}")).upload_from_string(data)


def _follow(training: _Training, folder: pathlib.Path) -> None:
    with mock.patch.object(storage, "time", training):
        assert storage.follow([RUN], str(folder), timeout_secs=60) == len(_found(folder))


def _found(folder: pathlib.Path) -> Dict[str, bytes]:
    assert (folder / MARKER).exists()
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MARKER}


def test_new_files_come_and_old_ones_stay(emulator, tmp_path, caplog):
    caplog.set_level("INFO")

    def save(step: int) -> None:
        _write(f"model.ckpt-{step}.index", b"%d" % step)
        _write("checkpoint", b"%d" % step)
        _write("training.lock", b"lease")

    def next_checkpoint() -> None:
        save(2)
        emulator.storage.delete_file("data", "run/model.ckpt-1.index")

    training = _Training(emulator, [lambda: save(1), next_checkpoint])
    _follow(training, tmp_path / "l")
    assert _found(tmp_path / "l") == {
        "checkpoint": b"2",
        "model.ckpt-1.index": b"1",
        "model.ckpt-2.index": b"2",
    }
    assert training.downloads == [0, 2, 2, 0]  # what is here is not asked for again
    assert training.monotonic() == 120.0
    assert "nothing there yet" in caplog.text and "nothing new for 60 s: done" in caplog.text


@pytest.mark.parametrize("content", [b"x" * 1000 + b"y" * 500, b"short", b"x" * 1000])
def test_files_that_change_come_whole(emulator, tmp_path, content):
    _write(EVENTS, b"x" * 1000)
    training = _Training(emulator, [lambda: _write(EVENTS, content)])
    _follow(training, tmp_path / "l")
    assert _found(tmp_path / "l") == {EVENTS: content}


def test_a_file_that_vanishes_is_listed_again(emulator, tmp_path, caplog):
    caplog.set_level("INFO")
    _write("model.ckpt-1.data", b"1")
    _write("checkpoint", b"1")

    def vanish(handler: Any) -> bool:
        emulator.storage.delete_file("data", "run/model.ckpt-1.data")
        return False

    emulator.fail("GET", "alt=media", vanish)
    training = _Training(emulator, [lambda: None, lambda: _write("checkpoint", b"2")])
    _follow(training, tmp_path / "l")
    assert _found(tmp_path / "l") == {"checkpoint": b"2"}
    assert "0 files copied, 0.0 MB" in caplog.text
    assert training.downloads[0] == 1  # no checkpoint file without its checkpoint

"""Positions of the workers of a cluster, whose chief saves without asking them."""

from __future__ import annotations

import json
import pathlib
from typing import Any, List, Optional

import pytest

from estimator_det.files import json_lines
from inputs.records.cursor import CursorState, StreamOffset
from inputs.records.sharding import WorkerParts
from model_fn.checkpoints import find, positions
from model_fn.events import PROGRESS_FILE
from model_fn.runs import data_cursor
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.context import StepResult
from model_fn.runs.data_cursor import report_split

FILE = data_cursor.worker_file(Task("worker", 0))


class _Cursor:
    state: Optional[CursorState] = None


class Worker:
    """Takes steps of a cluster; a batch has two records."""

    def __init__(self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.count = folder, 0
        self.cursor: Any = _Cursor()
        self.newest: Optional[int] = None
        monkeypatch.setattr(data_cursor, "newest_step", lambda _: self.newest)
        monkeypatch.setattr(data_cursor, "_LOOK_SECS", 0)
        self.hook = data_cursor.WorkerPositionHook(str(folder), self.cursor, FILE)

    def take(self, step: int) -> None:
        self.count += 2
        self.cursor.state = CursorState(3, self.count, {0: StreamOffset(0, self.count)}, "order")
        self.hook.after_step(StepResult(step, 1, {}))

    def saved(self, step: int) -> None:
        """The chief saves."""
        self.newest = step
        (self.folder / f"model.ckpt-{step}.index").write_text("")


def _read(folder: pathlib.Path, step: int) -> Optional[int]:
    state = positions.read(str(folder / FILE), step, is_exact=False)
    return None if state is None else state.count


def test_the_position_of_a_checkpoint(tmp_path, monkeypatch, caplog):
    worker = Worker(tmp_path, monkeypatch)
    for step in (2, 5, 8):
        worker.take(step)
    worker.saved(6)
    worker.take(11)  # notices the checkpoint three steps later
    assert _read(tmp_path, 6) == 4  # after the step 5
    worker.take(13)
    worker.saved(16)
    worker.take(18)
    assert (_read(tmp_path, 6), _read(tmp_path, 16)) == (4, 10)
    worker.saved(18)
    worker.take(21)
    worker.saved(24)
    worker.take(24)  # The chief saves in the very step of this worker.
    assert (_read(tmp_path, 18), _read(tmp_path, 24)) == (12, 16)
    for step in (18, 24):
        (tmp_path / f"model.ckpt-{step}.index").unlink()
    worker.saved(30)
    worker.take(31)
    assert not caplog.text
    assert _read(tmp_path, 20) == 10
    assert (
        "no entry for step 20: the records of this worker since step 16 come again" in caplog.text
    )


def test_a_worker_that_ends_before_the_last_checkpoint(tmp_path, monkeypatch, caplog):
    worker = Worker(tmp_path, monkeypatch)
    assert _read(tmp_path, 2) is None
    assert f"{tmp_path / FILE} has no entry up to step 2" in caplog.text
    caplog.clear()
    worker.take(3)
    worker.hook.end(3)
    assert _read(tmp_path, 7) == 2 and not caplog.text  # took no step after it
    assert json.loads((tmp_path / FILE).read_text())["3"]["is_last"] is True
    assert _read(tmp_path, 2) is None
    assert "no entry up to step 2: the data of this worker begin with a new epoch" in caplog.text


@pytest.mark.parametrize(
    "content", ['{"4": {}}', '{"4": []}', '{"4": {"streams": {"0": 3}}}', "[]", "3", "", "\0"]
)
def test_entries_of_another_kind(tmp_path, caplog, content):
    (tmp_path / FILE).write_text(content)
    (tmp_path / positions.POSITION_FILE).write_text(content)
    assert _read(tmp_path, 4) is None
    assert positions.read(str(tmp_path / positions.POSITION_FILE), 4) is None
    for file, text in ((FILE, "data of this worker"), (positions.POSITION_FILE, "the data")):
        assert str(tmp_path / file) in caplog.text and f"{text} begin with a new" in caplog.text


def test_the_step_in_a_name(tmp_path):
    assert find.newest_step(str(tmp_path)) is None
    names: List[str] = ["model.ckpt-3", "model.ckpt-12"]
    for name in names:
        (tmp_path / f"{name}.index").write_text("")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-12"\n')
    assert find.newest_step(str(tmp_path)) == 12
    (tmp_path / "checkpoint").write_text("")
    assert find.newest_step(str(tmp_path)) is None


JOBS = {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}


def test_the_chief_writes_how_records_are_divided(tmp_path, caplog):
    caplog.set_level("INFO")
    split = WorkerParts(3, [["a", "b", "c"]])
    for kind in ("worker", "chief"):
        report_split(str(tmp_path), Cluster(JOBS, Task(kind, 0)), 7, split)
        assert (tmp_path / PROGRESS_FILE).exists() == (kind == "chief")
    assert "worker 0: worker 2 of 3 reads 1 of 3 files" in caplog.text
    (written,) = json_lines.read(str(tmp_path / PROGRESS_FILE), ("step", "time"))
    assert written["step"] == 7 and written["workers"] == ["chief 0", "worker 0", "worker 1"]
    assert written["streams"][0]["files_of_workers"] == [["a"], ["b"], ["c"]]

from __future__ import annotations

import itertools
import os
import pathlib
import types
from typing import Any, List

import pytest

from estimator_det.compat import tf1
from estimator_det.console.signals import StopSignals
from model_fn.checkpoints import repair
from model_fn.runs import saver as saving
from model_fn.runs import training_run
from model_fn.runs.options import CheckpointOptions, TrainOptions
from tests import checkpoints
from tests.model_fn import fake


@pytest.fixture(autouse=True)
def fake_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)


class Listener:
    """Notes its calls."""

    def __init__(self) -> None:
        self.steps: List[int] = []
        self.ended = False

    def begin(self, step: int) -> bool:
        self.steps.append(step)
        return False

    def wants_checkpoint(self, step: int) -> bool:
        return False

    def after_save(self, step: int) -> bool:
        self.steps.append(step)
        return False

    def end(self, step: int) -> None:
        self.ended = True


def _train(folder: pathlib.Path, max_steps: int, listener: Listener, **options: int) -> None:
    checkpoints = CheckpointOptions(**(options or {"steps": 2}))
    context = fake.run_context(folder, num_train_steps=max_steps, checkpoints=checkpoints)
    with StopSignals(context.stop) as signals:
        resumed = repair.prepare(str(folder))
        backend = fake.make_backend(context)

        def make_hooks(training: Any) -> Any:
            saver = saving.CheckpointSaver(
                context, training, signals, lambda: None, resumed, {}, listener
            )
            return [training_run._Start(signals), saver]

        backend.train(fake.train_input_fn, make_hooks)


def test_saves_each_step_once(tmp_path):
    first = Listener()
    _train(tmp_path, 5, first)
    assert first.steps == [0, 2, 4] and first.ended
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("model.ckpt-5.*")}
    second = Listener()
    _train(tmp_path, 7, second)
    # The listeners hear of the state that is resumed, which is not written again.
    assert second.steps == [5, 7]
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("model.ckpt-5.*")}
    assert after == before
    assert checkpoints.trained_steps(str(tmp_path)) == 7


def test_a_clock_that_is_set_back_delays_no_checkpoint(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(time=lambda: 0.0, monotonic=itertools.count().__next__)
    monkeypatch.setattr(saving, "time", clock)
    listener = Listener()
    _train(tmp_path, 2, listener, secs=1)
    assert listener.steps == [0, 1, 2]


def _listed(folder: pathlib.Path) -> List[str]:
    state = tf1.train.get_checkpoint_state(str(folder))
    return [path.rsplit("-", 1)[1] for path in state.all_model_checkpoint_paths]


def test_older_checkpoints_are_deleted(tmp_path):
    _train(tmp_path, 6, Listener(), steps=2, keep_max=2)
    assert _listed(tmp_path) == ["4", "6"]
    graphs = [tf1.GraphDef.FromString(event.graph_def) for event in fake.events(tmp_path)]
    assert any(
        node.name == "global_step" and "_output_shapes" in node.attr
        for graph in graphs
        for node in graph.node
    )
    kept = sorted(path.stem for path in tmp_path.glob("model.ckpt-*.index"))
    assert kept == ["model.ckpt-4", "model.ckpt-6"]
    assert len(list(tmp_path.glob("model.ckpt-*.meta"))) == 2
    # A resumed run deletes what the run before it left.
    _train(tmp_path, 8, Listener(), steps=2, keep_max=2)
    assert _listed(tmp_path) == ["6", "8"]
    assert len(list(tmp_path.glob("model.ckpt-*.index"))) == 2
    assert "/" not in (tmp_path / "checkpoint").read_text()  # The folder can be moved.
    _train(tmp_path, 12, Listener(), steps=2, keep_max=0)
    assert _listed(tmp_path) == ["6", "8", "10", "12"]


def test_options_are_checked():
    assert CheckpointOptions().secs == 600 and CheckpointOptions(steps=3).secs is None
    for kind, options, message in (
        (CheckpointOptions, {"steps": 1, "secs": 2}, "steps 1 and secs 2 exclude each other"),
        (CheckpointOptions, {"secs": -1}, "secs is -1; give 1 or more"),
        (CheckpointOptions, {"keep_max": -1}, "keep_max is -1; give 0"),
        (TrainOptions, {"num_train_steps": 0}, "num_train_steps is 0; give 1 or more"),
        (TrainOptions, {"progress_steps": 0}, "progress_steps is 0; give 1 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**options)


def test_files_reach_the_disk_before_they_are_named(tmp_path, monkeypatch):
    calls: List[str] = []
    named: List[bool] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        if name == tmp_path.name or name.startswith("model.ckpt-2."):
            calls.append(name)
            state = tmp_path / repair.STATE_FILE
            named.append(state.exists() and "ckpt-2" in state.read_text())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    _train(tmp_path, 2, Listener())
    data = "model.ckpt-2.data-00000-of-00001"
    assert calls[-4:] == [data, "model.ckpt-2.index", "model.ckpt-2.meta", tmp_path.name]
    assert not any(named)
    assert "ckpt-2" in (tmp_path / repair.STATE_FILE).read_text()


def test_nothing_is_synced_in_remote_storage(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("called"))
    repair.write_through("gs://bucket/model.ckpt-2")

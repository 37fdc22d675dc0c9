from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import time
from typing import Any, List
from unittest import mock

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.console.signals import Stopped
from estimator_det.errors import ConfigError, RunError
from model_fn.checkpoints import positions, repair
from model_fn.evaluation import history
from model_fn.events import PROGRESS_FILE
from model_fn.runs import runner, training_end
from model_fn.runs.backends import estimator
from model_fn.runs.options import CheckpointOptions, EvaluationOptions, LoopOptions
from tests import checkpoints
from tests.model_fn import fake

NO_EXPORT = EvaluationOptions(export_final=False)
PREFIX = "DetectionBoxes_Precision/mAP"


def test_train_evaluate_resume_stop(readers, tmp_path, capsys):
    model_dir = tmp_path / "model"
    config = fake.pipeline_config("train_config { optimizer { use_moving_average: true } }")
    best = EvaluationOptions(best_metric="loss")
    metrics = runner.train_and_evaluate(
        config, str(model_dir), seed=3, progress_steps=2, evaluation=best
    )
    assert readers == [("train", 3), ("", None)]
    assert metrics["global_step"] == 4 and PREFIX in metrics
    told = capsys.readouterr()
    assert "step 1/4 | localization" in told.err and "step 4/4" in told.err
    assert "evaluation '0' at step 4 | loss " in told.err and told.out == ""
    assert (model_dir / "pipeline.config").exists()
    assert "Detections_Left_Groundtruth_Right/0" in fake.figures(model_dir / "eval_0")
    assert "Loss/total_loss" in fake.figures(model_dir)
    for name in ("Servo", "best"):
        (exported,) = (model_dir / "export" / name).iterdir()
        loaded = tf.saved_model.load(str(exported)).signatures
        assert set(loaded) == {"serving_default", "tensorflow/serving/predict"}
        served = loaded["serving_default"]
        assert served(tf.constant(["x"]))["detection_boxes"].shape == (1, 1, 4)
        assert list((exported / "variables").iterdir()) == []  # constants
        assert (exported / "assets.extra" / "tf_serving_warmup_requests").exists()

    # The second run starts where the first ended, with its optimizer state.
    momentum = "BoxPredictor/All/weights/Momentum"
    before = tf1.train.load_checkpoint(str(model_dir)).get_tensor(momentum)
    runner.train_and_evaluate(
        config, str(model_dir), num_train_steps=6, progress_steps=1, evaluation=NO_EXPORT
    )
    told = capsys.readouterr()
    assert "step 5/6" in told.err and "step 4/6" not in told.err
    reader = tf1.train.load_checkpoint(str(model_dir))
    assert not np.array_equal(reader.get_tensor(momentum), before)
    assert reader.get_tensor("global_step") == 6

    # A third has nothing to do, unless the second was stopped before its last evaluation.
    assert runner.train_and_evaluate(config, str(model_dir), num_train_steps=6) == {}
    (model_dir / history.EVALUATIONS_FILE).unlink()
    (model_dir / PROGRESS_FILE).unlink()
    caught_up = runner.train_and_evaluate(config, str(model_dir), num_train_steps=6)
    assert caught_up["global_step"] == 6
    assert training_end.last_step(str(model_dir)) == 6
    assert checkpoints.trained_steps(str(model_dir)) == 6


def test_a_change_of_a_resumed_run_is_a_line(readers, tmp_path, caplog):
    config = fake.pipeline_config()
    fake.train(tmp_path, 1, config)
    fake.train(tmp_path, 2, config)
    assert "Resuming with a change" not in caplog.text
    config.train_config.gradient_clipping_by_norm = 0.5
    fake.train(tmp_path, 3, config)
    assert caplog.text.count("Resuming with a change") == 1
    assert "train_config.gradient_clipping_by_norm is 0.5; so far it was not set" in caplog.text


def test_the_position_in_the_data_is_kept(readers, tmp_path, caplog):
    def count(step: int) -> int:
        position = positions.read(str(tmp_path / positions.POSITION_FILE), step)
        return -1 if position is None else position.count

    with pytest.raises(Stopped):
        fake.train(tmp_path, 9, hooks=[fake.SignalAt(step=3)])
    assert (count(0), count(3), count(9)) == (0, 6, -1)
    fake.train(tmp_path, 5)
    assert (count(3), count(5)) == (6, 10)
    # Back to an older checkpoint, by hand.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"')
    os.remove(tmp_path / "model.ckpt-5.index")
    fake.train(tmp_path, 4)
    assert (count(4), count(5)) == (8, -1)
    # Without the file the data begin anew.
    path = tmp_path / positions.POSITION_FILE
    path.write_text("[1]")
    caplog.set_level("INFO")
    fake.train(tmp_path, 6, seed=3)
    assert "cannot be read" in caplog.text and "begin with a new epoch" in caplog.text
    assert count(6) == 4
    assert readers == [("train", None)] * 3 + [("train", 3)]


def _reported_steps(model_dir: pathlib.Path) -> List[int]:
    lines = (model_dir / PROGRESS_FILE).read_text().splitlines()
    entries = [entry for entry in map(json.loads, lines) if training_end.ENDED not in entry]
    assert all(entry["Loss/total_loss"] > 0 for entry in entries)
    return [entry["step"] for entry in entries]


def test_the_last_step_is_reported_once(readers, tmp_path, capsys):
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    runner.train(config, model_dir, num_train_steps=5, progress_steps=3)
    assert _reported_steps(tmp_path) == [1, 3, 5]
    assert capsys.readouterr().err.count("step 5/5 | localization") == 1
    with pytest.raises(Stopped):
        runner.train(config, model_dir, num_train_steps=99, hooks=[fake.SignalAt(step=3)])
    assert _reported_steps(tmp_path) == [1, 3, 5, 6, 8]
    assert capsys.readouterr().err.count("step 8/99 | localization") == 1
    runner.train_and_evaluate(config, model_dir, num_train_steps=10, evaluation=NO_EXPORT)
    assert _reported_steps(tmp_path) == [1, 3, 5, 6, 8, 9, 10]
    assert fake.steps_with(tmp_path, "run/images_per_second") == [3, 5, 8, 10]


@pytest.mark.parametrize("program", ["train", "train_and_evaluate"])
def test_a_refused_run_leaves_no_trace(readers, tmp_path, program):
    run: Any = getattr(runner, program)
    refused = fake.pipeline_config('train_config { freeze_variables: "." }')
    new = tmp_path / "new" / "model"
    with pytest.raises(ConfigError, match="freeze_variables"):
        run(refused, str(new))
    assert list(tmp_path.iterdir()) == []
    # What an earlier run left stays as it was.
    new.mkdir(parents=True)
    (new / "pipeline.config").write_text("of the run before")
    training_end.mark_over(str(new), 4, "num_train_steps")
    with pytest.raises(ConfigError, match="freeze_variables"):
        run(refused, str(new))
    assert (new / "pipeline.config").read_text() == "of the run before"
    assert training_end.last_step(str(new)) == 4 and len(list(new.iterdir())) == 2


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("eval_config { batch_size: 0 }", r"eval_config\.batch_size: is 0"),
        ("eval_input_reader {} eval_input_reader { name: '0' }", r"eval_input_reader\[2\]\.name"),
    ],
)
def test_a_configuration_of_a_script_is_checked_before_step_1(text, field, tmp_path):
    """Else what concerns evaluations would end a run that is trained already."""
    config = fake.pipeline_config(text)
    for run in (runner.train, runner.train_and_evaluate):
        with pytest.raises(ConfigError, match=field):
            run(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("program", ["train", "train_and_evaluate"])
def test_an_evaluator_ends_where_the_exception_of_a_signal_was_lost(tmp_path, monkeypatch, program):
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
    fake.set_cluster(monkeypatch, cluster, "evaluator")
    fake.install(monkeypatch)

    def evaluate(run: Any, *_: Any) -> Any:
        with contextlib.suppress(BaseException):  # as in a `__del__`
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        while not run.context.stop.is_requested:
            time.sleep(0.01)
        return []

    monkeypatch.setattr(runner, "evaluation_readers", lambda *_, **__: [])
    monkeypatch.setattr(runner, "follow", evaluate)
    with pytest.raises(Stopped):
        getattr(runner, program)(fake.pipeline_config(), str(tmp_path))
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    "loop", [None, pytest.param(LoopOptions("none"), marks=pytest.mark.exhaustive)]
)
def test_restoring_finds_damage_and_training_falls_back(
    readers, tmp_path, monkeypatch, caplog, loop
):
    options: Any = {"checkpoints": CheckpointOptions(steps=1), "loop": loop}
    fake.train(tmp_path, 2, **options)
    with monkeypatch.context() as patch:  # A whole checkpoint is read by restoring alone.
        patch.setattr(repair, "find_damage", None)
        fake.train(tmp_path, 3, **options)
    data = tmp_path / "model.ckpt-3.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-4])
    fake.train(tmp_path, 4, **options)
    assert "resuming at step 2 from model.ckpt-2, 1 step lost" in caplog.text
    assert checkpoints.trained_steps(tmp_path) == 4
    assert (tmp_path / repair.DAMAGED_FOLDER / data.name).exists()


def test_a_dispatcher_that_was_started_late_or_again(readers, tmp_path, monkeypatch, caplog):
    answers = mock.Mock(side_effect=[ConnectionRefusedError("refused"), mock.Mock()])
    monkeypatch.setattr(socket, "create_connection", answers)

    def train(*_: Any) -> None:
        raise tf.errors.NotFoundError(None, None, "Unknown iteration client id 3.")

    monkeypatch.setattr(estimator.HookAdapter, "train", train)
    with pytest.raises(RunError, match=r"id 3\. If the dispatcher at h:1 was started again"):
        fake.train(tmp_path, 2, data_service="h:1")
    assert "Waiting for the dispatcher of --tf_data_service at h:1: refused." in caplog.text

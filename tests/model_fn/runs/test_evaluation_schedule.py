"""Evaluations during training: which, when, and what follows from them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator, List

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.console.signals import Stopped
from estimator_det.files import json_lines
from model_fn.evaluation import best_checkpoints, history
from model_fn.runs import evaluator, training_end
from model_fn.runs.context import RunContext
from model_fn.runs.options import CheckpointOptions, EvaluationOptions, TrainOptions
from model_fn.serving import saved_model
from tests import checkpoints
from tests.model_fn import fake
from tests.model_fn.runs.test_runner import PREFIX


def test_several_readers_and_training_data(readers, tmp_path):
    config = fake.pipeline_config("eval_input_reader { name: 'second' }")
    evaluation = EvaluationOptions(sample_1_of_n=7, on_training_data=True, export_final=False)
    fake.train_and_evaluate(tmp_path, config=config, evaluation=evaluation)
    assert readers == [("train", None), ("", 7), ("second", 7), ("", 5)]
    folders = {path.name for path in tmp_path.glob("eval_*")}
    assert folders == {"eval_0", "eval_second", "eval_training_data"}


def test_evaluates_by_steps_and_stops_early(readers, tmp_path):
    # Nothing is learned, so that no evaluation is better than the first.
    config = fake.pipeline_config("train_config { num_steps: 50 }")
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate
    rate.constant_learning_rate.learning_rate = 0.0
    evaluating = EvaluationOptions(
        every_steps=2, best_metric=PREFIX, keep_best=2, patience=2, export_final=False
    )
    model_dir = str(tmp_path)

    saving = CheckpointOptions(steps=1)

    def train(evaluation: EvaluationOptions) -> Any:
        return fake.train_and_evaluate(
            tmp_path, config=config, checkpoints=saving, evaluation=evaluation
        )

    train(evaluating)
    evaluations = history.read(model_dir, "0")
    steps = [evaluation.step for evaluation in evaluations]
    assert steps == [2, 4, 6]
    assert history.evaluations_without_progress(evaluations, PREFIX) == 2
    assert training_end.last_step(model_dir) == steps[-1]
    kept = best_checkpoints.BestCheckpoints(model_dir, PREFIX, 2).kept()
    assert len(kept) == 2 and kept[0]["value"] >= kept[1]["value"]
    assert tf1.train.latest_checkpoint(str(tmp_path / "best")).endswith(kept[0]["checkpoint"])
    assert len(list((tmp_path / "export" / "best").iterdir())) == 1
    # An evaluator beside it ends with the training, though num_steps was never reached.
    last = evaluator.continuous_eval(
        config, model_dir, TrainOptions(evaluation=EvaluationOptions(throttle_secs=0))
    )
    assert last[0].step == steps[-1]
    # A resumed run remembers that its patience is at an end; with more it goes on.
    assert train(evaluating) == {}
    more = dataclasses.replace(evaluating, patience=3)
    assert train(more)["global_step"] == steps[-1] + 2


def test_an_evaluation_saves_its_checkpoint(readers, tmp_path, monkeypatch):
    def evaluate(run: Any, reader: Any, checkpoint: str) -> Any:
        return history.Evaluation(reader.name, int(checkpoint.rpartition("-")[2]), {})

    monkeypatch.setattr(evaluator.EvaluationRun, "evaluate_on", evaluate)
    model_dir = str(tmp_path)
    evaluating = EvaluationOptions(export_final=False)
    config = fake.pipeline_config("eval_config { eval_interval_steps: 3 }")

    def train(num_steps: int, *hooks: Any) -> None:
        fake.train_and_evaluate(
            tmp_path, num_steps, config=config, evaluation=evaluating, hooks=hooks
        )

    def evaluated() -> List[int]:
        return [evaluation.step for evaluation in history.read(model_dir, "0")]

    # No checkpoint is due by itself within ten minutes.
    with pytest.raises(Stopped):
        train(99, fake.SignalAt(step=4))
    assert evaluated() == [3]
    assert (tmp_path / "model.ckpt-3.index").exists()
    # The schedule is the same without the interruption.
    train(7)
    assert evaluated() == [3, 6, 7]
    # A run that ends before the evaluation of its step evaluates it when it resumes.
    with pytest.raises(Stopped):
        train(99, fake.SignalAt(step=2))
    assert evaluated() == [3, 6, 7] and checkpoints.trained_steps(model_dir) == 9
    train(10)
    assert evaluated() == [3, 6, 7, 9, 10]


@pytest.mark.parametrize(
    ("options", "configured", "steps"),
    [
        ({}, 0, None),
        ({}, 3, 3),
        ({"every_steps": 5}, 3, 5),
        ({"every_steps": 5}, 0, 5),
        ({"throttle_secs": 7}, 3, None),
    ],
)
def test_options_come_before_the_configuration(options, configured, steps):
    config = fake.pipeline_config(f"eval_config {{ eval_interval_steps: {configured} }}")
    train_options = TrainOptions(evaluation=EvaluationOptions(**options))
    assert RunContext(config, "", train_options).evaluation_steps == steps


class _Killed(BaseException):
    """What stands for SIGKILL."""


@contextlib.contextmanager
def _killed_at(owner: Any, name: str) -> Iterator[None]:
    """Context manager: a run is killed at the first call of a function.

    A call of `append` counts only for the file of evaluations.
    """
    call = getattr(owner, name)

    def killed(*arguments: Any, **options: Any) -> None:
        if name == "append" and not arguments[0].endswith(history.EVALUATIONS_FILE):
            call(*arguments, **options)
            return
        raise _Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(owner, name, killed)
        yield


_MOMENTS = {
    "before the line": (json_lines, "append"),
    "within the copy": (tf.io.gfile, "copy"),
    "before the export": (saved_model, "rewrite_as_constants"),
}


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before the line", marks=pytest.mark.exhaustive),
        pytest.param("within the copy", marks=pytest.mark.exhaustive),
        "before the export",
    ],
)
def test_a_kill_does_not_lose_the_best_checkpoint(readers, tmp_path, moment):
    # Nothing is learned, so that no evaluation is better than the first.
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate
    rate.constant_learning_rate.learning_rate = 0.0
    evaluating = EvaluationOptions(every_steps=2, best_metric=PREFIX, export_final=False)

    def train() -> None:
        fake.train_and_evaluate(tmp_path, 4, config, evaluation=evaluating)

    with _killed_at(*_MOMENTS[moment]):
        train()
    train()
    assert [evaluation.step for evaluation in history.read(model_dir, "0")] == [2, 4]
    (kept,) = best_checkpoints.BestCheckpoints(model_dir, PREFIX, 1).kept()
    assert kept["step"] == 2
    assert tf1.train.latest_checkpoint(str(tmp_path / "best")).endswith(kept["checkpoint"])
    versions = list((tmp_path / "export" / "best").iterdir())
    assert versions and all((version / "saved_model.pb").exists() for version in versions)


def test_a_kill_does_not_lose_the_final_export(readers, tmp_path):
    with _killed_at(saved_model, "rewrite_as_constants"):
        fake.train_and_evaluate(tmp_path, 1)
    assert len(history.read(str(tmp_path), "0")) == 1
    fake.train_and_evaluate(tmp_path, 1)
    (version,) = (tmp_path / "export" / "Servo").iterdir()
    fake.train_and_evaluate(tmp_path, 1)
    assert list((tmp_path / "export" / "Servo").iterdir()) == [version]
    assert len(history.read(str(tmp_path), "0")) == 1

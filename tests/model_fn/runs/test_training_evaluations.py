"""Evaluations during training: which, when, and what follows from them."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, List

import pytest

from estimator_det.compat import tf1
from model_fn import model_fn
from model_fn.runs import (
    best_checkpoints,
    evaluator,
    history,
    runner,
    training_evaluations,
)
from model_fn.runs.options import Evaluating, Saving
from model_fn.runs.signals import Stopped
from tests import checkpoints
from tests.model_fn import fake
from tests.model_fn.runs.test_runner import PREFIX


def test_several_readers_and_training_data(readers: List[Any], tmp_path: pathlib.Path) -> None:
    config = fake.pipeline_config("eval_input_reader { name: 'second' }")
    runner.train_and_evaluate(
        config,
        str(tmp_path),
        evaluating=Evaluating(sample_1_of_n=7, on_training_data=True, export_final=False),
        progress=False,
    )
    assert readers == [("train", None), ("", 7), ("second", 7), ("", 5)]
    assert {path.name for path in tmp_path.glob("eval_*")} == {
        "eval_0",
        "eval_second",
        "eval_training_data",
    }


def test_best_metric_must_be_evaluated(readers: List[Any], tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="best_metric: 'mAP' is not evaluated"):
        runner.train_and_evaluate(
            fake.pipeline_config(),
            str(tmp_path),
            evaluating=Evaluating(best_metric="mAP"),
            progress=False,
        )


def test_evaluates_by_steps_and_stops_early(readers: List[Any], tmp_path: pathlib.Path) -> None:
    # Nothing is learned, so that no evaluation is better than the first.
    config = fake.pipeline_config("train_config { num_steps: 50 }")
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate
    rate.constant_learning_rate.learning_rate = 0.0
    evaluating = Evaluating(
        every_steps=2, best_metric=PREFIX, keep_best=2, patience=2, export_final=False
    )
    model_dir = str(tmp_path)

    def train(**options: Any) -> Any:
        return runner.train_and_evaluate(
            config, model_dir, saving=Saving(steps=1), progress=False, **options
        )

    train(evaluating=evaluating)
    evaluations = history.read(model_dir, "0")
    steps = [evaluation.step for evaluation in evaluations]
    assert steps == [2, 4, 6]
    assert history.evaluations_without_progress(evaluations, PREFIX) == 2
    assert history.last_step(model_dir) == steps[-1]
    kept = best_checkpoints.BestCheckpoints(model_dir, PREFIX, 2).kept()
    assert len(kept) == 2 and kept[0]["value"] >= kept[1]["value"]
    assert tf1.train.latest_checkpoint(str(tmp_path / "best")).endswith(kept[0]["checkpoint"])
    assert len(list((tmp_path / "export" / "best").iterdir())) == 1
    # An evaluator beside it ends with the training, though num_steps was never reached.
    last = evaluator.continuous_eval(config, model_dir, min_interval_secs=0)
    assert last["0"]["global_step"] == steps[-1]
    # A resumed run remembers that its patience is at an end; with more it goes on.
    assert train(evaluating=evaluating) == {}
    more = dataclasses.replace(evaluating, patience=3)
    assert train(evaluating=more)["global_step"] == steps[-1] + 2


def test_an_evaluation_saves_its_checkpoint(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(config: Any, evaluator: Any, reader: Any, checkpoint: str, **_: Any) -> Any:
        return history.Evaluation(reader.name, int(checkpoint.rpartition("-")[2]), {})

    monkeypatch.setattr(training_evaluations, "evaluate_reader", evaluate)
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    evaluating = Evaluating(every_steps=3, export_final=False)

    def train(num_train_steps: int, *hooks: Any) -> None:
        runner.train_and_evaluate(
            config,
            model_dir,
            num_train_steps=num_train_steps,
            evaluating=evaluating,
            progress=False,
            hooks=hooks,
        )

    def evaluated() -> List[int]:
        return [evaluation.step for evaluation in history.read(model_dir, "0")]

    # No checkpoint is due by itself within ten minutes.
    with pytest.raises(Stopped):
        train(99, fake.SignalAt(step=4))
    assert evaluated() == [3]
    assert (tmp_path / "model.ckpt-3.index").exists()
    # The schedule is that of a run without interruption.
    train(7)
    assert evaluated() == [3, 6, 7]
    # A run that ends before the evaluation of its step evaluates it when it resumes.
    with pytest.raises(Stopped):
        train(99, fake.SignalAt(step=2))
    assert evaluated() == [3, 6, 7] and checkpoints.trained_steps(model_dir) == 9
    train(10)
    assert evaluated() == [3, 6, 7, 9, 10]


def test_evaluation_leaves_the_training_session_and_its_data_alone(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []
    made = model_fn.make_detector

    def make_detector(model_config: Any, is_training: bool, graph_rewriter: Any) -> Any:
        graphs.append(is_training)
        return made(model_config, is_training, graph_rewriter)

    monkeypatch.setattr(model_fn, "make_detector", make_detector)
    runner.train_and_evaluate(
        fake.pipeline_config(),
        str(tmp_path),
        num_train_steps=2,
        saving=Saving(steps=1),
        evaluating=Evaluating(every_steps=1, export_final=False),
        progress=False,
    )
    assert graphs.count(True) == 1 and graphs.count(False) == 2

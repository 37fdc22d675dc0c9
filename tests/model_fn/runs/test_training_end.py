"""The end of a training as other processes know it."""

from __future__ import annotations

import pathlib

import pytest

from estimator_det.files import lock
from model_fn.events import PROGRESS_FILE, append_progress
from model_fn.runs import evaluator, training_end
from model_fn.runs.options import EvaluationOptions
from model_fn.runs.training_end import TrainingEnd
from tests.model_fn import fake


def test_the_mark_of_an_earlier_run_is_not_the_end_of_this_one(tmp_path):
    folder = str(tmp_path)
    first = TrainingEnd(folder, 10)
    assert not first.is_reached() and training_end.last_step(folder) is None
    assert [first.is_last(step) for step in (9, 10)] == [False, True]
    training_end.mark_over(folder, 7, "stopped early")
    assert first.is_reached() and training_end.last_step(folder) == 7
    assert [first.is_last(step) for step in (6, 7)] == [False, True]
    resumed = TrainingEnd(folder, 10)
    assert not resumed.is_reached() and not resumed.is_last(7)  # The chief has not started yet.
    append_progress(folder, {"step": 8})  # It has started.
    assert not resumed.is_reached() and training_end.last_step(folder) is None
    training_end.mark_over(folder, 7, "stopped early")
    assert resumed.is_reached()
    training_end.mark_over(folder, 12, "num_train_steps")
    for num_steps, is_reached in ((10, True), (12, True), (13, False), (None, False)):
        assert TrainingEnd(folder, num_steps).is_reached() is is_reached


def test_a_training_may_take_more_steps_than_its_evaluator_knows(tmp_path):
    folder = str(tmp_path)
    training_end.mark_over(folder, 4, "num_train_steps")
    end = TrainingEnd(folder, 4, is_certain=False)
    assert end.is_reached() and end.is_last(4)
    with lock.locked(folder):  # A training resumes, and begins with its first step.
        assert not end.is_reached() and not end.is_last(4)
        append_progress(folder, {"step": 5})
        assert not end.is_reached() and not end.is_last(8)
        training_end.mark_over(folder, 12, "num_train_steps")
        assert [end.is_last(step) for step in (8, 12)] == [False, True]
    append_progress(folder, {"step": 13})  # A signal has ended another one.
    assert [end.is_last(step) for step in (3, 4)] == [False, True]


def test_an_evaluator_waits_for_a_training_that_resumes(tmp_path, monkeypatch):
    folder = str(tmp_path)
    training_end.mark_over(folder, 2, "stopped early")
    saved = iter([2, 8, 10])
    steps = []

    class Evaluations:
        context = fake.run_context(folder, evaluation=EvaluationOptions(throttle_secs=0))

        def evaluate(self, checkpoint: str) -> list:
            return [evaluator.Evaluation("0", int(checkpoint), {})]

        def keep(self, evaluations: list, checkpoint: str) -> None:
            steps.append(int(checkpoint))

    monkeypatch.setattr(evaluator.tf1.train, "latest_checkpoint", lambda _: str(next(saved)))
    monkeypatch.setattr(evaluator, "modified", lambda _: 0)
    evaluator.follow(Evaluations(), folder, TrainingEnd(folder, 10))
    assert steps == [2, 8, 10]


@pytest.mark.parametrize("file", [PROGRESS_FILE, training_end.EARLIER_FILE])
@pytest.mark.parametrize("content", ['{"step": 7, "ended": "', '{"ended": "x"}', "[7]", "null"])
def test_a_mark_that_a_crash_has_cut_is_none(tmp_path: pathlib.Path, content, file):
    (tmp_path / file).write_text(content)
    assert training_end.last_step(str(tmp_path)) is None
    end = TrainingEnd(str(tmp_path), 7)
    assert not end.is_reached()
    training_end.mark_over(str(tmp_path), 7, "num_train_steps")
    assert end.is_reached()


def test_the_mark_of_an_earlier_version(tmp_path):
    append_progress(str(tmp_path), {"step": 7})
    (tmp_path / training_end.EARLIER_FILE).write_text('{"step": 7, "reason": "x", "time": 1}')
    assert training_end.last_step(str(tmp_path)) == 7 and TrainingEnd(str(tmp_path), 7).is_reached()
    training_end.clear_earlier(str(tmp_path))
    assert training_end.last_step(str(tmp_path)) is None

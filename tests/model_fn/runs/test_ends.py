"""What ends a training: hooks of the user, the same for each engine; steps; lost variables."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, List

import pytest

from estimator_det.compat import tf1
from estimator_det.errors import VARIABLES_LOST, RunError, SessionLostError, UsageError
from model_fn.runs.backends.estimator import EstimatorBackend
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import LoopOptions
from model_fn.training.step import POSITION
from tests import checkpoints
from tests.model_fn import fake

_ENGINES = pytest.mark.parametrize("loop", [None, LoopOptions()], ids=["estimator", "loop"])


class _Stop(Hook):
    """Stops in a step, as it begins."""

    def __init__(self, step: int) -> None:
        self._steps_left = step

    def begin(self, context: RunContext, step: int) -> None:
        self._stop = context.stop

    def before_step(self, step: int) -> None:
        self._steps_left -= 1
        if not self._steps_left:
            self._stop.request()


class _SessionStop(tf1.train.SessionRunHook):
    """The same, for a session."""

    def __init__(self, step: int) -> None:
        self._steps_left = step

    def before_run(self, run_context: Any) -> None:
        self._steps_left -= 1
        if not self._steps_left:
            run_context.request_stop()


@pytest.mark.parametrize(
    ("loop", "hook"),
    [(None, _Stop), (LoopOptions(), _Stop), (None, _SessionStop)],
    ids=["estimator", "loop", "hook of a session"],
)
def test_a_stop_before_a_step_ends_training_after_it(readers, tmp_path, loop, hook):
    fake.train(tmp_path, 6, hooks=[hook(2)], loop=loop)
    assert checkpoints.trained_steps(tmp_path) == 2


@pytest.mark.parametrize(
    ("loop", "settings", "is_endless"),
    [
        (None, "train_config { num_steps: 0 }", True),
        (LoopOptions(), "train_config { num_steps: 0 }", True),
        (None, "train_config { num_steps: 0 } train_input_reader { num_epochs: 1 }", False),
    ],
)
def test_a_run_without_end_says_so(readers, tmp_path, caplog, loop, settings, is_endless):
    config = fake.pipeline_config(settings)
    fake.train(tmp_path, config=config, hooks=[_Stop(1)], loop=loop)
    lines = [record.getMessage() for record in caplog.records]
    endless = [line for line in lines if "never ends" in line]
    assert len(endless) == is_endless
    for line in endless:
        assert "num_train_steps" in line and "num_epochs" in line and "Ctrl-C" in line


def test_the_loop_refuses_a_hook_of_a_session(tmp_path):
    with pytest.raises(UsageError, match=r"SessionStop needs a session.*estimator_det\.Hook"):
        fake.train(tmp_path, hooks=[_SessionStop(1)], loop=LoopOptions())
    assert not list(tmp_path.iterdir())


class _Notes(Hook):
    """Notes its calls."""

    def __init__(self) -> None:
        self.calls: List[Any] = []
        self.results: List[StepResult] = []

    def begin(self, context: RunContext, step: int) -> None:
        self.calls.append((context.num_steps, step))

    def before_step(self, step: int) -> None:
        self.calls.append(step)

    def after_step(self, result: StepResult) -> None:
        self.calls.append((result.step, result.num_taken))
        self.results.append(result)

    def end(self, step: int) -> None:
        self.calls.append(f"end at {step}")


@_ENGINES
def test_hooks_of_the_user_get_the_same_with_each_engine(readers, tmp_path, loop):
    notes = _Notes()
    fake.train(tmp_path, 2, hooks=[notes], loop=loop)
    assert notes.calls == [(2, 0), 0, (1, 1), 1, (2, 1), "end at 2"]
    first, second = notes.results
    assert first.is_finite and first.scalars["learning_rate"] == 0.5
    assert {"Loss/total_loss", "gradient_norm"} < set(first.scalars)
    assert "moving_averages" in first.checks and first.input_wait is not None
    (position,) = second.positions
    assert position[POSITION[0]].tolist() == [2, 3] and len(position[POSITION[1]]) == 2
    assert first.summary and not second.summary and not first.rejected


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> List[float]:
    """Pauses of this process, which it does not wait for."""
    slept: List[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def _lose(monkeypatch: pytest.MonkeyPatch, attempts: List[int], until_step: int, gain: int) -> None:
    """Variables are lost in each attempt until a step, `gain` steps after it began."""
    train = EstimatorBackend.train

    def train_a_part(self: EstimatorBackend, input_fn: Any, hooks: Any) -> None:
        first = checkpoints.trained_steps(self._context.model_dir)
        attempts.append(first)
        if first >= until_step:
            return train(self, input_fn, hooks)
        if gain:
            whole = self._context
            steps = dataclasses.replace(whole.options, num_train_steps=first + gain)
            self._context = dataclasses.replace(whole, options=steps)
            train(self, input_fn, hooks)
            self._context = whole
        raise SessionLostError(VARIABLES_LOST)

    monkeypatch.setattr(EstimatorBackend, "train", train_a_part)


def test_lost_variables_without_progress_end_the_run(readers, tmp_path, monkeypatch, pauses):
    attempts: List[int] = []
    _lose(monkeypatch, attempts, until_step=9, gain=0)
    with pytest.raises(RunError, match=r"lost 6 times .* more memory.* start all tasks again"):
        fake.train(tmp_path)
    assert len(attempts) == 6
    assert len(pauses) >= 5 and min(pauses) > 0


def test_lost_variables_with_progress_do_not(readers, tmp_path, monkeypatch, pauses):
    attempts: List[int] = []
    _lose(monkeypatch, attempts, until_step=6, gain=1)
    fake.train(tmp_path, 8)
    assert attempts == list(range(7))
    assert checkpoints.trained_steps(tmp_path) == 8

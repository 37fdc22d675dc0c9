"""What a session of TensorFlow becomes for the hooks of a run."""

from __future__ import annotations

from typing import Any, List

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import SessionLostError
from model_fn.runs.backends.estimator import HookAdapter
from model_fn.runs.context import Hook, RunContext, StepResult
from tests.model_fn import fake


class _Notes(Hook):
    def __init__(self) -> None:
        self.results: List[StepResult] = []
        self.started_at = self.ended_at = -1

    def begin(self, context: RunContext, step: int) -> None:
        self.started_at = step

    def after_step(self, result: StepResult) -> None:
        self.results.append(result)

    def end(self, step: int) -> None:
        self.ended_at = step


def _train(context: RunContext, values: List[float], gain: int, first: int = 0) -> _Notes:
    """Takes steps whose loss has such values, until the session ends; each adds `gain` steps."""
    notes = _Notes()
    with tf.Graph().as_default():
        global_step = tf1.train.get_or_create_global_step()
        initial = global_step.assign(first)
        loss = tf.gather(tf.constant(values), tf.cast((global_step - first) // gain, tf.int32))
        loss = tf.identity(loss)
        with tf.control_dependencies([loss]):
            train_op = tf.identity(tf1.assign_add(global_step, gain))
        built: Any = fake.BuiltModelFn(train_op, loss=loss)
        scaffold = tf1.train.Scaffold(init_op=tf.group(global_step.initializer))
        adapter = HookAdapter(context, built, lambda _: [notes])
        with tf1.train.MonitoredSession(
            tf1.train.ChiefSessionCreator(scaffold), hooks=[_Assign(initial), adapter]
        ) as session:
            while not session.should_stop():
                session.run(train_op)
        with pytest.raises(SessionLostError):
            adapter.after_create_session(adapter.session, None)
    return notes


class _Assign(tf1.train.SessionRunHook):
    def __init__(self, assignment: Any) -> None:
        self._assignment = assignment

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        session.run(self._assignment)


def test_steps_of_other_workers_end_training(tmp_path):
    """The step is that of all workers; training ends once it is reached or passed."""
    notes = _train(fake.run_context(tmp_path, num_train_steps=10), [3.0, 2.0, 1.0], 3, first=4)
    assert (notes.started_at, notes.ended_at) == (4, 10)
    assert [(each.step, each.num_taken) for each in notes.results] == [(7, 1), (10, 1)]
    assert [dict(each.scalars) for each in notes.results] == [{"loss": 3.0}, {"loss": 2.0}]


def test_a_step_that_is_not_finite_was_not_taken(tmp_path):
    notes = _train(fake.run_context(tmp_path, num_train_steps=1), [float("nan")], 1)
    (result,) = notes.results
    assert not result.is_finite and result.num_taken == 0

"""Mean gradients of several batches, with the accumulators in this process."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.protos import train_pb2
from model_fn.training.sync_replicas import SyncReplicas, SyncReplicasHook
from tests.faults import faults


def _train(slopes: List[float], aggregate: int, closed_at: int = -1) -> Tuple[float, int]:
    """Weight and step after as many runs of one worker; the gradient of a run is its slope.

    The gradient of the run `closed_at` is held back by what the step depends on.
    """
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("weight", initializer=1.0)
        slope = tf1.placeholder(tf.float32, [])
        is_open = tf1.placeholder(tf.bool, [])
        optimizer = SyncReplicas(tf1.train.GradientDescentOptimizer(0.5), aggregate, 1)
        pairs = optimizer.compute_gradients(weight * slope, [weight])
        closed, opened = tf.raw_ops.Switch(data=is_open, pred=is_open)
        with tf.control_dependencies([tf.identity(opened)]):
            taken = optimizer.apply_gradients(pairs, step)
        with tf.control_dependencies([taken]):
            taken = tf.identity(opened)
        done = tf.raw_ops.Merge(inputs=[taken, tf.identity(closed)]).output
        hook = SyncReplicasHook(optimizer, True, None)
        with tf1.train.MonitoredSession(hooks=[hook]) as session:
            for number, value in enumerate(slopes):
                session.run(done, {slope: value, is_open: number != closed_at})
            result = session.run([weight, step])
    return float(result[0]), int(result[1])


def test_each_step_applies_the_mean():
    weight, step = _train([1.0, 3.0, 5.0, 7.0], aggregate=2)
    assert step == 2
    np.testing.assert_allclose(weight, 1 - 0.5 * 2 - 0.5 * 6, rtol=1e-6)


def test_a_rejected_step_sends_no_gradient():
    weight, step = _train([1.0, 100.0, 3.0], aggregate=2, closed_at=1)
    assert step == 1
    np.testing.assert_allclose(weight, 1 - 0.5 * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("aggregate", "num_replicas", "first", "each_step"), [(1, 3, 0, 3), (3, 1, 2, 3), (2, 2, 0, 2)]
)
def test_nobody_waits_for_a_token_that_never_comes(
    monkeypatch, aggregate, num_replicas, first, each_step
):
    numbers: List[int] = []
    synchronizing = tf1.train.SyncReplicasOptimizer
    monkeypatch.setattr(
        synchronizing, "get_init_tokens_op", lambda _, number: numbers.append(number)
    )
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("weight", initializer=1.0)
        gradients = tf1.train.GradientDescentOptimizer(0.5)
        optimizer = SyncReplicas(gradients, aggregate, num_replicas)
        optimizer.apply_gradients(optimizer.compute_gradients(weight, [weight]), step)
        SyncReplicasHook(optimizer, True, None).begin()
    assert numbers == [first, each_step]


def test_the_numbers_are_checked():
    settings = "sync_replicas: true replicas_to_aggregate: 0 optimizer {}"
    assert "at.replicas_to_aggregate: is 0" in faults(train_pb2.TrainConfig(), settings)

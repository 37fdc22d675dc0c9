from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import normalization
from estimator_det.nets.normalization import batch_norm, sync_batch_norm
from tests.arrays import assert_same

SETTINGS = {"decay": 0.8, "center": True, "scale": True, "epsilon": 0.01}
INPUTS = np.random.default_rng(0).normal(3.0, 2.0, (2, 5, 5, 4)).astype(np.float32)


def one_step(layer, inputs: np.ndarray, dtype=tf.float32, **settings) -> dict:
    """Outputs, gradient and moving averages after one run of outputs and updates."""
    with tf.Graph().as_default():
        fed = tf1.placeholder(tf.float32, inputs.shape)
        outputs = layer(tf.cast(fed, dtype), scope="norm", **settings)
        assert outputs.dtype == dtype
        outputs = tf.cast(outputs, tf.float32)
        gradient = tf1.gradients(tf.reduce_sum(outputs**3), fed)[0]
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            values, grad, _ = session.run([outputs, gradient, updates], {fed: inputs})
            found = {v.op.name: session.run(v) for v in tf1.global_variables()}
    return {"outputs": values, "gradient": grad, "num_updates": len(updates), **found}


@pytest.mark.parametrize("layer", [batch_norm, sync_batch_norm])
@pytest.mark.parametrize("collections", [None, tf1.GraphKeys.UPDATE_OPS])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_equals_tf_slim(layer, collections, is_training, scale):
    settings = {**SETTINGS, "scale": scale, "is_training": is_training}
    settings["updates_collections"] = collections
    ours = one_step(layer, INPUTS, **settings)
    theirs = one_step(slim.batch_norm, INPUTS, **settings)
    assert_same(ours, theirs, atol=1e-5)
    assert ours["num_updates"] == (2 if is_training and collections else 0)


@pytest.mark.parametrize("collections", [None, tf1.GraphKeys.UPDATE_OPS])
def test_replicas_share_their_moments(collections):
    with tf.Graph().as_default():
        strategy = tf1.distribute.MirroredStrategy(
            ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )

        def replica() -> tf.Tensor:
            number = tf1.distribute.get_replica_context().replica_id_in_sync_group
            inputs = tf.gather(tf.constant(INPUTS), [number])
            outputs = sync_batch_norm(
                inputs, is_training=True, updates_collections=collections, **SETTINGS
            )
            with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
                return tf.identity(outputs)

        with strategy.scope():
            results = strategy.experimental_local_results(
                strategy.extended.call_for_each_replica(replica)
            )
        config = tf1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            halves = session.run(results)
    mean, variance = INPUTS.mean((0, 1, 2)), INPUTS.var((0, 1, 2))
    expected = (INPUTS - mean) / np.sqrt(variance + SETTINGS["epsilon"])
    np.testing.assert_allclose(np.concatenate(halves), expected, rtol=1e-4, atol=1e-4)


def test_replicas_outside_training_take_their_averages(monkeypatch):
    settings = {**SETTINGS, "is_training": False}
    alone = one_step(batch_norm, INPUTS, **settings)
    monkeypatch.setattr(normalization, "num_tpu_shards", lambda: 2)
    monkeypatch.setattr(tf1.tpu, "cross_replica_sum", lambda local: local + local)
    together = one_step(sync_batch_norm, INPUTS, **settings)
    assert together["num_updates"] == 0
    assert_same(together, alone, rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(tf.float32, 1e-4), (tf.bfloat16, 2e-2)])
def test_cores_of_a_tpu_share_their_moments(monkeypatch, dtype, tolerance):
    """There is no TPU: the other core's share of each sum is given by hand."""
    other = INPUTS[1:]
    shares = iter([other.mean((0, 1, 2)), (other**2).mean((0, 1, 2))])
    monkeypatch.setattr(normalization, "num_tpu_shards", lambda: 2)
    monkeypatch.setattr(tf1.tpu, "cross_replica_sum", lambda local: local + next(shares))
    found = one_step(sync_batch_norm, INPUTS[:1], dtype, is_training=True, **SETTINGS)
    mean, variance = INPUTS.mean((0, 1, 2)), INPUTS.var((0, 1, 2))
    expected = (INPUTS[:1] - mean) / np.sqrt(variance + SETTINGS["epsilon"])
    np.testing.assert_allclose(found["outputs"], expected, rtol=tolerance, atol=tolerance)
    # Moments are float32: rounded ones would be wrong in the third digit.
    np.testing.assert_allclose(found["norm/moving_mean"], 0.2 * mean, rtol=tolerance / 10)
    np.testing.assert_allclose(
        found["norm/moving_variance"], 0.8 + 0.2 * variance, rtol=tolerance / 10
    )


def test_rounding_gives_no_negative_variance(monkeypatch):
    monkeypatch.setattr(normalization, "num_tpu_shards", lambda: 2)
    monkeypatch.setattr(tf1.tpu, "cross_replica_sum", lambda local: local + local)
    equal = np.broadcast_to(np.linspace(1000, 1001, 64, dtype=np.float32), (1, 5, 5, 64))
    found = one_step(sync_batch_norm, equal, is_training=True, **SETTINGS)
    assert found["norm/moving_variance"].min() >= np.float32(0.8)


@pytest.mark.parametrize(("num_shards", "sums"), [(1, 0), (4, 4)])
def test_sums_over_cores(num_shards, sums):
    """Two in the layer and two for their gradients; on a single core plain batch norm does."""

    def step(inputs: tf.Tensor) -> tf.Tensor:
        outputs = sync_batch_norm(inputs, is_training=True, updates_collections=None, **SETTINGS)
        return tf1.gradients(tf.reduce_sum(outputs**3), inputs)[0]

    with tf.Graph().as_default() as graph:
        fed = tf1.placeholder(tf.float32, [4, 5, 5, 4])
        tf1.tpu.shard(step, inputs=[fed], num_shards=num_shards)
        kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("CrossReplicaSum") == sums
    assert kinds.count("FusedBatchNormV3") == (1 if num_shards == 1 else 0)


def convolved(folds: bool, **settings) -> tuple:
    """Outputs and gradients of a convolution with averages; its operations of batch norm."""
    norm = {**SETTINGS, "is_training": False, "folds": folds}
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        settings.update(normalizer_fn=batch_norm, normalizer_params=norm, activation_fn=None)
        outputs = slim.conv2d(tf.constant(INPUTS), 3, scope="conv", **settings)
        variables = {v.op.name: v for v in tf1.global_variables()}
        trained = tf1.trainable_variables()
        gradients = tf1.gradients(tf.reduce_sum(outputs**2), trained)
        for number, (_, variable) in enumerate(sorted(variables.items())):
            value = np.random.default_rng(number).uniform(0.5, 1.5, variable.shape)
            variable.load(value, session)
        found = {v.op.name: g for v, g in zip(trained, session.run(gradients))}
        kinds = [op.type for op in graph.get_operations()]
        return {"outputs": session.run(outputs), **found}, kinds.count("FusedBatchNormV3")


@pytest.mark.parametrize(
    "settings",
    [{"kernel_size": 3, "stride": 2}, {"kernel_size": 1}, {"kernel_size": 2, "padding": "VALID"}],
)
def test_folded_into_a_convolution(settings):
    (plain, one), (folded, none) = (convolved(folds, **settings) for folds in (False, True))
    assert (one, none) == (1, 0)
    assert set(plain) == {"outputs", "conv/weights", "conv/BatchNorm/beta", "conv/BatchNorm/gamma"}
    assert_same(folded, plain, rtol=1e-4, atol=0)


def test_not_folded_in_training_or_after_an_atrous_convolution():
    with tf.Graph().as_default() as graph, slim.arg_scope([batch_norm], folds=True):
        slim.conv2d(tf.zeros([1, 4, 4, 2]), 3, 1, normalizer_fn=batch_norm)
        kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("FusedBatchNormV3") == 1
    _, num_norms = convolved(True, kernel_size=3, rate=2)  # it rearranges its output
    assert num_norms == 1

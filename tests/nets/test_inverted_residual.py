from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import inverted_residual as nets
from estimator_det.nets.normalization import BATCH_NORMS, sync_batch_norm
from tests.graphs import evaluate

THIN = nets.depth_function(0.1, 8)


def inference() -> Any:
    return slim.arg_scope(list(BATCH_NORMS), is_training=False)


def one_block(block: nets.InvertedResidual, inputs: tf.Tensor) -> tf.Tensor:
    depth = nets.depth_function(1.0, 4)
    return nets.inverted_residual_net(inputs, (block,), depth)["layer_1"]


@pytest.mark.parametrize(
    ("channels", "least", "expected"),
    [
        (33, 8, 32),
        (36, 8, 40),  # halves go up
        (18, 8, 24),  # 16 would lose more than a tenth
        (11.2, 8, 16),
        (3, 16, 16),
        (1.6, 4, 4),
        (0.5, 0, 8),
    ],
)
def test_divisible(channels, least, expected):
    assert nets.divisible(channels, least) == expected
    assert nets.depth_function(0.5, least)(2 * channels) == expected


def test_activations():
    inputs = tf.constant([-4.0, -1.0, 0.0, 1.0, 5.0])
    np.testing.assert_allclose(nets.hard_swish(inputs), [0, -1 / 3, 0, 2 / 3, 5], rtol=1e-6)
    gates = [0, 2 * 0.16667, 3 * 0.16667, 4 * 0.16667, 6 * 0.16667]
    np.testing.assert_allclose(nets.hard_sigmoid(inputs), gates, rtol=1e-6)


def test_explicit_padding_does_not_depend_on_the_size():
    with tf.Graph().as_default(), nets.arg_scope(), inference():
        # At stride 2, "SAME" looks at pixels 0..2 of an even side, explicit padding at -1..1.
        inputs = tf.reshape(tf.constant([1.0, 0, 0, 0]), [1, 1, 4, 1])
        inputs = tf.tile(inputs, [1, 4, 1, 1])
        kernel = {"weights_initializer": tf1.ones_initializer(), "activation_fn": None}
        maps = []
        for explicit in (False, True):
            with tf1.variable_scope(str(explicit)), slim.arg_scope([slim.conv2d], **kernel):
                layers = (nets.PlainConv(8, 3, stride=2, activation=tf.identity),)
                depth = nets.depth_function(1, 8)
                made = nets.inverted_residual_net(inputs, layers, depth, explicit_padding=explicit)
                maps.append(made["layer_1"][0, :, :, 0])
        same, padded = evaluate(tf.stack(maps))
    # The average's variance is 1, so that inference divides by sqrt(1.001) alone.
    np.testing.assert_allclose(same, np.array([[3, 0], [2, 0]]) / np.sqrt(1.001), rtol=1e-5)
    np.testing.assert_allclose(padded, np.array([[2, 0], [3, 0]]) / np.sqrt(1.001), rtol=1e-5)


@pytest.mark.parametrize(("residual", "stride"), [(True, 1), (False, 1), (True, 2)])
def test_a_block_adds_its_input_where_shapes_agree(residual, stride):
    with tf.Graph().as_default(), nets.arg_scope():
        inputs = tf.random.normal([1, 4, 4, 8], seed=1)
        block = nets.InvertedResidual(8, stride, residual=residual)
        with slim.arg_scope([slim.conv2d], weights_initializer=tf1.zeros_initializer()):
            output, given = evaluate((one_block(block, inputs), inputs))
    added = residual and stride == 1
    np.testing.assert_array_equal(output, given if added else np.zeros_like(output))


def test_squeeze_excite_weighs_channels():
    with tf.Graph().as_default(), nets.arg_scope(), inference():
        block = nets.InvertedResidual(32, expansion=0, kernel=1, squeeze=True, residual=False)
        identity = tf.eye(32, batch_shape=[1, 1])
        inputs = tf.random.uniform([2, 3, 3, 32], seed=1)
        output = one_block(block, inputs)
        variables = {v.op.name.split("/", 1)[1]: v for v in tf1.global_variables()}
        assert variables["squeeze_excite/Conv/weights"].shape == [1, 1, 32, 8]
        assert variables["squeeze_excite/Conv_1/biases"].shape == [32]
        assert "squeeze_excite/Conv/BatchNorm/beta" not in variables
        biases = np.linspace(-4, 4, 32, dtype=np.float32)
        assigned = [
            variables["depthwise/depthwise_weights"].assign(tf.ones([1, 1, 32, 1])),
            variables["project/weights"].assign(identity),
            variables["squeeze_excite/Conv_1/weights"].assign(tf.zeros([1, 1, 8, 32])),
            variables["squeeze_excite/Conv_1/biases"].assign(biases),
        ]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(assigned)
            found, given = session.run([output, inputs])
    gates = np.clip(biases + 3, 0, 6) * 0.16667
    np.testing.assert_allclose(found, given * gates / 1.001, rtol=1e-4, atol=1e-6)


def test_padding_whole_blocks_makes_maps_grow():
    with tf.Graph().as_default(), nets.arg_scope():
        layers, padding = nets.V3_SMALL_LAYERS[:6], {"explicit_padding": True}
        end_points = nets.inverted_residual_net(
            tf.zeros([1, 64, 64, 3]), layers, THIN, pad_whole_blocks=True, **padding
        )
    # Each block adds 2 (kernel 3) or 4 (kernel 5) pixels, then strides.
    heights = [end_points[f"layer_{n}"].shape[1] for n in range(1, 7)]
    assert heights == [32, 17, 10, 12, 8, 12]


def test_a_configuration_may_ask_for_batch_norm_over_replicas():
    used = []

    @slim.add_arg_scope
    def spy(*args: object, **kwargs: object) -> tf.Tensor:
        used.append(1)
        return sync_batch_norm(*args, **kwargs)

    layers = [slim.conv2d, slim.separable_conv2d]
    with pytest.MonkeyPatch.context() as patch, tf.Graph().as_default(), nets.arg_scope():
        patch.setattr(nets, "sync_batch_norm", spy)
        with slim.arg_scope(layers, normalizer_fn=spy):
            one_block(nets.InvertedResidual(8), tf.zeros([1, 8, 8, 8]))
    assert len(used) == 3

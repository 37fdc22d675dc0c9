from __future__ import annotations

import re

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import slim, tf, tf1
from estimator_det.errors import ConfigError
from estimator_det.nets import hyperparams
from estimator_det.nets.normalization import batch_norm
from estimator_det.protos import hyperparams_pb2
from tests.faults import faults
from tests.graphs import evaluate, shapes


def parse(text: str) -> hyperparams_pb2.Hyperparams:
    return text_format.Parse(text, hyperparams_pb2.Hyperparams())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NONE", [-2.0, 1.0, 8.0]),
        ("RELU", [0.0, 1.0, 8.0]),
        ("RELU_6", [0.0, 1.0, 6.0]),
        ("SWISH", [-0.238406, 0.731059, 7.997317]),
    ],
)
def test_activations(name, expected):
    function = hyperparams.ACTIVATIONS[parse(f"activation: {name}").activation]
    inputs = tf.constant([-2.0, 1.0, 8.0])
    outputs = inputs if function is None else function(inputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)


def test_swish_has_the_gradient_of_tensorflow():
    inputs = tf.constant([-8.0, -2.0, 0.0, 1.0, 8.0])
    gradients = []
    for function in (hyperparams.swish, tf.nn.swish):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.square(function(inputs))
        gradients.append(tape.gradient(outputs, inputs))
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("kind", "expected"), [("l1", 0.5 * 6.0), ("l2", 0.5 * 14.0 / 2)])
def test_regularizers(kind, expected):
    config = parse(f"regularizer {{ {kind}_regularizer {{ weight: 0.5 }} }}").regularizer
    with tf.Graph().as_default():
        penalty = hyperparams.make_regularizer(config)(tf.constant([1.0, -2.0, 3.0]))
        assert evaluate(penalty) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "mean", "stddev", "farthest"),
    [
        ("truncated_normal_initializer { stddev: 0.5 mean: 2 }", 2.0, 0.5 * 0.8796, 1.0),
        ("random_normal_initializer { stddev: 0.5 mean: -1 }", -1.0, 0.5, 2.0),
        ("variance_scaling_initializer { factor: 1 mode: FAN_IN }", 0.0, 0.1, 0.228),
        ("variance_scaling_initializer { factor: 1 mode: FAN_OUT }", 0.0, 0.05, 0.114),
        ("variance_scaling_initializer { factor: 2 mode: FAN_AVG uniform: true }", 0.0, 0.08944,
         0.08944 * 3**0.5),
        ('keras_initializer_by_name: "ones"', 1.0, 0.0, 0.0),
    ],
)  # fmt: skip
def test_initializers(text, mean, stddev, farthest):
    config = parse(f"initializer {{ {text} }}").initializer
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        initializer = hyperparams.make_initializer(config)
        values = evaluate(tf1.get_variable("w", [100, 400], initializer=initializer))
    assert values.mean() == pytest.approx(mean, abs=0.02)
    assert values.std() == pytest.approx(stddev, abs=0.003)
    assert np.abs(values - mean).max() == pytest.approx(farthest, rel=0.1)


def test_unknown_keras_initializer_is_named():
    config = parse('initializer { keras_initializer_by_name: "he_norm" }')
    assert re.search("'he_norm'.*glorot_uniform", faults(config))


def convolve(text: str, is_training: bool = True) -> tf.Tensor:
    inputs = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 4, 32)), tf.float32)
    with hyperparams.make_arg_scope(parse(text), is_training)():
        net = slim.separable_conv2d(inputs, None, 3, depth_multiplier=1, scope="dw")
        return slim.conv2d(net, 32, 1, scope="conv")


@pytest.mark.parametrize("kind", ["batch_norm", "sync_batch_norm", "group_norm"])
def test_normalizers(kind):
    settings = "" if kind == "group_norm" else "scale: true"
    scope = "GroupNorm" if kind == "group_norm" else "BatchNorm"
    with tf.Graph().as_default():
        outputs = convolve(f"{kind} {{ {settings} }} activation: NONE")
        assert f"conv/{scope}/gamma" in shapes()
        assert not [name for name in shapes() if "biases" in name]
        values = evaluate(outputs)
    assert values.mean() == pytest.approx(0.0, abs=1e-4)
    assert values.std() == pytest.approx(1.0, abs=0.05)


def test_settings_of_batch_norm():
    text = "batch_norm { scale: true center: false decay: 0.9 epsilon: 0.5625 }"
    with tf.Graph().as_default(), hyperparams.make_arg_scope(parse(text), True)():
        outputs = batch_norm(tf.constant([[1.0], [3.0]]))
        assert sorted(shapes()) == [
            f"BatchNorm/{name}" for name in ("gamma", "moving_mean", "moving_variance")
        ]
        mean = next(v for v in tf1.global_variables() if v.op.name.endswith("mean"))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            values, _ = session.run([outputs, tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)])
            assert session.run(mean) == pytest.approx([0.1 * 2.0])
    np.testing.assert_allclose(values, [[-0.8], [0.8]], rtol=1e-5)  # 1 / sqrt(1 + epsilon)


def test_a_forced_bias_comes_before_the_normalizer():
    with tf.Graph().as_default(), tf1.Session() as session:
        outputs = hyperparams.with_bias(lambda inputs: 10.0 * inputs)(tf.constant([[2.0]]))
        (bias,) = tf1.global_variables()
        bias.load([1.0], session)
        assert session.run(outputs).tolist() == [[30.0]]
        with tf1.variable_scope("narrow"):
            narrow = hyperparams.with_bias(tf.identity)(tf.constant([[2.0]], tf.bfloat16))
        assert narrow.dtype == tf.bfloat16


def test_group_norm_ignores_batch_norm_settings_around_it():
    with tf.Graph().as_default():
        with slim.arg_scope([slim.conv2d, slim.separable_conv2d], normalizer_params={"decay": 1}):
            convolve("group_norm {}")
        assert "conv/GroupNorm/beta" in shapes()


def test_group_norm_refuses_by_layer_what_tf_slim_cannot_compute():
    with tf.Graph().as_default(), tf1.variable_scope("net"):
        for shape, message in (((4, 4, 48), "net has 48"), ((None, 4, 64), "sides of net depend")):
            with pytest.raises(ConfigError, match=message):
                hyperparams.group_norm(tf1.placeholder(tf.float32, (1, *shape)))


@pytest.mark.parametrize(
    ("is_training", "train", "updates"), [(True, "true", 4), (True, "false", 0), (False, "true", 0)]
)
def test_batch_norm_learns_only_if_model_and_message_say_so(is_training, train, updates):
    with tf.Graph().as_default():
        convolve(f"batch_norm {{ train: {train} }}", is_training)
        assert len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)) == updates


@pytest.mark.parametrize(
    ("field", "terms"),
    [("", 2), ("regularize_depthwise: true", 2), ("regularize_depthwise: false", 1)],
)
def test_depthwise_kernels_are_spared_only_on_request(field, terms):
    with tf.Graph().as_default():
        convolve(f"regularizer {{ l2_regularizer {{ weight: 0.1 }} }} {field}")
        assert len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)) == terms

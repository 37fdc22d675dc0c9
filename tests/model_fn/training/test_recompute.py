from __future__ import annotations

import contextlib
import logging
from typing import Dict, List, Optional, Tuple

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import batch_norm
from estimator_det.protos import train_pb2
from model_fn.checks import graphs
from model_fn.training import recompute
from tests.model_fn.checks.small import small_config

AUTO, ON, OFF = (getattr(train_pb2.TrainConfig, name) for name in ("AUTO", "ON", "OFF"))


def _network(images: tf.Tensor, activation: str, is_training: bool) -> tf.Tensor:
    """Convolution, depthwise convolution, convolution; batch norm and activation after each."""
    if activation == "folded":
        return _folded_network(images)
    net, activate = images, getattr(tf.nn, activation)
    options = {"normalizer_fn": None, "activation_fn": None, "biases_initializer": None}

    def normalized(values: tf.Tensor, number: int) -> tf.Tensor:
        scope = f"norm{number}"
        return activate(batch_norm(values, scale=True, is_training=is_training, scope=scope))

    net = normalized(slim.conv2d(net, 8, 3, scope="a", **options), 1)
    net = normalized(slim.separable_conv2d(net, None, 3, scope="b", **options), 2)
    net = normalized(slim.conv2d(net, 4, 1, scope="c", **options), 3)
    return slim.conv2d(net, 2, 1, scope="d", **options)


def _folded_network(images: tf.Tensor) -> tf.Tensor:
    """Four convolutions with folded batch norm, one with strides and padding, and pooling."""
    settings = {"scale": True, "is_training": False, "folds": True}
    with slim.arg_scope([slim.conv2d], normalizer_fn=batch_norm, normalizer_params=settings):
        net = slim.max_pool2d(slim.conv2d(images, 8, 1, scope="a"), 2, 1)
        net = slim.conv2d(slim.conv2d(net, 4, 1, scope="b"), 4, 3, scope="c")
        net = tf.pad(net, [[0, 0], [1, 1], [1, 1], [0, 0]])
        net = slim.conv2d(net, 4, 3, 2, "VALID", scope="d")
    return slim.conv2d(net, 2, 1, scope="e")


def _gradients(
    setting: Optional[int], activation: str, is_training: bool, dtype: tf.DType = tf.float32
) -> Tuple[List[np.ndarray], Dict[str, int]]:
    """Gradients of images and weights, and the number of operations of each type.

    With the setting None, no gradient is overridden.
    """
    images = np.random.default_rng(0).normal(size=(2, 9, 7, 3)).astype(np.float32)
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        tf1.set_random_seed(1)
        inputs = tf.constant(images)
        with contextlib.nullcontext() if setting is None else recompute.recomputable():
            outputs = _network(tf.cast(inputs, dtype), activation, is_training)
        loss = tf.reduce_sum(tf.sin(tf.cast(outputs, tf.float32)))
        with contextlib.nullcontext() if setting is None else recompute.recomputing(setting):
            gradients = tf1.gradients(loss, [inputs, *tf1.trainable_variables()])
        session.run(tf1.global_variables_initializer())
        types = [op.type for op in graph.get_operations()]
        gradients = [tf.cast(gradient, tf.float32) for gradient in gradients]
        return session.run(gradients), {kind: types.count(kind) for kind in types}


@pytest.mark.parametrize(
    ("activation", "is_training", "dtype"),
    [
        ("relu", True, tf.float32),
        pytest.param("relu", False, tf.float32, marks=pytest.mark.exhaustive),
        pytest.param("relu6", True, tf.float32, marks=pytest.mark.exhaustive),
        ("relu6", False, tf.float32),
        ("relu6", True, tf.bfloat16),
        ("folded", False, tf.float32),
    ],
)
def test_gradients_are_the_same(activation, is_training, dtype):
    wanted, kept, again = (
        _gradients(setting, activation, is_training, dtype)[0] for setting in (None, OFF, ON)
    )
    assert len(again) == len(kept) == len(wanted) == (15 if activation == "folded" else 11)
    for expected, *gradients in zip(wanted, kept, again):
        for gradient in gradients:
            np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "memory,has_gpu,doubles", [(1000, False, True), (10**9, False, False), (1000, True, False)]
)
def test_auto_decides_by_memory(monkeypatch, memory, has_gpu, doubles):
    monkeypatch.setattr(recompute, "available_memory", lambda: memory)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["it"] * has_gpu)
    _, counts = _gradients(AUTO, "relu", True)
    assert counts["Relu"] == (6 if doubles else 3)


def test_convolutions_with_many_inputs_are_kept(monkeypatch):
    original, off, on = (_gradients(each, "folded", False)[1] for each in (None, OFF, ON))
    monkeypatch.setattr(recompute, "_MAX_PRODUCTS", 35)  # two of four layers have 36
    limited = _gradients(ON, "folded", False)[1]
    assert off["Conv2D"] == original["Conv2D"] < limited["Conv2D"] < on["Conv2D"]
    assert off["Mul"] == original["Mul"] + 4  # scaled kernels, with any setting


def test_a_network_without_batch_norm_is_reported(caplog):
    with tf.Graph().as_default(), contextlib.ExitStack() as stack:
        stack.enter_context(caplog.at_level(logging.WARNING))
        with recompute.recomputable():
            net = slim.conv2d(slim.conv2d(tf.zeros([1, 4, 4, 3]), 4, 3), 2, 1)
        with recompute.recomputing(ON):
            tf1.gradients(tf.reduce_sum(net), tf1.trainable_variables())
    assert "train_config.recompute has no effect" in caplog.text


def test_training_keeps_less(small_network):
    kept, again = (
        graphs.examine(small_config(f"train_config.recompute={setting}", "eval_input_reader=[]"))
        for setting in ("OFF", "ON")
    )
    assert kept.problems == again.problems == []
    assert again.memory.activations < kept.memory.activations

from __future__ import annotations

import functools
from typing import Any, Callable, Dict

import numpy as np
import pytest

from estimator_det.compat import private, tf, tf1
from inputs.machine import has_bfloat16
from model_fn.training import convolution_gradients, recompute

_HAS_KERNELS = has_bfloat16() and private.has_onednn()


@pytest.mark.parametrize("has_bfloat16", [True, False])  # with one of them, as on any machine
@pytest.mark.parametrize(
    "size,strides,width,fast",
    [(99, 1, 3, "Input Filter"), (98, 2, 3, "Filter"), (99, 2, 5, "Input")],
)
def test_depthwise_gradients_in_bfloat16_do_not_add_up_in_it(
    monkeypatch, size, strides, width, fast, has_bfloat16
):
    is_fast = _HAS_KERNELS and has_bfloat16
    monkeypatch.setattr(convolution_gradients, "has_bfloat16", lambda: is_fast)
    shapes = [1, size, size, 4], [width, width, 4, 1]
    strides = [1, strides, strides, 1]
    network = functools.partial(tf.nn.depthwise_conv2d, strides=strides, padding="SAME")
    types = _check_narrow_gradients(network, shapes)
    for name in ("Input", "Filter"):
        wanted = tf.bfloat16 if is_fast and name in fast else tf.float32
        assert types[f"DepthwiseConv2dNativeBackprop{name}"] == wanted


@pytest.mark.parametrize("size,is_product", [(2, True), (6, False)])
def test_kernels_of_small_maps_in_bfloat16_have_products_as_gradients(size, is_product):
    network = functools.partial(tf.nn.conv2d, strides=1, padding="SAME")
    types = _check_narrow_gradients(network, ([1, size, size, 8], [1, 1, 8, 16]))
    assert ("MatMul" in types, "Conv2DBackpropFilter" in types) == (is_product, not is_product)


@pytest.mark.parametrize("depth,is_product", [(128, True), (129, False)])
def test_images_of_small_float32_kernels_have_products_as_gradients(depth, is_product):
    generator = np.random.default_rng(0)
    rows, kernel = (np.float32(generator.uniform(size=each)) for each in ((9, depth), (depth, 128)))
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        images = tf.reshape(rows, [1, 3, 3, depth])
        with recompute.recomputable():
            outputs = tf.nn.conv2d(images, kernel[None, None], 1, "SAME")
        gradient = session.run(tf1.gradients(tf.nn.l2_loss(outputs), images)[0])
    np.testing.assert_allclose(gradient[0], (rows @ kernel @ kernel.T).reshape(3, 3, depth), 1e-5)
    types = {op.type for op in graph.get_operations()}
    assert ("Conv2DBackpropInput" not in types) == is_product


def _check_narrow_gradients(network: Callable[..., Any], shapes: Any) -> Dict[str, tf.DType]:
    """Checks gradients of images and kernel; returns the type of each kind of operation."""
    computed = []
    for dtype in (tf.float32, tf.bfloat16):
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            generator = np.random.default_rng(0)
            operands = [tf.constant(np.float32(generator.uniform(size=each))) for each in shapes]
            with recompute.recomputable():
                outputs = network(*(tf.cast(each, dtype) for each in operands))
            loss = tf.reduce_sum(tf.cast(outputs, tf.float32))
            computed.append(session.run(tf1.gradients(loss, operands)))
    for exact, rounded in zip(*computed):
        np.testing.assert_allclose(rounded, exact, rtol=0.01)
    return {op.type: op.outputs[0].dtype for op in graph.get_operations() if op.outputs}

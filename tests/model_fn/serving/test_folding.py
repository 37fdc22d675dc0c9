"""Batch norm in convolutions: the same values, and where it stays; networks in bfloat16."""

from __future__ import annotations

import collections
from typing import Any, Counter, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import RunError
from inputs import machine
from model_fn.serving.folding import compute_in_bfloat16, fold_batch_norms

pytestmark = pytest.mark.optimized
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(2, 8, 9, 4)).astype(np.float32)


def _filters(*shape: int) -> tf.Tensor:
    return tf.identity(tf.constant(RANDOM.normal(size=shape), tf.float32))


def _norm(features: tf.Tensor, name: str, is_training: bool = False) -> tf.Tensor:
    depth = features.shape[3]
    scale, variance = RANDOM.uniform(0.5, 2, (2, depth)).astype(np.float32)
    offset, mean = RANDOM.normal(size=(2, depth)).astype(np.float32)
    moments = [None, None] if is_training else [tf.constant(mean), tf.constant(variance)]
    affine = tf.identity(tf.constant(scale)), tf.constant(offset)
    outputs = tf1.nn.fused_batch_norm(
        features, *affine, *moments, epsilon=0.1, is_training=is_training, name=name
    )
    return outputs[0]


def _convolve(inputs: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(inputs, filters, 1, "SAME", name="conv")


def _run(graph_def: Any, outputs: List[str]) -> Dict[str, np.ndarray]:
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        values = session.run([f"{name}:0" for name in outputs], {"inputs:0": IMAGES})
    return dict(zip(outputs, values))


def _assert_same(graph: tf.Graph, outputs: List[str]) -> Counter[str]:
    """Folding changes no output; how many operations of each type remain."""
    original = graph.as_graph_def()
    before = original.SerializeToString(deterministic=True)
    folded = fold_batch_norms(original, outputs)
    assert original.SerializeToString(deterministic=True) == before
    expected = _run(original, outputs)
    for name, value in _run(folded, outputs).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
    return collections.Counter(node.op for node in folded.node)


def test_convolutions_and_depthwise_convolutions_contain_their_batch_norm():
    with tf.Graph().as_default() as graph:
        inputs = tf1.placeholder(tf.float32, [None, None, None, 4], name="inputs")
        first = tf.nn.relu6(_norm(_convolve(inputs, _filters(3, 3, 4, 6)), "first"))
        filters = _filters(3, 3, 6, 2)  # two outputs for each of six channels
        depthwise = tf1.nn.depthwise_conv2d_native(first, filters, [1, 2, 2, 1], "SAME")
        tf.nn.relu6(_norm(depthwise, "second"), name="last")
    count = _assert_same(graph, ["last", "second"])
    assert count["BiasAdd"] == 2 and not count["FusedBatchNormV3"]
    assert count["Const"] == 4 and not count["Identity"]  # filters and biases only


@pytest.mark.parametrize("second", [0.1, 1.0])
def test_signatures_share_folded_filters_unless_the_epsilon_differs(second):
    with tf.Graph().as_default() as graph:
        inputs = tf1.placeholder(tf.float32, [None, None, None, 4], name="inputs")
        filters = _filters(3, 3, 4, 5)
        statistics = [tf.constant(RANDOM.uniform(1, 2, 5), tf.float32) for _ in range(4)]
        for name, images, epsilon in (("one", inputs, 0.1), ("other", 2 * inputs, second)):
            features = _convolve(images, filters)
            tf1.nn.fused_batch_norm(
                features, *statistics, epsilon=epsilon, is_training=False, name=name
            )
    count = _assert_same(graph, ["one", "other"])
    if second == 0.1:
        assert count["BiasAdd"] == 2 and count["Const"] == 3  # filters, bias, and the factor 2
    else:
        assert count["FusedBatchNormV3"] == 2


@pytest.mark.parametrize("reason", ["shared filters", "read twice", "output", "training"])
def test_where_batch_norm_stays(reason):
    outputs = ["one"]
    with tf.Graph().as_default() as graph:
        inputs = tf1.placeholder(tf.float32, [None, None, None, 4], name="inputs")
        filters = _filters(3, 3, 4, 5)
        features = _convolve(inputs, filters)
        _norm(features, "one", is_training=reason == "training")
        if reason == "shared filters":
            _norm(_convolve(inputs, filters), "other")
            outputs.append("other")
        elif reason == "read twice":
            tf.nn.relu(features, name="other")
            outputs.append("other")
        elif reason == "output":
            outputs.append("conv")
    count = _assert_same(graph, outputs)
    assert count["FusedBatchNormV3"] > 0 and not count["BiasAdd"]


def test_weights_that_are_not_constants():
    with tf.Graph().as_default() as graph:
        inputs = tf1.placeholder(tf.float32, [None, None, None, 4], name="inputs")
        quantized = tf.quantization.fake_quant_with_min_max_args(_filters(3, 3, 4, 5))
        _norm(_convolve(inputs, quantized), "one")
    assert _assert_same(graph, ["one"])["FusedBatchNormV3"] == 1


def _network(end: str) -> Any:
    """Two convolutions, and what reads the second: boxes of 512 pixels, say."""
    with tf.Graph().as_default() as graph:
        inputs = tf1.placeholder(tf.float32, [None, None, None, 4], name="inputs")
        features = tf.nn.relu6(_convolve(inputs, _filters(3, 3, 4, 8)))
        tf.identity(tf.nn.conv2d(features, _filters(1, 1, 8, 4), 1, "SAME"), name=end)
        tf.add(512.0 * graph.get_tensor_by_name(f"{end}:0"), inputs, name="boxes")
    return graph.as_graph_def()


def test_the_network_alone_computes_in_bfloat16():
    graph = _network("end")
    narrow = compute_in_bfloat16(graph, ["end", "pruned"])
    types = collections.defaultdict(set)
    for node in (node for node in narrow.node if "T" in node.attr):
        types[node.op].add(tf.as_dtype(node.attr["T"].type))
    assert types["Conv2D"] == types["Relu6"] == {tf.bfloat16}
    assert types["Mul"] == types["AddV2"] == {tf.float32}
    if machine.has_bfloat16():
        expected, actual = (_run(each, ["boxes"])["boxes"] for each in (graph, narrow))
        np.testing.assert_allclose(actual, expected, atol=0.02 * np.abs(expected).max())


def test_a_graph_without_a_network_is_refused():
    with pytest.raises(RunError, match="found nothing in the network"):
        compute_in_bfloat16(_network("end"), ["inputs"])

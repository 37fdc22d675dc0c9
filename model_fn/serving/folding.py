"""Makes graphs for inference, whose weights are constants, faster: batch norm, and bfloat16.

When TensorFlow optimizes a graph, it fuses batch norm with most convolutions, but not with
depthwise ones: their scale, offset and activation remain operations of their own. With a bias in
place of the batch norm, both kinds become one kernel with their activation.
"""

from __future__ import annotations

import collections
from typing import Any, Collection, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.compat import private, tf, tf1
from estimator_det.errors import RunError

_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_DEPTHWISE = "DepthwiseConv2dNative"
_CONVOLUTIONS = ("Conv2D", _DEPTHWISE)
_FOLDED, _BIAS = "_folded", "_folded_bias"  # ends of the names of new constants: filters and biases

_Nodes = Dict[str, Any]


class _Pair(NamedTuple):
    """A convolution and the batch norm that alone reads it."""

    convolution: Any  # NodeDef
    norm: Any  # NodeDef
    filters: str  # name of a constant
    # Names of the constants: scale, offset, mean, variance.
    statistics: Tuple[str, ...]


def fold_batch_norms(graph_def: Any, outputs: Collection[str]) -> Any:
    """A copy of a graph for inference in which convolutions contain their batch norm.

    A batch norm becomes a bias under its name, with the same value but for rounding; the value of
    the convolution before it becomes another. Both operations stay as they are if the convolution
    has other readers or is an output, if a weight is not a constant, and if convolutions with
    different statistics share the filters, as a predictor's do: each would need its own copy.

    Args:
        graph_def: `GraphDef`; constants may be read through identities.
        outputs: Names of the operations that are fetched; what they do not need is left out.
    """
    folded = tf1.GraphDef()
    folded.CopyFrom(graph_def)
    nodes = {node.name: node for node in folded.node}
    constants: Dict[str, np.ndarray] = {}
    for pair in _pairs_to_fold(folded, nodes, outputs):
        filters, bias = pair.filters + _FOLDED, pair.filters + _BIAS
        if filters not in constants:
            constants[filters], constants[bias] = _fold(pair, nodes)
        pair.convolution.input[1] = filters
        _make_bias(pair.norm, bias)
    for name, value in constants.items():
        node = folded.node.add(name=name, op="Const")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return tf1.graph_util.extract_sub_graph(folded, list(outputs))


def compute_in_bfloat16(graph_def: Any, predictions: Collection[str]) -> Any:
    """A copy of a graph in which the network computes in bfloat16, and what reads it in float32.

    Boxes in bfloat16 would have a precision of two pixels.

    Args:
        predictions: Names of the operations with which the network ends; others are left out.

    Raises:
        RunError: if nothing of the network can be rewritten.
    """
    names = {node.name for node in graph_def.node}
    ends = sorted(names.intersection(predictions))
    network = tf1.graph_util.extract_sub_graph(graph_def, ends)
    inside = {node.name for node in network.node}
    rest = [node for node in graph_def.node if node.name not in inside]
    read = {_operation(source) for node in rest for source in node.input}
    narrow = private.narrowed_graph(network, sorted({*ends, *read.intersection(inside)}))
    convolutions = [node for node in narrow.node if node.op in _CONVOLUTIONS]
    if all(node.attr["T"].type == tf.float32.as_datatype_enum for node in convolutions):
        raise RunError(
            "precision bfloat16: TensorFlow found nothing in the network that it can compute in "
            "bfloat16. Export in float32, or with TF_ENABLE_ONEDNN_OPTS=1 in the environment"
        )
    del narrow.library.function[:]
    narrow.library.CopyFrom(graph_def.library)
    narrow.node.extend(rest)
    return narrow


def _pairs_to_fold(graph_def: Any, nodes: _Nodes, outputs: Collection[str]) -> List[_Pair]:
    readers = collections.defaultdict(list)
    for node in graph_def.node:
        for source in node.input:
            readers[_operation(source)].append(source)
    norms = collections.defaultdict(set)  # filter -> batch norms that would scale it
    pairs = []
    for norm in graph_def.node:
        pair = _pair(norm, nodes)
        if pair is None:
            continue
        norms[pair.filters].add((*pair.statistics, norm.attr["epsilon"].f))
        is_only_reader = len(readers[pair.convolution.name]) == 1
        # Further outputs are statistics, which a bias does not have.
        has_one_output = all(
            source in (norm.name, f"^{norm.name}") for source in readers[norm.name]
        )
        if is_only_reader and has_one_output and pair.convolution.name not in outputs:
            pairs.append(pair)
    return [pair for pair in pairs if len(norms[pair.filters]) == 1]


def _pair(norm: Any, nodes: _Nodes) -> Optional[_Pair]:
    if norm.op not in _NORMS or norm.attr["is_training"].b:
        return None
    convolution = nodes.get(norm.input[0])
    if convolution is None or convolution.op not in _CONVOLUTIONS:
        return None
    filters, *statistics = (
        _constant(source, nodes) for source in (convolution.input[1], *norm.input[1:5])
    )
    if filters is None or None in statistics:
        return None
    return _Pair(convolution, norm, filters, tuple(name for name in statistics if name))


def _constant(source: str, nodes: _Nodes) -> Optional[str]:
    """Name of the float32 constant that a tensor is, perhaps through identities."""
    node = nodes.get(source)
    while node is not None and node.op == "Identity":
        node = nodes.get(node.input[0])
    if node is None or node.op != "Const" or node.attr["dtype"].type != tf.float32:
        return None
    return str(node.name)


def _operation(source: str) -> str:
    return source.lstrip("^").split(":")[0]


def _fold(pair: _Pair, nodes: _Nodes) -> Tuple[np.ndarray, np.ndarray]:
    """Filters times the scale of each output channel, and the bias that remains."""
    filters, scale, offset, mean, variance = (
        tf.make_ndarray(nodes[name].attr["value"].tensor).astype(np.float64)
        for name in (pair.filters, *pair.statistics)
    )
    factor = scale / np.sqrt(variance + pair.norm.attr["epsilon"].f)
    bias = offset - mean * factor
    if pair.convolution.op == _DEPTHWISE:
        factor = factor.reshape(filters.shape[2:])  # channels, multiplier
    return (filters * factor).astype(np.float32), bias.astype(np.float32)


def _make_bias(norm: Any, bias: str) -> None:
    name, source, layout = norm.name, norm.input[0], norm.attr["data_format"].s
    control = [extra for extra in norm.input if extra.startswith("^")]
    norm.Clear()
    norm.name, norm.op = name, "BiasAdd"
    norm.input.extend([source, bias, *control])
    norm.attr["T"].type = tf.float32.as_datatype_enum
    norm.attr["data_format"].s = layout

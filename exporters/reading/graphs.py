"""Reads layers off a graph: each convolution with the constants that follow it.

Graph optimizers fold batch norm into convolutions, rename operations and merge equal constants, so
layers are found by what operations do. Names decide only which layer is which.
"""

from __future__ import annotations

import collections
import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from exporters.reading.published import Convolution, Named, Norm, Structure

CONVOLUTIONS = {
    "Conv2D": "conv",
    "_FusedConv2D": "conv",
    "DepthwiseConv2dNative": "depthwise",
    "FusedDepthwiseConv2dNative": "depthwise",
    "_FusedDepthwiseConv2dNative": "depthwise",
    "MatMul": "dense",
    "_FusedMatMul": "dense",
}
_POOLS = {"MaxPool": "max_pool", "AvgPool": "average_pool"}
SAME_VALUE = (
    "Identity", "ReadVariableOp", "Enter", "Cast", "CheckNumerics", "StopGradient",
    "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel",
)  # fmt: skip
BATCH_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_DEFAULT_EPSILON = 1e-4  # epsilon of batch norm, which SavedModels without default values leave out
_NOT_DATA = ("Shape", "Assert")
_MAX_DEPTH = 64  # depth of constants that are computed from constants
MAX_NUMBERS = 1 << 28  # numbers in a constant; a few bytes of a file can state any shape


class Node(NamedTuple):
    """An operation."""

    name: str
    op: str
    inputs: Tuple[str, ...]  # names of operations, without control inputs
    epsilon: float = 1e-3  # epsilon of batch norm


class Graph(NamedTuple):
    """Operations by name, and the values of constants and variables among them."""

    nodes: Dict[str, Node]
    arrays: Mapping[str, np.ndarray]


def from_graph_def(graph_def: Any, arrays: Mapping[str, np.ndarray]) -> Graph:
    """The graph of a `GraphDef` message."""
    nodes = {}
    for node in graph_def.node:
        epsilon = node.attr["epsilon"].f if "epsilon" in node.attr else _DEFAULT_EPSILON
        # An epsilon of 0 is a protobuf default that the file left out.
        inputs = tuple(name.split(":")[0] for name in node.input if not name.startswith("^"))
        nodes[node.name] = Node(node.name, node.op, inputs, epsilon or 1e-3)
    return Graph(nodes, arrays)


def read_structure(graph: Graph) -> Structure:
    """The convolutions of a graph in its order."""
    users: Dict[str, List[Node]] = collections.defaultdict(list)
    for node in graph.nodes.values():
        if node.op not in _NOT_DATA:
            for name in dict.fromkeys(node.inputs):
                users[name].append(node)
    convolutions: List[Convolution] = []
    tokens: Dict[str, Tuple[object, ...]] = {}
    for node in graph.nodes.values():
        if node.op in _POOLS:
            tokens[node.name] = (_POOLS[node.op],)
        elif node.op in CONVOLUTIONS and len(node.inputs) > 1:
            layer = _convolution(graph, node, users)
            if layer is not None:
                convolutions.append(layer)
                tokens[node.name] = layer.token
    parents = {name: parents_of(graph, name, tokens) for name in tokens}
    return Structure(tuple(convolutions), tokens, parents)


def image_size(graph: Graph) -> Optional[Tuple[int, int]]:
    """Height and width that the graph resizes images to; None if they are not constant."""
    for node in graph.nodes.values():
        if node.op == "ResizeBilinear" and len(node.inputs) > 1:
            size = evaluate(graph, node.inputs[1])
            # Resizing to a computed size is part of a feature pyramid, not of the input.
            if size is not None and size.shape == (2,):
                return int(size[0]), int(size[1])
    return None


def leaf(graph: Graph, name: str) -> Optional[str]:
    """The constant or variable that an operation passes on unchanged, or is computed from."""
    for _ in range(_MAX_DEPTH):
        if name in graph.arrays:
            return name
        node = graph.nodes.get(name)
        if node is None or not node.inputs:
            return None
        # The first input carries the value; others are shapes, axes or factors.
        name = node.inputs[0]
    return None


def evaluate(
    graph: Graph, name: str, known: Optional[Dict[str, Any]] = None, depth: int = 0
) -> Optional[np.ndarray]:
    """The value of an operation on constants; None if it depends on anything else.

    Args:
        known: Values so far, so that a chain of `y = x * x` is not walked 2 ** n times.
        depth: Number of operations from the first one.
    """
    known = {} if known is None else known
    if name in graph.arrays:
        return np.asarray(graph.arrays[name])
    node = graph.nodes.get(name)
    if name in known or node is None or not node.inputs or depth > _MAX_DEPTH:
        return known.get(name)
    if node.op in SAME_VALUE:
        known[name] = evaluate(graph, node.inputs[0], known, depth + 1)
    elif node.op in _ARITHMETIC:
        values = [evaluate(graph, each, known, depth + 1) for each in node.inputs]
        present = [value for value in values if value is not None]
        known[name] = _compute(node.op, present) if len(present) == len(values) else None
    return known.get(name)


def _compute(op: str, values: List[np.ndarray]) -> Optional[np.ndarray]:
    """The result of an operation; None for values that it does not take."""
    count, compute = _ARITHMETIC[op]
    if len(values) != count:
        return None
    try:
        if (
            op not in ("Reshape", "Transpose")
            and math.prod(np.broadcast_shapes(*map(np.shape, values))) > MAX_NUMBERS
        ):
            return None
        with np.errstate(all="ignore"):  # values that are not finite are refused later, by name
            return np.asarray(compute(*values))
    except (ValueError, TypeError):  # shapes and types that do not fit
        return None


_ARITHMETIC: Dict[str, Tuple[int, Callable[..., Any]]] = {
    "Mul": (2, np.multiply),
    "Add": (2, np.add),
    "AddV2": (2, np.add),
    "Sub": (2, np.subtract),
    "RealDiv": (2, np.divide),
    "Rsqrt": (1, lambda x: 1 / np.sqrt(x)),
    "Sqrt": (1, np.sqrt),
    "Reshape": (2, lambda x, shape: np.reshape(x, shape.astype(int))),
    "Transpose": (2, np.transpose),
}


def _named(graph: Graph, name: str) -> Optional[Named]:
    values = evaluate(graph, name)
    return None if values is None else Named(leaf(graph, name) or name, values)


def _convolution(graph: Graph, node: Node, users: Dict[str, List[Node]]) -> Optional[Convolution]:
    kind = CONVOLUTIONS[node.op]
    weights = _named(graph, node.inputs[1])
    # Weights that depend on the input belong to no layer of a published detector.
    if weights is None or weights.values.ndim != (2 if kind == "dense" else 4):
        return None
    shape = weights.values.shape
    # Depthwise kernels are [h, w, channels, multiplier].
    channels = int(shape[2] * shape[3] if kind == "depthwise" else shape[-1])
    scale, offset, name = None, None, node.name
    if "Fused" in node.op and len(node.inputs) > 2:
        offset = _per_channel(graph, node.inputs[2:3], channels)
    for _ in range(_MAX_DEPTH):
        followers = users.get(name, [])
        # A branch ends the layer: the branches would see different constants.
        if len(followers) != 1:
            break
        (follower,) = followers
        others = [each for each in follower.inputs if each != name]
        if follower.op in BATCH_NORMS and follower.inputs[0] == name:
            norm = _norm(graph, follower, channels)
            return Convolution(node.name, kind, weights, scale, offset, norm)
        if follower.op not in SAME_VALUE or others:
            constant = _per_channel(graph, others, channels)
            if constant is None:
                break
            if follower.op == "Mul":
                # Earlier offsets are multiplied as well: (x + b) * s = x * s + b * s.
                scale = _combined(np.multiply, scale, constant)
                if offset is not None:
                    offset = Named(offset.name, offset.values * constant.values)
            elif follower.op in ("Add", "AddV2", "BiasAdd"):
                offset = _combined(np.add, offset, constant)
            # A constant minus the layer would flip its sign.
            elif follower.op == "Sub" and follower.inputs[0] == name:
                offset = _combined(np.add, offset, constant._replace(values=-constant.values))
            else:
                break
        name = follower.name
    return Convolution(node.name, kind, weights, scale, offset, None)


def _per_channel(graph: Graph, names: Sequence[str], channels: int) -> Optional[Named]:
    """The only constant of some inputs, [channels]; None of several or of another shape."""
    named = _named(graph, names[0]) if len(names) == 1 else None
    # Values per channel have any number of leading dimensions of 1; a number is of an activation.
    if named is None or not named.values.ndim:
        return None
    is_fitting = named.values.size == named.values.shape[-1] == channels
    return Named(named.name, named.values.reshape(-1)) if is_fitting else None


def _combined(combine: Any, earlier: Optional[Named], constant: Named) -> Named:
    if earlier is None:
        return constant
    return Named(constant.name, combine(earlier.values, constant.values))


def _norm(graph: Graph, node: Node, channels: int) -> Optional[Norm]:
    parts = [_named(graph, name) for name in node.inputs[1:]]
    if len(parts) != 4 or any(part and part.values.shape != (channels,) for part in parts):
        return None
    gamma, beta, mean, variance = parts
    if mean is None or variance is None:
        return None
    return Norm(node.name, gamma, beta, mean, variance, node.epsilon)


def parents_of(graph: Graph, name: str, tokens: Mapping[str, object]) -> Tuple[str, ...]:
    """The nearest operations with a token before an operation, from its first input on."""
    # Second inputs are weights.
    waiting = list(graph.nodes[name].inputs[:1])
    seen: Set[str] = set()
    parents = []
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in tokens:
            parents.append(each)
        elif each in graph.nodes and each not in graph.arrays:
            waiting.extend(graph.nodes[each].inputs)
    return tuple(parents)

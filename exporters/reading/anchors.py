"""Anchors that the graph of a published model contains, or computes from constants."""

from __future__ import annotations

import re
from typing import Any, Optional

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.console.printing import plain
from estimator_det.errors import RunError
from exporters.reading.graphs import MAX_NUMBERS, Graph
from exporters.reading.published import damaged

_DECODED = re.compile(r"Decode/get_center_coordinates_and_sizes/transpose$")
_SHAPING = ("Reshape", "Tile", "ExpandDims", "Identity", "Cast")

# Operations that compute anchors from constants; no other operation of a file is ever run.
_COMPUTING = frozenset({
    "Const", "Identity", "Cast", "Add", "AddV2", "Sub", "Mul", "RealDiv", "Sqrt", "Pow", "Range",
    "Pack", "ConcatV2", "Concat", "Concatenate", "Reshape", "ExpandDims", "Tile", "Fill", "Shape",
    "StridedSlice", "Minimum", "Maximum", "Unpack", "Transpose", "Rank", "Size", "Slice",
    "Squeeze", "BroadcastTo", "Div", "FloorDiv", "Floor", "Split", "Less", "LessEqual", "Greater",
    "GreaterEqual", "Equal", "LogicalAnd", "Prod", "OnesLike", "ZerosLike", "Neg",
    "BroadcastArgs", "GatherV2", "Gather",
})  # fmt: skip


def _source(graph: Graph) -> Optional[str]:
    """The operation that makes the anchors, found from where boxes are decoded."""
    for node in graph.nodes.values():
        if _DECODED.search(node.name) and node.inputs:
            name = node.inputs[0]
            for _ in range(len(graph.nodes)):
                inner = graph.nodes.get(name)
                if inner is None or inner.op not in _SHAPING or not inner.inputs:
                    return None if inner is None else name
                name = inner.inputs[0]
    return None


def computed_anchors(graph_def: Any, graph: Graph, path: str) -> Optional[np.ndarray]:
    """float32 [A, 4], ymin, xmin, ymax, xmax, if constants and arithmetic make the anchors."""
    name = _source(graph)
    part = None if name is None else _arithmetic(graph_def, graph, name)
    if part is None:
        return None
    try:
        with tf.Graph().as_default() as computing, tf1.Session() as session:
            tf1.import_graph_def(part, name="")
            for each in computing.get_operations():
                if any((output.shape.num_elements() or 0) > MAX_NUMBERS for output in each.outputs):
                    raise RunError(
                        f"{path}: {plain(each.name)} has more than {MAX_NUMBERS} numbers"
                    )
            values = session.run(computing.get_tensor_by_name(f"{name}:0"))
    # The errors by which TensorFlow refuses a damaged graph.
    except (ValueError, tf.errors.OpError) as error:
        reason = plain(str(error).split("\n")[0])
        raise damaged(f"{path}: the anchors cannot be computed: {reason}") from error
    is_boxes = values.ndim > 1 and values.shape[-1] == 4 and values.dtype.kind == "f"
    return values.reshape(-1, 4).astype(np.float32) if is_boxes else None


def _arithmetic(graph_def: Any, graph: Graph, name: str) -> Optional[Any]:
    """The part of a `GraphDef` before an operation; None if it is more than arithmetic."""
    waiting, needed = [name], set()
    while waiting:
        each = waiting.pop()
        if each in needed:
            continue
        if each not in graph.nodes or graph.nodes[each].op not in _COMPUTING:
            return None
        needed.add(each)
        waiting += graph.nodes[each].inputs
    part = tf1.GraphDef(versions=graph_def.versions)
    for node in graph_def.node:
        if node.name in needed:
            copied = part.node.add()
            copied.CopyFrom(node)
            del copied.input[:]
            copied.input.extend(source for source in node.input if not source.startswith("^"))
    return part

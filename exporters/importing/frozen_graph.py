"""Reads frozen graphs (`frozen_inference_graph.pb`)."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Set

import numpy as np
from google.protobuf.message import DecodeError

from estimator_det.compat import tf, tf1
from estimator_det.config import files
from estimator_det.config.printing import counted, plain
from exporters.importing import anchors, graphs
from exporters.importing.published import FORMATS, Published
from model_fn.checkpoints.errors import RunError


@FORMATS.register("frozen_graph")
def read_frozen_graph(path: str) -> Published:
    """The constants and layers of a frozen graph."""
    graph_def = parse_frozen_graph(path)
    return publish(graph_def, constants(graph_def, path), path)


_MOST_NUMBERS = 1 << 29  # numbers in all constants: a file has 2 GB at most
VARIABLES = ("VariableV2", "Variable", "VarHandleOp")
TFJS_MANIFEST = "weights_manifest.json"  # file name of TensorFlow.js models before 2019
_REMEDY = "Get the file again, or give its format with --from"


def parse_frozen_graph(path: str, remedy: str = _REMEDY) -> Any:
    """The `GraphDef` in a file; RunError if it has variables, whose values are not in it."""
    graph_def = parse_graph(files.read_bytes(path), path, remedy)
    variables = [node.name for node in graph_def.node if node.op in VARIABLES]
    if variables:
        raise RunError(
            f"{path} is a graph with {counted(len(variables), 'variable')}, such as "
            f"{plain(variables[0])}, and contains no weights. Give the frozen graph, in which "
            "they are constants, or import the checkpoint (import --from checkpoint)"
        )
    return graph_def


def parse_graph(content: bytes, path: str, remedy: str = _REMEDY) -> Any:
    """A `GraphDef` of its serialized form."""
    graph_def = tf1.GraphDef()
    try:
        graph_def.ParseFromString(content)
    except DecodeError as error:
        raise RunError(
            f"{path} is not a graph, or is cut off after {len(content)} bytes: {error}. {remedy}"
        ) from error
    if not graph_def.node or not all(node.op for node in graph_def.node):
        raise RunError(f"{path} is not a graph: it contains no operations. {remedy}")
    return graph_def


def number_constants(graph_def: Any) -> List[str]:
    """Names of the constants of a graph that are numbers, not texts."""
    return [node.name for node in graph_def.node if _is_number(node)]


def _is_number(node: Any) -> bool:
    return bool(node.op == "Const" and node.attr["dtype"].type != tf.string.as_datatype_enum)


def zero_constants(graph_def: Any) -> Set[str]:
    """Names of constants without content, which TensorFlow reads as zeros.

    TensorFlow since 2.5 leaves out the content of zeros, so not each of them is a fault.
    """
    names = set()
    for node in filter(_is_number, graph_def.node):
        tensor = node.attr["value"].tensor
        fields = {field.name for field, _ in tensor.ListFields()}
        size = math.prod(dimension.size for dimension in tensor.tensor_shape.dim)
        if size and not fields - _WITHOUT_CONTENT:
            names.add(node.name)
    return names


_WITHOUT_CONTENT = {"dtype", "tensor_shape", "version_number"}


def refuse_without_weights(graph_def: Any, path: str) -> None:
    """Refuses a graph whose layers have weights without content."""
    graph = graphs.from_graph_def(graph_def, {})
    empty = graphs.constant_weights(graph, zero_constants(graph_def))
    if not empty:
        return
    text = (
        f"{path} contains no weights: {counted(len(empty), 'layer')} of it, such as that of the "
        f"constant {plain(empty[0])}, {'has' if len(empty) == 1 else 'have'} none. "
    )
    if files.exists(files.path_in(os.path.dirname(path) or ".", TFJS_MANIFEST)):
        raise RunError(
            f"{text}They are in the files that {TFJS_MANIFEST} beside it names: it is a "
            "TensorFlow.js model; import its folder with estimator-det import --from tfjs"
        )
    raise RunError(f"{text}Get the file again, or the files of its weights")


def constants(graph_def: Any, path: str) -> Dict[str, np.ndarray]:
    """The constants of a graph by name, except texts."""
    constants_by_name = {}
    total = 0
    for node in graph_def.node:
        if not _is_number(node):
            continue
        shape = [dimension.size for dimension in node.attr["value"].tensor.tensor_shape.dim]
        count = math.prod(max(size, 0) for size in shape)
        total += count
        if count > graphs.MAX_NUMBERS or total > _MOST_NUMBERS:
            raise RunError(
                f"{path}: the constant {plain(node.name)} has shape {plain(shape)}: more than "
                f"{graphs.MAX_NUMBERS} numbers in it, or {_MOST_NUMBERS} in all constants. Get the "
                "file again"
            )
        try:
            constants_by_name[node.name] = as_float32(tf.make_ndarray(node.attr["value"].tensor))
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{path}: the constant {plain(node.name)} is damaged: {error}. Get the file again"
            ) from error
    return constants_by_name


def as_float32(values: np.ndarray) -> np.ndarray:
    """Half-precision numbers as float32; others as they are."""
    is_half = values.dtype in (np.float16, tf.bfloat16.as_numpy_dtype)
    return values.astype(np.float32) if is_half else values


def publish(graph_def: Any, arrays: Dict[str, np.ndarray], path: str) -> Published:
    """Contents of a `GraphDef` with the values of its constants and variables."""
    refuse_without_weights(graph_def, path)
    graph = graphs.from_graph_def(graph_def, arrays)
    constants = anchors.constant_anchors(graph)
    if constants is None:
        constants = anchors.computed_anchors(graph_def, graph, path)
    return Published(
        arrays, graphs.read_structure(graph), has_names=True, anchors=constants,
        image_size=graphs.image_size(graph), zeros=frozenset(zero_constants(graph_def)),
    )  # fmt: skip

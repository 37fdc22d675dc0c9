"""Frozen graphs: a `GraphDef` with constants for weights."""

from __future__ import annotations

import math
import os
import re
from typing import Any, Dict, Mapping, Optional, Set

import numpy as np
from google.protobuf.message import DecodeError

from estimator_det import files
from estimator_det.compat import tf, tf1
from estimator_det.console.printing import counted, plain
from estimator_det.errors import RunError
from exporters.formats.base import FORMATS, ExportFormat
from exporters.loaded_model import OUTPUT_PREFIXES, LoadedModel, image_feed
from exporters.network import RestoredNetwork
from exporters.reading import anchors, graphs
from exporters.reading.published import Published, as_float32, damaged, other_format
from model_fn.serving import saved_model as served
from model_fn.serving.folding import fold_batch_norms

FROZEN_GRAPH_FILE = "frozen_inference_graph.pb"
# Field 1 (tag 0x0a) with its length, in it field 1 with its length, and the start of a name.
_FIRST_NODE = re.compile(rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0a[\x80-\xff]?[\x00-\x7f][\w.]")
_MOST_NUMBERS = 1 << 29  # numbers in all constants: a file has 2 GB at most
VARIABLES = ("VariableV2", "Variable", "VarHandleOp")
TFJS_MANIFEST = "weights_manifest.json"  # file name of TensorFlow.js models before 2019
_WITHOUT_CONTENT = {"dtype", "tensor_shape", "version_number"}


@FORMATS.register("frozen_graph")
class FrozenGraph(ExportFormat):
    """The format of the Object Detection API's exporter, `frozen_inference_graph.pb`."""

    name = "frozen_graph"
    file = FROZEN_GRAPH_FILE
    start = _FIRST_NODE

    def write(self, network: RestoredNetwork, path: str) -> bool:
        """Writes the graph of the first input type, with batch norm and weights."""
        if network.constants is None:  # a protobuf file ends at 2 GB
            return False
        outputs = served.output_operations([next(iter(network.definitions.values()))])
        frozen = network.graph_of(outputs)
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(frozen.SerializeToString(deterministic=True))
        return True

    def load(self, path: str) -> GraphDetector:
        """The detector in a frozen graph, of this trainer or of the API."""
        graph_def = parse_frozen_graph(path)
        refuse_without_weights(graph_def, constants(graph_def, path), path)
        return GraphDetector(path, graph_def)

    def read(self, path: str) -> Published:
        return publish(parse_frozen_graph(path), path)


class GraphDetector(LoadedModel):
    """A `GraphDef` with constants for weights.

    Its input is its one placeholder, its outputs are the operations with the names of a served
    model's outputs. It runs with batch norm folded into convolutions.
    """

    def __init__(self, path: str, graph_def: Any) -> None:
        super().__init__(path)
        with tf.Graph().as_default() as graph:
            try:
                tf.import_graph_def(graph_def, name="")
            except (ValueError, tf.errors.OpError) as error:
                reason = str(error).splitlines()[0]
                raise RunError(
                    f"{path} cannot be loaded: {reason}. The file is damaged, or needs operations "
                    "that TensorFlow does not have; export the checkpoint again"
                ) from error
        image = self._find_input(graph).op.name
        outputs = [
            node.name
            for node in graph.get_operations()
            if node.outputs and "/" not in node.name and node.name.startswith(OUTPUT_PREFIXES)
        ]
        self.refuse_unless(True, [image], outputs)
        # Unlike the file, the imported graph has the attributes that equal their defaults.
        folded = fold_batch_norms(graph.as_graph_def(), [image, *outputs])
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(folded, name="")
        self._session = tf1.Session(graph=graph)
        self._placeholder = graph.get_tensor_by_name(f"{image}:0")
        self._outputs = {name: graph.get_tensor_by_name(f"{name}:0") for name in outputs}

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        feed = {self._placeholder: image_feed(self._placeholder, images)}
        return dict(self._session.run(self._outputs, feed))

    def _find_input(self, graph: tf.Graph) -> tf.Tensor:
        placeholders = [
            node.outputs[0] for node in graph.get_operations() if node.type == "Placeholder"
        ]
        names = [tensor.op.name for tensor in placeholders]
        # Other placeholders are context features or training flags, which an image does not set.
        if len(placeholders) != 1 or placeholders[0].dtype not in (tf.uint8, tf.float32, tf.string):
            raise RunError(
                f"{self.path} is not a detector that takes images only: its inputs are {names}; "
                "call its graph directly"
            )
        self.take_input(placeholders[0].shape, "call its graph directly")
        return placeholders[0]


def parse_frozen_graph(path: str) -> Any:
    """The `GraphDef` in a file; RunError if it has variables, whose values are not in it."""
    graph_def = parse_graph(files.read_bytes(path), path)
    variables = [node.name for node in graph_def.node if node.op in VARIABLES]
    if variables:
        raise RunError(
            f"{path} is a graph with {counted(len(variables), 'variable')}, such as "
            f"{plain(variables[0])}, and contains no weights. Give the frozen graph, in which "
            "they are constants, or import the checkpoint (import --from checkpoint)"
        )
    return graph_def


def parse_graph(content: bytes, path: str) -> Any:
    """A `GraphDef` of its serialized form."""
    graph_def = tf1.GraphDef()
    try:
        graph_def.ParseFromString(content)
    except DecodeError as error:
        raise other_format(
            f"{path} is not a graph, or is cut off after {len(content)} bytes: {error}"
        ) from error
    if not graph_def.node or not all(node.op for node in graph_def.node):
        raise other_format(f"{path} is not a graph: it contains no operations")
    return graph_def


def is_number(node: Any) -> bool:
    """True for a constant that is not a text."""
    return bool(node.op == "Const" and node.attr["dtype"].type != tf.string.as_datatype_enum)


def zero_constants(graph_def: Any) -> Set[str]:
    """Names of constants without content, which TensorFlow reads as zeros.

    TensorFlow since 2.5 leaves out the content of zeros, so not each of them is a fault.
    """
    names = set()
    for node in filter(is_number, graph_def.node):
        tensor = node.attr["value"].tensor
        fields = {field.name for field, _ in tensor.ListFields()}
        size = math.prod(dimension.size for dimension in tensor.tensor_shape.dim)
        if size and not fields - _WITHOUT_CONTENT:
            names.add(node.name)
    return names


def refuse_without_weights(graph_def: Any, arrays: Dict[str, np.ndarray], path: str) -> None:
    """Refuses a graph whose layers have weights without content."""
    zeros = {name: arrays[name] for name in zero_constants(graph_def) & arrays.keys()}
    # A graph without other constants has no other layers.
    layers = graphs.read_structure(graphs.from_graph_def(graph_def, zeros)).convolutions
    if not layers:
        return
    text = (
        f"{path} contains no weights: {counted(len(layers), 'layer')} of it, such as the layer of "
        f"the constant {plain(layers[0].weights.name)}, "
        f"{'has' if len(layers) == 1 else 'have'} none. "
    )
    if files.exists(os.path.join(os.path.dirname(path) or ".", TFJS_MANIFEST)):
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
        if not is_number(node):
            continue
        shape = [dimension.size for dimension in node.attr["value"].tensor.tensor_shape.dim]
        count = math.prod(max(size, 0) for size in shape)
        total += count
        if count > graphs.MAX_NUMBERS or total > _MOST_NUMBERS:
            raise damaged(
                f"{path}: the constant {plain(node.name)} has shape {plain(shape)}: more than "
                f"{graphs.MAX_NUMBERS} numbers in it, or {_MOST_NUMBERS} in all constants"
            )
        try:
            constants_by_name[node.name] = as_float32(tf.make_ndarray(node.attr["value"].tensor))
        except (ValueError, TypeError) as error:
            raise damaged(f"{path}: the constant {plain(node.name)} is damaged: {error}") from error
    return constants_by_name


def publish(
    graph_def: Any, path: str, variables: Optional[Mapping[str, np.ndarray]] = None
) -> Published:
    """Contents of a `GraphDef`, with values of its variables by name."""
    arrays = {**constants(graph_def, path), **(variables or {})}
    refuse_without_weights(graph_def, arrays, path)
    graph = graphs.from_graph_def(graph_def, arrays)
    return Published(
        arrays,
        graphs.read_structure(graph),
        has_names=True,
        anchors=anchors.computed_anchors(graph_def, graph, path),
        image_size=graphs.image_size(graph),
        zeros=frozenset(zero_constants(graph_def)),
    )

"""TensorFlow.js graph models: `model.json` and shards of weights.

TensorFlow.js runs in browsers. `load` splits the converter's fused operations into their parts, and
runs the written graph and weights in TensorFlow.

Models before 2019 have a graph without contents of constants, `tensorflowjs_model.pb`, and beside
it `weights_manifest.json`, which names the shards.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import posixpath
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
from google.protobuf import json_format

from estimator_det import files
from estimator_det.compat import tf, tf1
from estimator_det.console.printing import counted, plain
from estimator_det.errors import RunError, UsageError
from exporters.formats.base import FORMATS, first_bytes
from exporters.formats.converters import GraphFormat
from exporters.formats.frozen_graph import (
    TFJS_MANIFEST,
    GraphDetector,
    is_number,
    parse_graph,
    publish,
)
from exporters.loaded_model import parent_folder
from exporters.reading import graphs
from exporters.reading.published import Published, damaged, other_format

MODEL_FOLDER = "tfjs"
MODEL_FILE = "model.json"
OLD_GRAPH_FILE = "tensorflowjs_model.pb"
_JSON_START = re.compile(rb"(\xef\xbb\xbf)?\s*\{")
_TYPES = {"float32": "<f4", "float16": "<f2", "int32": "<i4", "uint8": "u1", "uint16": "<u2",
          "bool": "?", "int8": "i1", "int16": "<i2"}  # fmt: skip
_DAMAGE = (KeyError, TypeError, AttributeError, ValueError, OverflowError)
_DEFAULT_EPSILON = 1e-3  # epsilon of batch norm in TensorFlow.js
# Fused operation of the converter -> its first part.
_FUSED = {
    "_FusedConv2D": "Conv2D",
    "FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
}
# Types of constants.
_NUMBERS = {
    each.as_datatype_enum: each
    for each in (tf.bool, tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.float32)
}
_OWN_ATTRIBUTES = ("fused_ops", "num_args", "epsilon", "leakyrelu_alpha", "explicit_paddings")


def _convert(graph: str, image: str, outputs: List[str], path: str) -> None:
    import copy
    import sys
    import types

    # The converter imports decision forests, which detectors do not have; releases of that package
    # need another protobuf than TensorFlow.
    name = "tensorflow_decision_forests"
    sys.modules[name] = types.ModuleType(name)
    from tensorflowjs.converters import graph_rewrite_util
    from tensorflowjs.converters.converter import pip_main

    # Its own takes the input `sub_1` of a function's node for the constant `sub`.
    def rename_constants(nodes: Any, prefix: str) -> Any:
        constants = {node.name for node in nodes if node.op == "Const"}
        renamed = copy.deepcopy(list(nodes))
        for node in renamed:
            if node.op == "Const":
                node.name = f"{prefix}/{node.name}"
            for number, name in enumerate(node.input):
                if name.split(":")[0] in constants:
                    node.input[number] = f"{prefix}/{name}"
        return renamed

    graph_rewrite_util.rename_constants = rename_constants
    names = f"--output_node_names={','.join(outputs)}"
    sys.argv[1:] = ["--input_format=tf_frozen_model", names, graph, path]
    pip_main()


@FORMATS.register("tfjs")
class Tfjs(GraphFormat):
    """The format of TensorFlow.js."""

    name = "tfjs"
    file = MODEL_FOLDER
    converter = ("tensorflowjs",)
    convert = staticmethod(_convert)

    def recognizes(self, path: str) -> bool:
        return _has_topology(_model_file(path))

    def load(self, path: str) -> GraphDetector:
        return GraphDetector(parent_folder(_model_file(path)), read_graph_model(path))

    def read(self, path: str) -> Published:
        return publish(read_graph_model(path), path)


def _damaged_graph(path: str, what: str) -> RunError:
    return damaged(f"{path}: modelTopology is damaged: {what}")


def with_constants(graph_def: Any, arrays: Mapping[str, np.ndarray], path: str) -> Any:
    """A copy of a graph as a frozen graph of TensorFlow: with its weights, nothing fused.

    The constants of its functions, which are conditions and bodies of loops, are filled, too.
    """
    copied = tf1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if node.op in _FUSED:
            _add_unfused(copied, node, path)
        else:
            copied.node.add().CopyFrom(node)
    functions = [function.node_def for function in copied.library.function]
    nodes = list(itertools.chain(copied.node, *functions))
    missing = [node.name for node in nodes if is_number(node) and node.name not in arrays]
    if missing:
        raise damaged(
            f"{path}: weightsManifest has no weights for {counted(len(missing), 'constant')}, such "
            f"as {plain(missing[0])}"
        )
    for node in nodes:
        if node.op in graphs.BATCH_NORMS and "epsilon" not in node.attr:
            node.attr["epsilon"].f = _DEFAULT_EPSILON
        if is_number(node):
            dtype = _NUMBERS.get(node.attr["dtype"].type)
            if dtype is None:
                raise _damaged_graph(path, f"the constant {plain(node.name)} is not numbers")
            values = np.asarray(arrays[node.name]).astype(dtype.as_numpy_dtype)
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, dtype))
    return copied


def _add_unfused(graph_def: Any, node: Any, path: str) -> None:
    """Adds a fused operation as the first one, and those after it, the last under its name."""
    steps = [name.decode("utf-8", "replace") for name in node.attr["fused_ops"].list.s]
    # A damaged file must not end as an IndexError.
    if len(node.input) < 2 + steps.count("BiasAdd"):
        what = f"{plain(node.name)} has {len(node.input)} inputs, too few for {plain(steps)}"
        raise _damaged_graph(path, what)
    first = graph_def.node.add(name=f"{node.name}/{_FUSED[node.op]}", op=_FUSED[node.op])
    first.input.extend(node.input[:2])
    for key, value in node.attr.items():
        if key not in _OWN_ATTRIBUTES:
            first.attr[key].CopyFrom(value)
    previous, extra = first.name, list(node.input[2:])
    for number, step in enumerate(steps, 1):
        # The last step takes the fused operation's name, because others refer to that.
        name = node.name if number == len(steps) else f"{node.name}/{step}"
        new = graph_def.node.add(name=name, op=step)
        new.input.append(previous)
        if step == "BiasAdd":
            new.input.append(extra.pop(0))
        new.attr["T"].CopyFrom(node.attr["T"])
        previous = name


def read_graph_model(path: str) -> Any:
    """The `GraphDef` of a model, with the weights that are in other files."""
    path = _model_file(path)
    if path.endswith(".pb"):
        graph_def = parse_graph(files.read_bytes(path), path)
        path, manifest = _old_manifest(path)
    else:
        model = _parse(path)
        graph_def, manifest = _graph(model["modelTopology"], path), model["weightsManifest"]
    arrays: Dict[str, np.ndarray] = {}
    try:
        for group in manifest:
            arrays.update(_read_group(group, os.path.dirname(path) or ".", path))
    except _DAMAGE as error:
        raise damaged(f"{path}: weightsManifest is damaged: {error!r}") from error
    return with_constants(graph_def, arrays, path)


def _model_file(path: str) -> str:
    """The file of the graph: `model.json`, also renamed, or the `.pb` file of an older model."""
    if not tf.io.gfile.isdir(path):
        # Users name the manifest, which is the larger text file, instead of the graph.
        older = os.path.join(os.path.dirname(path) or ".", OLD_GRAPH_FILE)
        is_manifest = os.path.basename(path) == TFJS_MANIFEST
        return older if is_manifest and files.exists(older) else path
    names = sorted(tf.io.gfile.listdir(path))
    usual = [name for name in (MODEL_FILE, OLD_GRAPH_FILE) if name in names]
    renamed = (
        name for name in names if name.endswith(".json") and _has_topology(os.path.join(path, name))
    )
    # A manifest without a graph, which is refused with a reason.
    manifests = (name for name in names if name.endswith(TFJS_MANIFEST))
    return os.path.join(path, next(itertools.chain(usual, renamed, manifests), MODEL_FILE))


def _has_topology(path: str) -> bool:
    """True for a JSON file with a graph."""
    # Other files are not read, because models may be large.
    if not files.exists(path) or not _JSON_START.match(first_bytes(path)):
        return False
    return b'"modelTopology"' in files.read_bytes(path)


def _parse(path: str) -> Dict[str, Any]:
    model = _parse_json(path)
    is_dictionary = isinstance(model, dict)
    # Tell weights without a graph from files of another kind: the remedies differ.
    if not is_dictionary or "modelTopology" not in model:
        if (is_dictionary and "weightsManifest" in model) or _is_manifest(model):
            raise RunError(
                f"{_manifests(path)} without a graph: it names weights and no operations. Give the "
                f"folder of the whole model, which also has {OLD_GRAPH_FILE}, or {MODEL_FILE} with "
                "a modelTopology"
            )
        raise other_format(f"{path} is not a TensorFlow.js model: it has no modelTopology")
    if "weightsManifest" not in model:
        raise RunError(
            f"{path} has no weightsManifest, so it names no weights; convert the original model "
            "again"
        )
    return model


def _manifests(path: str) -> str:
    """Says that a manifest, or each of those in its folder, is weights."""
    folder = os.path.dirname(path) or "."
    names = [each for each in sorted(tf.io.gfile.listdir(folder)) if each.endswith(TFJS_MANIFEST)]
    if len(names) < 2:
        return f"{path} is weights"
    return f"{folder}: {', '.join(map(plain, names))} are weights"


def _parse_json(path: str) -> Any:
    content = files.read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunError(
            f"{path} is not text: byte {content[error.start]:#04x} at position {error.start}. "
            f"Files such as .bin are shards of weights. Give the {MODEL_FILE} that names them, or "
            "the folder of the model"
        ) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers of too many digits
        raise other_format(f"{path} is not a TensorFlow.js model: {error}") from error


def _is_manifest(content: Any) -> bool:
    """True for groups of weights, as the manifest of an older model has them."""
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(group, dict) and "weights" in group for group in content)
    )


def _old_manifest(path: str) -> Tuple[str, List[Any]]:
    """The file of the manifest beside the graph of an older model, and its groups of weights."""
    manifest_path = os.path.join(os.path.dirname(path) or ".", TFJS_MANIFEST)
    if not files.exists(manifest_path):
        raise RunError(
            f"{path} has no {TFJS_MANIFEST} beside it, which names the files of its weights. "
            "Give the folder of the whole model, or --from frozen_graph if it contains weights"
        )
    manifest = _parse_json(manifest_path)
    if not _is_manifest(manifest):
        raise damaged(f"{manifest_path} is not a list of groups of weights")
    return manifest_path, manifest


def _graph(topology: Any, path: str) -> Any:
    """The `GraphDef` of a modelTopology."""
    if not isinstance(topology, dict) or not isinstance(topology.get("node"), list):
        raise RunError(
            f"{path} is not a graph model: its modelTopology has no nodes. Layers models of Keras "
            "are not supported; convert the SavedModel or the frozen graph instead"
        )
    try:
        for node in topology["node"]:
            for value in node.get("attr", {}).values():
                if "s" in value:
                    value["s"] = _as_base64(value["s"])
                if "s" in value.get("list", {}):
                    value["list"]["s"] = list(map(_as_base64, value["list"]["s"]))
        return json_format.ParseDict(topology, tf1.GraphDef(), ignore_unknown_fields=True)
    except (json_format.ParseError, *_DAMAGE) as error:
        raise _damaged_graph(path, plain(error).rstrip(".")) from error


def _as_base64(text: Any) -> Any:
    """A text as protobuf reads it; some converters write the numbers of its bytes."""
    return base64.b64encode(bytes(text)).decode() if isinstance(text, list) else text


def _read_group(group: Dict[str, Any], folder: str, path: str) -> Dict[str, np.ndarray]:
    # Weights may begin in one shard and end in the next.
    content = b"".join(_read_shard(name, folder, path) for name in group["paths"])
    arrays = {}
    position = 0
    for entry in group["weights"]:
        if entry["dtype"] == "string":
            raise RunError(f"{path}: weights {entry['name']!r} are text, which is not supported")
        values, position = _read_weights(entry, content, position, path)
        arrays[entry["name"]] = values
    # Bytes without a name mean that the manifest is of another model.
    if position != len(content):
        raise damaged(
            f"{path}: the shards {group['paths']} have {len(content)} bytes, and its weights "
            f"{position}"
        )
    return arrays


def _read_shard(name: str, folder: str, path: str) -> bytes:
    """The content of a file directly in the folder of the model or below it."""
    target = _inside(folder, name)
    if target is None:
        raise RunError(
            f"{path}: weightsManifest names the shard {name!r}, which is outside the folder of the "
            "model. Only files in that folder are read; do not trust this model"
        )
    try:
        content = files.read_bytes(target)
    except UsageError as error:
        raise damaged(f"{path}: the shard {name!r} cannot be read: {error}") from error
    if not content:
        raise damaged(f"{path}: the shard {name!r} is empty (0 bytes)")
    return content


def _inside(folder: str, name: str) -> Optional[str]:
    """The path of a file below a folder, local or remote; None where the name leads elsewhere."""
    if files.is_remote(folder):
        inner = posixpath.normpath(name)
        leads_out = inner.startswith(("/", "..")) or inner == "." or files.is_remote(name)
        return None if leads_out else os.path.join(folder, inner)
    # Symbolic links must not lead out of the folder either.
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, name))
    return target if os.path.commonpath([root, target]) == root and target != root else None


def _read_weights(
    entry: Dict[str, Any], content: bytes, position: int, path: str
) -> Tuple[np.ndarray, int]:
    """An array of the manifest and the position after it; quantized numbers become float32."""
    quantization = entry.get("quantization")
    stored = quantization["dtype"] if quantization else entry["dtype"]
    shape: List[int] = [int(size) for size in entry["shape"]]
    if stored not in _TYPES or any(size < 0 for size in shape):
        raise RunError(
            f"{path}: weights {entry['name']!r} have type {stored!r} and shape {shape}, which is "
            f"not supported; types: {sorted(_TYPES)}"
        )
    dtype = np.dtype(_TYPES[stored])
    # In Python's integers: NumPy's would overflow with the sizes of a hostile file.
    count = math.prod(shape)
    end = position + count * dtype.itemsize
    if end > len(content):
        raise damaged(
            f"{path}: the shards end after {len(content)} bytes, inside weights {entry['name']!r}, "
            f"which need {end}"
        )
    values = np.frombuffer(content, dtype, count, position).reshape(shape)
    if quantization and "scale" in quantization:
        # In float32, like TensorFlow.js computes it.
        scale, least = np.float32(quantization["scale"]), np.float32(quantization["min"])
        values = values.astype(np.float32) * scale + least
    elif dtype.kind == "f":
        values = values.astype(np.float32)
    return values, end

"""Reads TensorFlow.js graph models: a `model.json` and the shards of weights that it names.

Models before 2019 have a graph without contents of constants, `tensorflowjs_model.pb`, and beside
it `weights_manifest.json`, which names the shards.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from google.protobuf import json_format

from estimator_det.compat import tf, tf1
from estimator_det.config import files
from estimator_det.config.printing import counted, plain
from estimator_det.config.text import ConfigError
from exporters.importing import anchors, frozen_graph, graphs
from exporters.importing.frozen_graph import TFJS_MANIFEST
from exporters.importing.published import FORMATS, Published
from model_fn.checkpoints.errors import RunError

MODEL_FILE = "model.json"
OLD_GRAPH_FILE = "tensorflowjs_model.pb"
_TYPES = {"float32": "<f4", "float16": "<f2", "int32": "<i4", "uint8": "u1", "uint16": "<u2",
          "bool": "?", "int8": "i1", "int16": "<i2"}  # fmt: skip
_DAMAGE = (KeyError, TypeError, AttributeError, ValueError, OverflowError)
_DEFAULT_EPSILON = 1e-3  # epsilon of batch norm in TensorFlow.js
_AGAIN = "Get the model again from its publisher"


@FORMATS.register("tfjs")
def read_tfjs(path: str) -> Published:
    """The constants and layers of a graph model; `path` is its folder, or the graph in it."""
    graph_def, arrays = read_graph_model(path)
    graph = graphs.from_graph_def(graph_def, arrays, default_epsilon=_DEFAULT_EPSILON)
    return Published(
        arrays,
        graphs.read_structure(graph),
        has_names=True,
        anchors=anchors.constant_anchors(graph),
        image_size=graphs.image_size(graph),
    )


def read_graph_model(path: str) -> Tuple[Any, Dict[str, np.ndarray]]:
    """The `GraphDef` of a model, and by name its weights, which the graph does not contain."""
    path = _graph_file(path)
    if path.endswith(".pb"):
        graph_def = frozen_graph.parse_graph(files.read_bytes(path), path, _AGAIN)
        path, manifest = _old_manifest(path)
    else:
        model = _parse(path)
        graph_def, manifest = _graph(model["modelTopology"], path), model["weightsManifest"]
    arrays: Dict[str, np.ndarray] = {}
    try:
        for group in manifest:
            arrays.update(_read_group(group, os.path.dirname(path) or ".", path))
    except _DAMAGE as error:
        raise RunError(f"{path}: weightsManifest is damaged: {error!r}. {_AGAIN}") from error
    missing = [name for name in frozen_graph.number_constants(graph_def) if name not in arrays]
    if missing:
        raise RunError(
            f"{path}: weightsManifest has no weights for {counted(len(missing), 'constant')}, such "
            f"as {plain(missing[0])}. {_AGAIN}"
        )
    return graph_def, arrays


def _graph_file(path: str) -> str:
    """The file of the graph: `model.json`, or the `.pb` file of an older model."""
    if not tf.io.gfile.isdir(path):
        # Users name the manifest, which is the larger text file, instead of the graph.
        older = files.path_in(os.path.dirname(path) or ".", OLD_GRAPH_FILE)
        is_manifest = os.path.basename(path) == TFJS_MANIFEST
        return older if is_manifest and files.exists(older) else path
    names = [
        name for name in (MODEL_FILE, OLD_GRAPH_FILE) if files.exists(files.path_in(path, name))
    ]
    names += [name for name in tf.io.gfile.listdir(path) if name.endswith(TFJS_MANIFEST)]
    return files.path_in(path, (names or [MODEL_FILE])[0])


def _parse(path: str) -> Dict[str, Any]:
    model = _parse_json(path)
    is_dictionary = isinstance(model, dict)
    # Tell weights without a graph from files of another kind: the remedies differ.
    if not is_dictionary or "modelTopology" not in model:
        if (is_dictionary and "weightsManifest" in model) or _is_manifest(model):
            raise RunError(
                f"{path} is weights without a graph: it names weights and no operations. Give the "
                f"folder of the whole model, which also has {OLD_GRAPH_FILE}, or {MODEL_FILE} with "
                "a modelTopology"
            )
        raise RunError(f"{path} is not a TensorFlow.js model: it has no modelTopology. {_AGAIN}")
    if "weightsManifest" not in model:
        raise RunError(
            f"{path} has no weightsManifest, so it names no weights; convert the original model "
            "again"
        )
    return model


def _parse_json(path: str) -> Any:
    text = files.read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers of too many digits
        raise RunError(f"{path} is not a TensorFlow.js model: {error}. {_AGAIN}") from error


def _is_manifest(content: Any) -> bool:
    """True for groups of weights, as the manifest of an older model has them."""
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(group, dict) and "weights" in group for group in content)
    )


def _old_manifest(path: str) -> Tuple[str, List[Any]]:
    """The file of the manifest beside the graph of an older model, and its groups of weights."""
    manifest_path = files.path_in(os.path.dirname(path) or ".", TFJS_MANIFEST)
    if not files.exists(manifest_path):
        raise RunError(
            f"{path} has no {TFJS_MANIFEST} beside it, which names the files of its weights. "
            "Give the folder of the whole model, or --from frozen_graph if it contains weights"
        )
    manifest = _parse_json(manifest_path)
    if not _is_manifest(manifest):
        raise RunError(f"{manifest_path} is not a list of groups of weights. {_AGAIN}")
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
        raise RunError(
            f"{path}: modelTopology is damaged: {plain(error).rstrip('.')}. {_AGAIN}"
        ) from error


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
        values, position = _take(entry, content, position, path)
        arrays[entry["name"]] = values
    # Bytes without a name mean that the manifest is of another model.
    if position != len(content):
        raise RunError(
            f"{path}: the shards {group['paths']} have {len(content)} bytes, and its weights "
            f"{position}. {_AGAIN}"
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
    except ConfigError as error:
        raise RunError(f"{path}: the shard {name!r} cannot be read: {error}. {_AGAIN}") from error
    if not content:
        raise RunError(f"{path}: the shard {name!r} is empty (0 bytes). {_AGAIN}")
    return content


def _inside(folder: str, name: str) -> Optional[str]:
    """The path of a file below a folder, local or remote; None where the name leads elsewhere."""
    if files.is_remote(folder):
        inner = posixpath.normpath(name)
        leads_out = inner.startswith(("/", "..")) or inner == "." or files.is_remote(name)
        return None if leads_out else files.path_in(folder, inner)
    # Symbolic links must not lead out of the folder either.
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, name))
    return target if os.path.commonpath([root, target]) == root and target != root else None


def _take(entry: Dict[str, Any], content: bytes, position: int, path: str) -> Any:
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
    count = 1
    for size in shape:
        count *= size
    end = position + count * dtype.itemsize
    if end > len(content):
        raise RunError(
            f"{path}: the shards end after {len(content)} bytes, inside weights {entry['name']!r}, "
            f"which need {end}. {_AGAIN}"
        )
    values = np.frombuffer(content, dtype, count, position).reshape(shape)
    if quantization and "scale" in quantization:
        # In float32, like TensorFlow.js computes it.
        scale, least = np.float32(quantization["scale"]), np.float32(quantization["min"])
        values = values.astype(np.float32) * scale + least
    elif dtype.kind == "f":
        values = values.astype(np.float32)
    return values, end

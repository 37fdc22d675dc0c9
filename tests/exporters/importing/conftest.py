"""A small trained detector as others publish theirs: frozen, folded, as TF.js and as TFLite."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
import pytest
from google.protobuf import json_format

from estimator_det.compat import tf, tf1
from exporters.formats.frozen_graph import constants
from exporters.importing.own_model import OwnModel, build_own_model
from tests import small_extractor
from tests.exporters import conftest as exporting

NORM = "FusedBatchNormV3"


class Original(NamedTuple):
    """A frozen graph with batch norm, and what it consists of."""

    config: Any
    graph_def: Any
    arrays: Dict[str, np.ndarray]  # constants by name
    own: OwnModel


def set_constant(graph_def: Any, name: str, values: np.ndarray) -> None:
    """Sets a constant, which is appended if there is none of this name."""
    nodes = {node.name: node for node in graph_def.node}
    node = nodes.get(name) or graph_def.node.add(name=name, op="Const")
    values = np.asarray(values, np.float32)
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))


@pytest.fixture(scope="session")
def original() -> Original:
    """A model of random weights, with random parameters and statistics of batch norm."""
    config = exporting.small_config()
    with pytest.MonkeyPatch.context() as patch:
        small_extractor.use(patch)
        own = build_own_model(config)
    random = np.random.default_rng(3)
    heads = [f"{scope}/BiasAdd" for scope in head_scopes(own)]
    values = {
        name: random.uniform(*((0.5, 2.0) if "/BatchNorm/" in name else (-0.2, 0.2)), shape)
        for name, shape in own.shapes.items()
    }
    with own.graph.as_default(), tf1.Session() as session:
        own.load(session, values)
        graph_def = tf1.graph_util.convert_variables_to_constants(
            session, own.graph.as_graph_def(), heads
        )
    return Original(config, graph_def, constants(graph_def, "a.pb"), own)


def head_scopes(own: OwnModel) -> List[str]:
    """Scopes of the layers that predict."""
    names = [each.weights.name for each in own.structure.convolutions]
    return [name.rpartition("/")[0] for name in names if "Predictor" in name]


def folded(original: Original, scaled: str = "Second") -> Any:
    """The graph with batch norm in constants, as TensorFlow's graph optimizer leaves it.

    The scale of layer `scaled` stays a multiplication; other scales are in the weights.
    """
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(original.graph_def)
    nodes = {node.name: node for node in graph_def.node}
    arrays = original.arrays
    for node in [each for each in graph_def.node if each.op == NORM]:
        scope = node.name[: -len(f"/{NORM}")]
        gamma, beta, mean, variance = (
            arrays[f"{scope}/{part}"]
            for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        scale = gamma / np.sqrt(variance + np.float32(node.attr["epsilon"].f))
        layer = nodes[node.input[0]]
        layer_scope = scope[: -len("/BatchNorm")]
        before = layer.name
        if scaled in layer_scope:
            before = f"{scope}/batchnorm/mul_1"
            set_constant(graph_def, f"{node.name}/Scaled", scale)
            graph_def.node.add(name=before, op="Mul", input=[layer.name, f"{node.name}/Scaled"])
        else:
            weights = f"{layer_scope}/Conv2D/merged_input"
            set_constant(graph_def, weights, arrays[f"{layer_scope}/weights"] * scale)
            layer.input[1] = weights
        set_constant(graph_def, f"{node.name}/Offset", beta - mean * scale)
        node.op = "Add"
        del node.input[:]
        node.input.extend([before, f"{node.name}/Offset"])
    used = [each.name for each in graph_def.node if each.name.endswith("/BiasAdd")]
    return tf1.graph_util.extract_sub_graph(graph_def, used)


def raw_outputs(own: OwnModel, values: Dict[str, np.ndarray]) -> List[np.ndarray]:
    """Outputs of all heads of the model with these variables on a random image."""
    image = np.random.default_rng(5).integers(0, 256, (1, 64, 96, 3), dtype=np.uint8)
    heads = [f"{scope}/BiasAdd:0" for scope in head_scopes(own)]
    with own.graph.as_default(), tf1.Session() as session:
        own.load(session, values)
        return session.run(heads, {own.images: image})


def _without_weights(graph_def: Any) -> Tuple[Any, Dict[str, np.ndarray]]:
    """A copy of a graph whose constants have no content, and their values by name."""
    stripped, arrays = tf1.GraphDef(), {}
    stripped.CopyFrom(graph_def)
    functions = [function.node_def for function in stripped.library.function]
    for node in itertools.chain(stripped.node, *functions):
        if node.op == "Const" and node.attr["dtype"].type != tf.string.as_datatype_enum:
            tensor = node.attr["value"].tensor
            values = tf.make_ndarray(tensor)
            # TensorFlow.js has one type of whole numbers.
            arrays[node.name] = values.astype(np.int32) if values.dtype.kind == "i" else values
            tensor.CopyFrom(type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape))
    return stripped, arrays


def _write_shards(arrays: Dict[str, np.ndarray], folder: pathlib.Path) -> List[Any]:
    """Writes two files of weights; returns the manifest that names them."""
    content = b"".join(values.tobytes() for values in arrays.values())
    folder.mkdir(exist_ok=True)
    (folder / "shard1").write_bytes(content[:1000])
    (folder / "shard2").write_bytes(content[1000:])
    weights = [
        {"name": name, "shape": list(values.shape), "dtype": values.dtype.name}
        for name, values in arrays.items()
    ]
    return [{"paths": ["shard1", "shard2"], "weights": weights}]


def write_tfjs(graph_def: Any, folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """Writes a graph as a TF.js model of two shards; `changes` replace parts of its JSON."""
    stripped, arrays = _without_weights(graph_def)
    model = {
        "modelTopology": json_format.MessageToDict(stripped),
        "weightsManifest": _write_shards(arrays, folder),
        **changes,
    }
    (folder / "model.json").write_text(json.dumps(model))
    return folder


def write_old_tfjs(graph_def: Any, folder: pathlib.Path) -> pathlib.Path:
    """Writes a graph as TF.js models before 2019 are; these had no functions."""
    stripped, arrays = _without_weights(tf1.GraphDef(node=graph_def.node))
    manifest = _write_shards(arrays, folder)
    (folder / "tensorflowjs_model.pb").write_bytes(stripped.SerializeToString())
    (folder / "weights_manifest.json").write_text(json.dumps(manifest))
    return folder


def to_tflite(graph_def: Any, *, half: bool = False, integer: bool = False) -> bytes:
    """The part from the preprocessed image to the heads, converted."""
    nodes = {node.name: node for node in graph_def.node}
    heads = [name for name in nodes if name.endswith("/BiasAdd")]
    first = next(n for n in graph_def.node if n.op == "Conv2D" and "First" in n.name)
    with tf.Graph().as_default() as graph:
        image = tf1.placeholder(tf.float32, [1, 64, 96, 3], name="normalized")
        outputs = tf1.import_graph_def(
            graph_def, {first.input[0]: image}, [f"{name}:0" for name in heads], name=""
        )
        with tf1.Session(graph=graph) as session:
            converting = tf1.lite.TFLiteConverter.from_session(session, [image], outputs)
    if half or integer:
        converting.optimizations = [tf.lite.Optimize.DEFAULT]
    if half:
        converting.target_spec.supported_types = [tf.float16]
    return converting.convert()

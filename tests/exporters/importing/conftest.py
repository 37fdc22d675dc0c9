"""A small trained detector as others publish theirs: frozen, folded, as TF.js and as TFLite."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, NamedTuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
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


def constants_of(graph_def: Any) -> Dict[str, np.ndarray]:
    return {
        node.name: tf.make_ndarray(node.attr["value"].tensor)
        for node in graph_def.node
        if node.op == "Const" and node.attr["dtype"].type != tf.string.as_datatype_enum
    }


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
    return Original(config, graph_def, constants_of(graph_def), own)


def head_scopes(own: OwnModel) -> List[str]:
    """Scopes of the layers that predict."""
    names = [each.weights.name for each in own.structure.convolutions]
    return [name.rpartition("/")[0] for name in names if "Predictor" in name]


def folded(original: Original, scaled: str = "Second") -> Any:
    """The graph with batch norm in constants, as TensorFlow's graph optimizer leaves it.

    The scale of layer `scaled` stays a multiplication, those of others are in the weights.
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


def write_tfjs(graph_def: Any, folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """Writes a graph as a TF.js model of two shards; `changes` replace parts of its JSON."""
    arrays = {n: v for n, v in constants_of(graph_def).items() if v.dtype == np.float32}
    nodes = [
        {"name": node.name, "op": node.op, "input": list(node.input), "attr": {}}
        for node in graph_def.node
        if node.op != "Const" or node.name in arrays
    ]
    content = b"".join(values.tobytes() for values in arrays.values())
    weights = [
        {"name": name, "shape": list(values.shape), "dtype": "float32"}
        for name, values in arrays.items()
    ]
    folder.mkdir(exist_ok=True)
    (folder / "shard1").write_bytes(content[:1000])
    (folder / "shard2").write_bytes(content[1000:])
    model = {
        "modelTopology": {"node": nodes},
        "weightsManifest": [{"paths": ["shard1", "shard2"], "weights": weights}],
        **changes,
    }
    (folder / "model.json").write_text(json.dumps(model))
    return folder


def write_old_tfjs(graph_def: Any, folder: pathlib.Path) -> pathlib.Path:
    """Writes a graph as TF.js models before 2019 are: its constants have no contents."""
    arrays = constants_of(graph_def)
    stripped = tf1.GraphDef()
    stripped.CopyFrom(graph_def)
    for node in (node for node in stripped.node if node.name in arrays):
        tensor = node.attr["value"].tensor
        kept = type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
        tensor.CopyFrom(kept)
    weights = [
        {"name": name, "shape": list(values.shape), "dtype": values.dtype.name}
        for name, values in arrays.items()
    ]
    content = b"".join(values.tobytes() for values in arrays.values())
    folder.mkdir()
    (folder / "tensorflowjs_model.pb").write_bytes(stripped.SerializeToString())
    (folder / "group1-shard1of2").write_bytes(content[:1000])
    (folder / "group1-shard2of2").write_bytes(content[1000:])
    manifest = [{"paths": ["group1-shard1of2", "group1-shard2of2"], "weights": weights}]
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

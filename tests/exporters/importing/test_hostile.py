"""Damaged and hostile files are refused by name by the program, before it writes anything."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.compat.private import tflite_schema
from estimator_det.config import pipeline
from estimator_det.errors import RunError
from estimator_det.programs import cli
from exporters.formats import FORMATS
from exporters.formats.tfjs import Tfjs
from exporters.formats.tflite import TfliteDetector
from exporters.formats.tflite_metadata import pack
from exporters.reading import graphs
from exporters.reading.published import Published
from tests.exporters.importing.conftest import to_tflite, write_tfjs

pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture(scope="module")
def tflite_file(original) -> bytes:
    return to_tflite(original.graph_def)


def _foreign_operation(content: bytes) -> bytes:
    schema = tflite_schema()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode = b"RunShell"
    model.operatorCodes.append(code)
    return pack(model)


@pytest.mark.parametrize(
    ("source", "damage", "text"),
    [
        ("frozen_graph", lambda graph, tflite: b"", "give import its format with --from"),
        ("frozen_graph", lambda graph, tflite: graph.SerializeToString()[:-100], "cut off after"),
        ("tflite", lambda graph, tflite: b"", "is not a TFLite model"),
        ("tflite", lambda graph, tflite: tflite[: len(tflite) // 3], "damaged or cut off"),
        ("tflite", lambda graph, tflite: _foreign_operation(tflite), "the operation RunShell"),
    ],
)
def test_refused_by_name(source, damage, text, original, tflite_file, tmp_path, capsys):
    config = pipeline.save_pipeline(original.config, str(tmp_path / "config"))
    path, output = tmp_path / "model", tmp_path / "imported"
    path.write_bytes(damage(original.graph_def, tflite_file))
    arguments = ["import", "--from", source, str(path), "--pipeline_config_path", config]
    assert cli.main([*arguments, "--output_directory", str(output)]) == 1
    error = capsys.readouterr().err
    assert str(path) in error and text in error
    assert "Traceback" not in error
    assert not output.exists()


DECODED = "Decode/get_center_coordinates_and_sizes/transpose"


def _graph(**nodes: Any) -> Any:
    """A graph of constants (arrays), and operations (name, inputs)."""
    graph_def = tf1.GraphDef()
    for name, content in nodes.items():
        if isinstance(content, tuple):
            op, *inputs = content
            node = graph_def.node.add(name=name, op=op, input=inputs)
        else:
            node = graph_def.node.add(name=name, op="Const")
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(content))
            node.attr["dtype"].type = node.attr["value"].tensor.dtype
        if node.op == "Fill":
            node.attr["T"].type = tf.float32.as_datatype_enum
            node.attr["index_type"].type = tf.int32.as_datatype_enum
    return graph_def


def _read(graph_def: Any, folder: pathlib.Path) -> Published:
    (folder / "a.pb").write_bytes(graph_def.SerializeToString())
    return FORMATS.get("frozen_graph")().read(str(folder / "a.pb"))


@pytest.mark.parametrize(
    "nodes",
    [
        {"a": np.zeros((3, 4), np.float32), "b": np.zeros((5, 4), np.float32),
         "x": ("Add", "a", "b")},
        {"a": np.zeros((3, 4), np.float32), "x": ("Mul", "a")},
        {"a": np.zeros((1 << 14, 1), np.float32), "b": np.zeros((1, 1 << 15), np.float32),
         "x": ("Mul", "a", "b")},
        {"a": np.array([1 << 20, 1 << 20], np.int32), "b": np.float32(0), "x": ("Fill", "a", "b")},
    ],
)  # fmt: skip
def test_anchors_that_cannot_be_computed(nodes, tmp_path):
    graph_def = _graph(**nodes)
    graph_def.node.add(name=DECODED, op="Transpose", input=["x"])
    with pytest.raises(RunError, match=r"a.pb: (the anchors cannot be computed|x has more than)"):
        _read(graph_def, tmp_path)


def test_a_chain_of_squares_is_computed_once():
    """2 ** 60 multiplications, if each is computed whenever it is needed."""
    chain = {f"x{i + 1}": ("Mul", f"x{i}", f"x{i}") for i in range(60)}
    graph_def = _graph(x0=np.float32(1), **chain)
    graph = graphs.from_graph_def(graph_def, {"x0": np.float32(1)})
    assert graphs.evaluate(graph, "x60") == 1


def test_constants_whose_shapes_state_too_many_numbers_together(tmp_path):
    graph_def = _graph(a=np.float32(0))
    for size in (1 << 14, 1 << 13):
        graph_def.node[0].attr["value"].tensor.tensor_shape.dim.add(size=size)
    graph_def.node[0].attr["value"].tensor.ClearField("float_val")
    copies = tf1.GraphDef()
    for i in range(5):
        copies.node.add().CopyFrom(graph_def.node[0])
        copies.node[i].name = f"a{i}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "make_ndarray", lambda tensor: np.zeros(1, np.float32))
        with pytest.raises(RunError, match=r"a4 has shape \[16384, 8192\]: more than"):
            _read(copies, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [float("inf")]}, {"shape": "ab"}, {"shape": [0, 1 << 70]},
        {"shape": [1 << 40, 1 << 40]}, {"shape": [1] * 70},
        {"quantization": {"dtype": "float32", "scale": "x", "min": 0}}, {"quantization": [1]},
    ],
)  # fmt: skip
def test_damaged_weights_of_tfjs(original, tmp_path, change):
    model = write_tfjs(original.graph_def, tmp_path / "model") / "model.json"
    content = json.loads(model.read_text())
    content["weightsManifest"][0]["weights"][0].update(change)
    model.write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"weightsManifest is damaged|the shards end after"):
        FORMATS.get("tfjs")().read(str(model))


@pytest.mark.parametrize(
    "node",
    [
        {"name": "c", "op": "Const", "attr": {}},
        {"name": "c", "op": "Const", "attr": {"dtype": {"type": "DT_STRING"}}},
        {"name": "f", "op": "_FusedConv2D", "input": ["c", "c"],
         "attr": {"fused_ops": {"list": {"s": ["Qmlhc0FkZA=="]}}}},
        {"name": "f", "op": "_FusedConv2D", "input": ["c", "c"],
         "attr": {"fused_ops": {"list": {"s": ["/////w=="]}}}},
    ],
)  # fmt: skip
def test_damaged_graph_of_tfjs(tmp_path, node):
    nodes = [{"name": "c", "op": "Const", "attr": {"dtype": {"type": "DT_FLOAT"}}}]
    weights = [{"name": "c", "shape": [1], "dtype": "float32"}]
    model = {
        "modelTopology": {"node": [*nodes[node["name"] == "c" :], node]},
        "weightsManifest": [{"paths": ["shard"], "weights": weights}],
    }
    (tmp_path / "shard").write_bytes(bytes(4))
    (tmp_path / "model.json").write_text(json.dumps(model))
    with pytest.raises(RunError, match=r"modelTopology is no graph|cannot be loaded|is damaged"):
        Tfjs().load(str(tmp_path))


def test_offset_past_the_end_of_a_tflite_file(tflite_file, tmp_path):
    """TFLite follows it without a check, which ends the process."""
    model = tflite_schema().Model.GetRootAsModel(tflite_file, 0)
    tensor = model.Subgraphs(0).Tensors(0)._tab
    place = tensor.Pos + tensor.Offset(4)  # of its shape
    content = tflite_file[:place] + b"\xff\xff\xff\x7f" + tflite_file[place + 4 :]
    (tmp_path / "offset.tflite").write_bytes(content)
    with pytest.raises(RunError, match=r"offset.tflite is damaged"):
        TfliteDetector(str(tmp_path / "offset.tflite"))

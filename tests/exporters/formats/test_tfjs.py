"""Graphs of TensorFlow.js: their constants are in shards, and some operations are fused."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from exporters import formats
from exporters.formats.frozen_graph import FROZEN_GRAPH_FILE
from exporters.formats.tfjs import with_constants
from tests.exporters.importing.conftest import write_tfjs


def _node(graph_def: Any, name: str, op: str, *inputs: str, **types: Any) -> Any:
    node = graph_def.node.add(name=name, op=op)
    node.input.extend(inputs)
    for key, value in types.items():
        node.attr[key].type = value.as_datatype_enum
    return node


@pytest.mark.parametrize("op", ["_FusedConv2D", "FusedDepthwiseConv2dNative"])
def test_fused_operations(op):
    random = np.random.default_rng(0)
    kernel = random.normal(size=[3, 3, 2, 4 if op == "_FusedConv2D" else 1]).astype(np.float32)
    bias = random.normal(size=[4 if op == "_FusedConv2D" else 2]).astype(np.float32)
    graph_def = tf1.GraphDef()
    _node(graph_def, "x", "Placeholder", dtype=tf.float32)
    for name in ("kernel", "bias"):
        _node(graph_def, name, "Const", dtype=tf.float32)
    fused = _node(graph_def, "y", op, "x", "kernel", "bias", T=tf.float32)
    fused.attr["strides"].list.i.extend([1, 1, 1, 1])
    fused.attr["padding"].s = b"SAME"
    fused.attr["fused_ops"].list.s.extend([b"BiasAdd", b"Relu6"])
    fused.attr["num_args"].i = 1
    images = random.normal(size=[1, 5, 5, 2]).astype(np.float32)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(
            with_constants(graph_def, {"kernel": kernel, "bias": bias}, ""), name=""
        )
        convolve = tf.nn.conv2d if op == "_FusedConv2D" else tf1.nn.depthwise_conv2d
        wanted = tf.nn.relu6(convolve(images, kernel, [1, 1, 1, 1], "SAME") + bias)
        with tf1.Session(graph=graph) as session:
            found, expected = session.run(["y:0", wanted], {"x:0": images})
    np.testing.assert_allclose(found, expected, atol=1e-5)


def _add_prefix(function: Any) -> None:
    """Gives the nodes of a function names that no other function has, as the converter does."""
    prefix = function.signature.name
    names = {node.name for node in function.node_def}

    def renamed(source: str) -> str:
        control, name = ("^", source[1:]) if source.startswith("^") else ("", source)
        return f"{control}{prefix}/{name}" if name.split(":")[0] in names else source

    for node in function.node_def:
        node.name = f"{prefix}/{node.name}"
        node.input[:] = map(renamed, node.input)
    for table in (function.ret, function.control_ret):
        for key in list(table):
            table[key] = renamed(table[key])


@pytest.fixture
def model(exported: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The frozen graph of an export as a graph model."""
    graph_def = tf1.GraphDef.FromString((exported / FROZEN_GRAPH_FILE).read_bytes())
    for function in graph_def.library.function:
        _add_prefix(function)
    return write_tfjs(graph_def, tmp_path / "tfjs")


def test_a_graph_model_detects_as_its_graph(model, exported, pictures):
    frozen = formats.load_model(str(exported / FROZEN_GRAPH_FILE)).run(pictures)
    for path in (model.parent, model, model / "model.json"):
        (found,) = formats.exported_models(str(path))
        assert found.format.name == "tfjs"
    outputs = found.load().run(pictures)
    assert outputs["num_detections"].min() > 0
    for key, values in frozen.items():
        np.testing.assert_allclose(outputs[key], values, atol=1e-5)


def test_a_renamed_model_is_recognized_by_its_content(model):
    (model / "a.json").write_text('{"weightsManifest": []}')
    renamed = (model / "model.json").rename(model / "detector.json")
    for path in (model, renamed):
        (found,) = formats.exported_models(str(path))
        assert (found.format.name, found.load().path) == ("tfjs", str(model))
    (found,) = formats.exported_models(str(renamed.rename(model / "web")))
    assert found.format.name == "tfjs"
    with pytest.raises(FileNotFoundError, match="no model in"):
        formats.exported_models(str(model / "a.json"))

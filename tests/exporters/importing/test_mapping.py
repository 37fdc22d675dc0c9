"""Weights of a published model under our names: nothing that the model computes changes."""

import numpy as np
import pytest

from estimator_det.compat import tf1
from exporters.formats.frozen_graph import publish
from exporters.formats.tflite_reader import read_tflite
from exporters.importing import mapping
from tests.exporters.importing.conftest import folded, raw_outputs, set_constant, to_tflite


@pytest.fixture(scope="module")
def expected(original):
    return raw_outputs(original.own, {n: original.arrays[n] for n in original.own.shapes})


def _agree(own, mapped, expected, tolerance=2e-6):
    assert set(mapped.values) == set(own.shapes)
    for ours, theirs in zip(raw_outputs(own, mapped.values), expected):
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max())


def test_folded_batch_norm_is_rebuilt_where_it_is_folded(original, expected):
    mapped = mapping.map_variables(original.own, publish(folded(original), "a.pb"))
    _agree(original.own, mapped, expected)
    scopes = {name.rpartition("/BatchNorm")[0] for name in original.own.shapes if "Norm" in name}
    assert {each.name.rpartition("/BatchNorm")[0] for each in mapped.folded} == scopes
    heads = [name for name in original.own.shapes if "BoxPredictor" in name]
    states = {row.variable: row.state for row in mapped.rows}
    assert {states[name] for name in heads} == {mapping.COPIED}
    second = next(scope for scope in scopes if "Second" in scope)
    first = next(scope for scope in scopes if "First" in scope)
    assert (mapped.values[f"{first}/BatchNorm/gamma"] == 1).all()
    assert (mapped.values[f"{first}/BatchNorm/moving_mean"] == 0).all()
    np.testing.assert_allclose(mapped.values[f"{first}/BatchNorm/moving_variance"], 0.999)
    # A factor in the file becomes gamma, and the weights stay as in the file.
    assert (mapped.values[f"{second}/BatchNorm/gamma"] != 1).all()
    np.testing.assert_array_equal(
        mapped.values[f"{second}/weights"], original.arrays[f"{second}/weights"]
    )


def test_a_layer_with_batch_norm_beside_folded_ones_keeps_its_statistics(original, expected):
    graph_def = folded(original)
    whole = tf1.GraphDef()
    whole.CopyFrom(original.graph_def)
    parts = {node.name: node for node in graph_def.node}
    for node in whole.node:  # fold the first layer only
        if "First" in node.name and node.name in parts:
            node.CopyFrom(parts[node.name])
    names = {node.name for node in whole.node}
    whole.node.extend(n for n in graph_def.node if "First" in n.name and n.name not in names)
    for name in [n for n in original.arrays if "First/BatchNorm/moving" in n]:
        set_constant(whole, name, np.zeros([1]))  # is not in such a file
    mapped = mapping.map_variables(original.own, publish(whole, "a.pb"))
    _agree(original.own, mapped, expected)
    assert [("First" in each.name, "Second" in each.name) for each in mapped.folded] == [
        (True, False)
    ]


def test_parameters_that_a_folded_graph_does_not_use_are_not_taken(original, expected):
    graph_def = folded(original, scaled="no layer")
    for node in graph_def.node:  # folded weights under the name of the original ones
        node.name = node.name.replace("/Conv2D/merged_input", "/weights")
        node.input[:] = [name.replace("/Conv2D/merged_input", "/weights") for name in node.input]
    kept = [node for node in original.graph_def.node if "/BatchNorm/" in node.name]
    names = {node.name for node in graph_def.node}
    graph_def.node.extend(node for node in kept if node.op == "Const" and node.name not in names)
    mapped = mapping.map_variables(original.own, publish(graph_def, "a.pb"))
    _agree(original.own, mapped, expected)
    assert len(mapped.folded) == 2


def test_offset_that_is_added_after_a_sum_is_found_by_name(original, expected):
    graph_def = folded(original)
    nodes = {node.name: node for node in graph_def.node}
    name = next(name for name in nodes if name.endswith("Second/BatchNorm/FusedBatchNormV3"))
    add = nodes[name]
    graph_def.node.add(name="sum", op="AddN", input=[add.input[0], "zero"])
    graph_def.node.add(name="zero", op="ZerosLike", input=[add.input[0]])
    add.input[0] = "sum"
    _agree(original.own, mapping.map_variables(original.own, publish(graph_def, "a.pb")), expected)


@pytest.mark.parametrize(
    ("settings", "tolerance"), [({}, 2e-6), ({"half": True}, 2e-3), ({"integer": True}, 5e-2)]
)
def test_tflite_model(original, expected, tmp_path, settings, tolerance):
    file = tmp_path / "model.tflite"
    file.write_bytes(to_tflite(original.graph_def, **settings))
    published = read_tflite(str(file))
    mapped = mapping.map_variables(original.own, published)
    _agree(original.own, mapped, expected, tolerance)
    assert len(mapped.folded) == 2


def test_what_is_missing_and_what_is_not_used_is_reported(original):
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(original.graph_def)
    name = "BoxPredictor_1/ClassPredictor/weights"
    set_constant(graph_def, name, np.zeros([1, 1, 16, 7]))
    bias = "BoxPredictor_1/ClassPredictor/biases"
    graph_def.node.remove(next(node for node in graph_def.node if node.name == bias))
    set_constant(graph_def, "more/weights", np.zeros([3]))
    mapped = mapping.map_variables(original.own, publish(graph_def, "a.pb"))
    rows = {row.variable: row for row in mapped.rows}
    assert rows[name].state == mapping.OTHER_SHAPE
    assert "[1, 1, 16, 7]" in rows[name].source
    assert rows[bias].state == mapping.MISSING
    assert "more/weights" in mapped.unused
    assert name not in mapped.values

"""SavedModels of TensorFlow 2: their functions become the flat graph that was wrapped in them."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.compat.private import saved_model_message
from estimator_det.errors import RunError
from exporters.importing import mapping, matching
from exporters.importing.importer import read_published
from exporters.importing.matching import align_names
from exporters.reading import functions, graphs
from tests.exporters.importing.conftest import Original, head_scopes, raw_outputs

CALL = "PartitionedCall"


class _Wrapped(tf.Module):
    """A graph that is imported into a function, as one wraps a published frozen graph."""

    def __init__(
        self,
        graph_def: Any,
        outputs: List[str],
        prefixes: tuple[str, ...] = ("",),
        variables: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__()
        self.weights = variables or {}

        def run(image: Any) -> Dict[str, Any]:
            found = []
            for prefix in prefixes:
                given = {f"{name}:0": each.value() for name, each in self.weights.items()}
                given["image_tensor:0"] = image
                found += tf1.import_graph_def(graph_def, given, outputs, name=prefix)
            return {str(number): each for number, each in enumerate(found)}

        images = [tf.TensorSpec([None, None, None, 3], tf.uint8, name="image")]
        self._network = tf1.wrap_function(run, images)
        self.run = tf.function(lambda image: self._network(image), input_signature=images)
        self.twice = tf.function(
            lambda image: {"a": self.run(image)["0"], "b": self.run(image + 1)["0"]},
            input_signature=images,
        )


def _wrap(original: Original, **settings: Any) -> _Wrapped:
    outputs = [f"{scope}/BiasAdd:0" for scope in head_scopes(original.own)]
    return _Wrapped(settings.pop("graph_def", original.graph_def), outputs, **settings)


def _variables(original: Original, name: Optional[str] = None) -> Dict[str, Any]:
    return {
        each: tf.Variable(original.arrays[each], name=name or each) for each in original.own.shapes
    }


def _saved(module: Any, folder: pathlib.Path, function: Any = None) -> str:
    signatures = {"serving_default": module.run if function is None else function}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return str(folder)


def _saved_again(original: Original, folder: pathlib.Path) -> str:
    """A SavedModel of TensorFlow 1 that TensorFlow 2 loads and saves."""
    with original.own.graph.as_default():
        meta_graph = tf1.train.export_meta_graph()
    outputs = [f"{scope}/BiasAdd:0" for scope in head_scopes(original.own)]
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        tf1.train.import_meta_graph(meta_graph)
        for variable in tf1.global_variables():
            variable.load(original.arrays[variable.op.name], session)
        image = graph.get_tensor_by_name(original.own.images.name)
        heads = {str(n): graph.get_tensor_by_name(name) for n, name in enumerate(outputs)}
        signature = tf1.saved_model.predict_signature_def({"image": image}, heads)
        builder = tf1.saved_model.Builder(str(folder / "first"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    loaded = tf.saved_model.load(str(folder / "first"))
    tf.saved_model.save(loaded, str(folder / "again"), signatures=loaded.signatures)
    return str(folder / "again")


MAKERS = {
    "constants": lambda each, folder: _saved(_wrap(each), folder),
    "prefix": lambda each, folder: _saved(_wrap(each, prefixes=("import",)), folder),
    "variables of one name": lambda each, folder: _saved(
        _wrap(each, variables=_variables(each, "w")), folder
    ),
    "saved again": _saved_again,
}


@pytest.fixture(scope="module")
def constants_model(original, tmp_path_factory) -> str:
    return MAKERS["constants"](original, tmp_path_factory.mktemp("constants"))


def _mapped(original: Original, path: str) -> mapping.Mapped:
    published, notes = align_names(read_published("saved_model", path), original.own.structure)
    assert notes in ([], ["names in the file begin with import/, which is left out below"])
    return mapping.map_variables(original.own, published)


def _same_outputs(original: Original, path: str, mapped: mapping.Mapped, limit: float) -> None:
    """What the model computes is what its variables compute in our graph."""
    image = np.random.default_rng(5).integers(0, 256, (1, 64, 96, 3), dtype=np.uint8)
    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]
    (key,) = signature.structured_input_signature[1]
    expected = signature(**{key: tf.constant(image)})
    assert len(expected) == len(head_scopes(original.own))
    for values in raw_outputs(original.own, mapped.values):
        shaped = [each for each in expected.values() if each.shape == values.shape]
        assert min(np.abs(each - values).max() for each in shaped) <= limit * np.abs(values).max()


@pytest.mark.parametrize("kind", MAKERS)
def test_every_variable_is_as_it_is_in_the_file(original, tmp_path, kind):
    path = MAKERS[kind](original, tmp_path)
    mapped = _mapped(original, path)
    assert {row.state for row in mapped.rows} == {mapping.COPIED}
    for name in original.own.shapes:
        np.testing.assert_array_equal(mapped.values[name], original.arrays[name])
    _same_outputs(original, path, mapped, 1e-6)


def _refused(original: Optional[Original], path: str, *texts: str) -> None:
    with pytest.raises(RunError) as error:
        published = read_published("saved_model", path)
        if original is not None:
            align_names(published, original.own.structure)
    for text in (path, *texts):
        assert text in str(error.value)


def test_a_network_that_is_there_twice(original, tmp_path):
    module = _wrap(original)
    path = _saved(module, tmp_path / "calls", module.twice)
    _refused(None, path, "the layer ", "/Conv2D in the calls ", f"/{CALL}/ and ", f"/{CALL}_1/")
    path = _saved(_wrap(original, prefixes=("a", "b")), tmp_path / "prefixes")
    _refused(original, path, "contains the layers of the model 2 times, such as under a/ and b/")


def test_models_of_other_names(original, tmp_path):
    class Other(tf.Module):
        def __init__(self, weights: str) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.ones([3, 3, 3, 8]), name=weights)

        @tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 3], tf.float32)])
        def run(self, image: Any) -> Any:
            return tf.nn.conv2d(image, self.kernel, 1, "SAME")

    path = _saved(Other("block_1/kernel"), tmp_path / "keras")
    _refused(None, path, "that Keras built", "1 variable named", "block_1/kernel", "'_model'")
    path = _saved(Other("block_1/weights"), tmp_path / "other")
    _refused(original, path, "0 of 6 layers of the model", "has layers such as Conv2D", "Keras")


def _changed(path: str, folder: pathlib.Path, change: Any) -> str:
    """A copy of a model whose `MetaGraphDef` is changed; with a link to its variables."""
    message = saved_model_message()
    message.ParseFromString(pathlib.Path(path, "saved_model.pb").read_bytes())
    change(message.meta_graphs[0])
    folder.mkdir()
    (folder / "variables").symlink_to(pathlib.Path(path, "variables"))
    (folder / "saved_model.pb").write_bytes(message.SerializeToString())
    return str(folder)


def _two_signatures(meta_graph: Any) -> None:
    for name in ("second", "first"):
        meta_graph.signature_def[name].CopyFrom(meta_graph.signature_def["serving_default"])
    del meta_graph.signature_def["serving_default"]


def _call(meta_graph: Any) -> Any:
    """The call of the network."""
    return next(node for node in meta_graph.graph_def.node if node.op == CALL)


def _output(name: str) -> Any:
    """A change of the tensor that is the first output of the signature."""

    def change(meta_graph: Any) -> None:
        meta_graph.signature_def["serving_default"].outputs["0"].name = name

    return change


def _function_nodes(meta_graph: Any) -> List[Tuple[Any, Any]]:
    """Each operation in a function, after its function."""
    library = meta_graph.graph_def.library
    return [(function, node) for function in library.function for node in function.node_def]


def _own_result(meta_graph: Any) -> None:
    _call(meta_graph).input[0] = _call(meta_graph).name
    for function in meta_graph.graph_def.library.function:
        for name in function.ret:
            function.ret[name] = function.signature.input_arg[0].name


def _recursion(meta_graph: Any) -> None:
    for function, node in _function_nodes(meta_graph):
        if node.op == CALL:
            node.attr["f"].func.name = function.signature.name


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda graph: graph.signature_def.clear(), "has no signature serving_default"),
        (_two_signatures, "['first', 'second'], none of them serving_default"),
        (
            lambda graph: setattr(_call(graph).attr["f"].func, "name", "absent"),
            "no function absent",
        ),
        (lambda graph: _call(graph).ClearField("input"), "gives 0 inputs to the function"),
        (_output("nowhere:0"), "has no operation nowhere"),
        (_output(f"{CALL}:{'9' * 5000}"), "is no tensor"),
        (_output(f"{CALL}:99"), "has no output 99"),
        (
            lambda graph: [each.ret.clear() for each in graph.graph_def.library.function],
            "has no operation",
        ),
        (_own_result, "have no end"),
        (_recursion, "or calls itself"),
    ],
)
def test_damaged_functions(constants_model, tmp_path, change, text):
    _refused(None, _changed(constants_model, tmp_path / "changed", change), text)


def test_functions_that_call_each_other_twice_each(monkeypatch):
    graph_def = tf1.GraphDef()
    graph_def.node.add(name="call", op=CALL).attr["f"].func.name = "f0"
    for depth in range(41):
        function = graph_def.library.function.add()
        function.signature.name = f"f{depth}"
        function.signature.output_arg.add(name="out")
        function.ret["out"] = "sum:sum:0"
        inputs = ["a:output:0", "b:output:0"] if depth < 40 else []
        function.node_def.add(name="sum", op="AddN", input=inputs)
        for name in "ab" if depth < 40 else "":
            call = function.node_def.add(name=name, op=CALL)
            call.attr["f"].func.name = f"f{depth + 1}"
    monkeypatch.setattr(functions, "_MAX_NODES", 1000)
    with pytest.raises(RunError, match="more than 1000 operations"):
        functions.InlinedGraph(graph_def, "a.pb")


def test_outputs_and_names_of_inlined_operations():
    """Operations with several outputs, equal names in functions, and arguments that are passed."""

    @tf.function
    def inner(x: Any, factor: Any) -> Any:
        first, second, third = tf.split(x, 3, name="parts")
        values, places = tf.math.top_k(third * factor, 1, name="best")
        return second - first + values, places, factor

    @tf.function
    def outer(x: Any) -> Any:
        third, _, factor = inner(x, tf.constant(3.0, name="parts"))
        values, places, _ = inner(x + 1, factor)
        return third, values, places

    given = np.float32([1, 5, 2, 8, 3, 7])
    with tf.Graph().as_default() as graph:
        found = outer(tf1.placeholder(tf.float32, [6], name="x"))
    inlined = functions.InlinedGraph(graph.as_graph_def(), "a.pb")
    flat = inlined.flat([each.name for each in found])
    assert not any(node.op in functions._CALLS for node in flat.node)
    names = [node.name for node in flat.node]
    assert len(set(names)) == len(names)
    with tf.Graph().as_default(), tf1.Session() as session:
        sources = [node.name for node in flat.node]
        sums = [f"{name}:0" for name in sources if name.endswith("add")]
        places = [f"{name}:1" for name in sources if name.endswith("best")]
        tensors = tf1.import_graph_def(flat, None, ["x:0", *sums, *places], name="")
        results = session.run(tensors[1:], {tensors[0]: given})
    expected = [each.numpy() for each in outer(tf.constant(given))]
    for value in expected:
        assert any(np.array_equal(value, each) for each in results)


def test_equal_layers_have_no_order_in_functions():
    """Layers of a flat graph are in the order in which they are built."""
    graph_def = tf1.GraphDef()
    arrays = {}
    for name in ("first", "second"):
        arrays[f"{name}/w"] = np.zeros([1, 1, 3, 4], np.float32)
        graph_def.node.add(name=f"{name}/w", op="Const")
        graph_def.node.add(name=f"{name}/Conv2D", op="Conv2D", input=["x", f"{name}/w"])
    structure = graphs.read_structure(graphs.from_graph_def(graph_def, arrays))
    for in_order, count in ((True, 2), (False, 0)):
        found = matching.match_layers(
            structure, structure, names_match=False, follows_order=in_order
        )
        assert len(found) == count


def test_batch_norm_without_its_default_epsilon():
    graph_def = tf1.GraphDef()
    graph_def.node.add(name="norm", op="FusedBatchNormV3")
    assert graphs.from_graph_def(graph_def, {}).nodes["norm"].epsilon == 1e-4
    graph_def.node[0].attr["epsilon"].f = 0.5
    assert graphs.from_graph_def(graph_def, {}).nodes["norm"].epsilon == 0.5

"""The whole import: files that are written, calibration, and the mark of neutral statistics."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf1
from estimator_det.config import pipeline
from estimator_det.errors import RunError, UsageError
from estimator_det.programs import cli
from exporters.formats import FORMATS
from exporters.formats.frozen_graph import FrozenGraph
from exporters.importing import importer
from model_fn.checkpoints.variables import num_neutral_layers
from tests.checkpoints import stored
from tests.exporters.importing.conftest import folded, raw_outputs, set_constant, write_old_tfjs


@pytest.fixture(scope="module")
def published_file(original, tmp_path_factory):
    """A frozen graph with folded batch norm."""
    file = tmp_path_factory.mktemp("published") / "frozen.pb"
    file.write_bytes(folded(original).SerializeToString())
    return str(file)


pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture(scope="module")
def plain(small_network, original, published_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return _import(original, published_file, folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(1)
    for number, size in enumerate([(60, 90), (64, 96), (70, 70)]):
        pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return str(folder)


def _import(original, path, folder, source="frozen_graph", **options):
    published = importer.read_published(source, str(path))
    return importer.import_model(published, original.config, str(folder), **options)


def test_files_of_an_import(original, published_file, plain):
    imported, output = plain, pathlib.Path(plain.checkpoint).parent
    assert num_neutral_layers(imported.checkpoint) == 2
    assert tf1.train.latest_checkpoint(str(output)) == imported.checkpoint
    values = stored(imported.checkpoint)
    assert set(original.own.shapes) < set(values)
    assert values["global_step"] == 0
    assert pipeline.read_pipeline(imported.pipeline_config) == original.config
    assert imported.label_map is None
    report = (output / "import_report.txt").read_text()
    assert "Layers whose batch norm is rebuilt: 2" in report
    assert all(f" {name}: " in report for name in original.own.shapes)
    assert any("--calibrate" in line for line in imported.warnings)
    with pytest.raises(FileExistsError, match="is not empty"):
        _import(original, published_file, output)


def test_the_mark_of_neutral_statistics_outlives_another_import(original, plain, tmp_path):
    again = _import(original, plain.checkpoint, tmp_path / "again", "checkpoint")
    assert num_neutral_layers(again.checkpoint) == 2
    assert any("from an earlier import" in line for line in again.warnings)


def test_calibration_changes_statistics_and_no_output(
    original, published_file, plain, photos, tmp_path
):
    calibrated = _import(
        original, published_file, tmp_path / "calibrated", calibration_images=[photos]
    )
    assert num_neutral_layers(calibrated.checkpoint) == 0
    assert not calibrated.warnings
    before, after = stored(plain.checkpoint), stored(calibrated.checkpoint)
    for ours, theirs in zip(raw_outputs(original.own, _only(original, after)),
                            raw_outputs(original.own, _only(original, before))):  # fmt: skip
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())
    # Each layer's inputs have the statistics that the checkpoint states.
    own = original.own
    norms = [each.norm for each in own.structure.convolutions if each.norm is not None]
    with own.graph.as_default(), tf1.Session() as session:
        own.load(session, _only(original, after))
        inputs = [own.graph.get_operation_by_name(each.name).inputs[0] for each in norms]
        images = [np.asarray(Image.open(f"{photos}/{n}.png"))[None] for n in range(3)]
        seen = [session.run(inputs, {own.images: image}) for image in images]
    for position, norm in enumerate(norms):
        pixels = np.concatenate([row[position] for row in seen])
        mean, variance = pixels.mean((0, 1, 2)), pixels.var((0, 1, 2))
        np.testing.assert_allclose(after[norm.mean.name], mean, atol=1e-4)
        np.testing.assert_allclose(after[norm.variance.name], variance, rtol=1e-3)


def _only(original, values):
    return {name: values[name] for name in original.own.shapes}


def test_anchor_order_is_applied_to_heads(original, published_file, plain, tmp_path):
    assert any("--anchor_order 2017" in line for line in plain.summary)
    permuted = _import(original, published_file, tmp_path / "old", anchor_order="2017")
    name = "BoxPredictor_1/BoxEncodingPredictor/biases"
    before, after = stored(plain.checkpoint)[name], stored(permuted.checkpoint)[name]
    assert sorted(before) == sorted(after)
    assert (before[:4] == after[:4]).all()
    assert (before[4:8] == after[-4:]).all()


def test_what_cannot_be_imported(original, published_file, photos, tmp_path):
    graph_def = folded(original)
    name = "BoxPredictor_1/ClassPredictor/biases"
    set_constant(graph_def, name, np.full([3], np.nan))
    file = tmp_path / "nan.pb"
    file.write_bytes(graph_def.SerializeToString())
    with pytest.raises(RunError, match=f"{name} has 3 numbers of 3 that are NaN"):
        _import(original, file, tmp_path / "a")
    set_constant(graph_def, name, np.zeros([3]))
    file.write_bytes(graph_def.SerializeToString())
    imported = _import(original, file, tmp_path / "b")
    assert any(
        name in line and "1 variable of the model is not" in line for line in imported.warnings
    )
    with pytest.raises(UsageError, match=f"--calibrate: .* such as {name}"):
        _import(original, file, tmp_path / "c", calibration_images=[photos])
    other = tf1.GraphDef()
    other.node.add(name="x", op="NoOp")
    file.write_bytes(other.SerializeToString())
    with pytest.raises(RunError, match="has no weights of the model in the configuration"):
        _import(original, file, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_an_import_replaces_an_earlier_one(original, photos, tmp_path):
    """Its label map, too; a report has one line for each name, and options without effect."""
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(original.graph_def)
    set_constant(graph_def, "not\x1b[2J\nused", np.zeros([3]))
    file, output = tmp_path / "frozen.pb", tmp_path / "out"
    file.write_bytes(graph_def.SerializeToString())
    output.mkdir()
    (output / "label_map.pbtxt").write_text('item { id: 1 name: "of an earlier import" }')
    (output / "import_report.txt").touch()
    imported = _import(original, file, output, calibration_images=[photos], overwrite=True)
    assert imported.label_map is None and not (output / "label_map.pbtxt").exists()
    assert any("--calibrate has no effect: no batch norm" in line for line in imported.warnings)
    assert "\n  not\\x1b[2J\\nused\n" in (output / "import_report.txt").read_text()


def test_the_verb(original, published_file, tmp_path, capsys, monkeypatch):
    class OfPlugin(FrozenGraph):
        pass

    monkeypatch.setitem(FORMATS._makers, "mine", OfPlugin)
    pipeline.save_pipeline(original.config, str(tmp_path))
    arguments = ["import", "--from", "mine", published_file, "--pipeline_config_path"]
    arguments += [str(tmp_path / "pipeline.config"), "--output_directory", str(tmp_path / "out")]
    assert cli.main(arguments) == 0
    said = capsys.readouterr()
    assert "variables: rebuilt" in said.out
    assert (tmp_path / "out" / "model.ckpt.index").exists()
    arguments[3] = str(tmp_path / "nowhere.pb")
    assert cli.main([*arguments, "--overwrite"]) == 3
    assert f"no such model: {tmp_path}/nowhere.pb" in capsys.readouterr().err
    for name, text in (
        ("tfj", "did you mean 'tfjs'? Known: checkpoint, "),
        ("onnx", "saved_model"),
    ):
        arguments[2] = name
        assert cli.main([*arguments, "--overwrite"]) == 2
        error = capsys.readouterr().err
        assert f"--from: {name!r} is not a format that can be imported" in error and text in error


def test_a_model_in_a_subfolder_is_found(original, published_file, tmp_path):
    for place in ("frozen_inference_graph.pb", "model/frozen.pb"):
        file = tmp_path / place.replace("/", "-") / place
        file.parent.mkdir(parents=True)
        file.write_bytes(pathlib.Path(published_file).read_bytes())
        folder = str(tmp_path / place.replace("/", "-"))
        assert importer.read_published("frozen_graph", folder).structure.convolutions


def test_constants_without_content(original, published_file, tmp_path):
    """Weights are refused by name; zeros of TensorFlow, which leaves them out, are reported."""
    graph_def = folded(original)
    zeros, weights = "BoxPredictor_1/ClassPredictor/biases", "BoxPredictor_0/ClassPredictor/weights"
    _clear(graph_def, zeros)
    file = tmp_path / "empty.pb"
    file.write_bytes(graph_def.SerializeToString())
    imported = _import(original, file, tmp_path / "a")
    (line,) = (line for line in imported.warnings if "no content" in line)
    assert (
        f"1 variable of zeros, since their constants have no content in the file, such as {zeros}"
        in line
    )
    _clear(graph_def, weights)
    file.write_bytes(graph_def.SerializeToString())
    message = rf"empty.pb contains no weights: 1 layer of it, such as .* constant {weights}, has"
    with pytest.raises(RunError, match=message):
        _import(original, file, tmp_path / "b")
    with pytest.raises(RunError, match=message):
        FrozenGraph().load(str(file))
    assert not (tmp_path / "b").exists()
    plain = _import(original, published_file, tmp_path / "c")
    assert not any("no content" in line for line in plain.warnings)


def _clear(graph_def, name):
    (node,) = (node for node in graph_def.node if node.name == name)
    node.attr["value"].tensor.ClearField("tensor_content")


def test_a_tensorflowjs_model_before_2019(original, published_file, plain, tmp_path):
    """Each of its names imports what the frozen graph has."""
    folder = write_old_tfjs(folded(original), tmp_path / "model")
    expected = stored(plain.checkpoint)
    for place, name in enumerate(["", "tensorflowjs_model.pb", "weights_manifest.json"]):
        imported = _import(original, folder / name, tmp_path / f"out{place}", "tfjs")
        found = stored(imported.checkpoint)
        assert set(found) == set(expected)
        for variable, values in expected.items():
            np.testing.assert_array_equal(found[variable], values, err_msg=variable)
    graph = folder / "tensorflowjs_model.pb"
    message = r"weights_manifest.json beside it names: it is a .* import --from tfjs"
    with pytest.raises(RunError, match=message):
        _import(original, graph, tmp_path / "b")
    with pytest.raises(RunError, match=message):
        FrozenGraph().load(str(graph))

"""Reading model files, and the refusal of damaged and hostile ones."""

import json
import zipfile

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.compat.private import saved_model_message
from estimator_det.errors import RunError
from exporters.formats import tflite_reader
from exporters.formats.frozen_graph import FrozenGraph
from exporters.formats.saved_model import SavedModel
from exporters.formats.tfjs import Tfjs, read_graph_model
from exporters.importing import importer
from exporters.reading.published import float_variables
from inputs.datasets.writer import write_label_map
from tests.exporters.importing.conftest import folded, to_tflite, write_tfjs


@pytest.fixture(scope="module")
def converted(original):
    return to_tflite(original.graph_def)


def _refused(read, path, *texts):
    with pytest.raises(RunError) as error:
        read(str(path))
    assert str(path) in str(error.value)
    for text in texts:
        assert text in str(error.value)


def test_half_precision_constants_become_float32(original, tmp_path):
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(original.graph_def)
    name = "BoxPredictor_0/ClassPredictor/weights"
    node = next(node for node in graph_def.node if node.name == name)
    half = original.arrays[name].astype(np.float16)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(half))
    (tmp_path / "half.pb").write_bytes(graph_def.SerializeToString())
    published = FrozenGraph().read(str(tmp_path / "half.pb"))
    assert published.arrays[name].dtype == np.float32
    np.testing.assert_array_equal(published.arrays[name], half)


def _cut_off(tensor):
    tensor.tensor_content = tensor.tensor_content[:-4]


def _enlarge(tensor):
    tensor.tensor_shape.dim[0].size = 1 << 40
    tensor.ClearField("tensor_content")
    tensor.float_val.append(1.0)


@pytest.mark.parametrize(("change", "text"), [(_cut_off, "damaged"), (_enlarge, "1099511627776")])
def test_damaged_constants_of_a_frozen_graph(original, tmp_path, change, text):
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(original.graph_def)
    name = "BoxPredictor_0/ClassPredictor/biases"
    change(next(node for node in graph_def.node if node.name == name).attr["value"].tensor)
    (tmp_path / "bad.pb").write_bytes(graph_def.SerializeToString())
    _refused(FrozenGraph().read, tmp_path / "bad.pb", name, text)


def _upload(folder, bucket):
    for path in folder.iterdir():
        tf.io.gfile.copy(str(path), f"{bucket}/{path.name}", overwrite=True)


def test_tfjs_in_a_bucket(original, tmp_path):
    folder = write_tfjs(original.graph_def, tmp_path / "model")
    bucket = f"ram://{tmp_path.name}"
    _upload(folder, bucket)
    local = Tfjs().read(str(folder)).arrays
    for path in (bucket, f"{bucket}/model.json"):
        remote = Tfjs().read(path).arrays
        assert set(remote) == set(local)
        assert all(np.array_equal(remote[name], local[name]) for name in local)


def test_quantized_tfjs_weights(tmp_path):
    entry = {
        "name": "w", "shape": [2], "dtype": "float32",
        "quantization": {"dtype": "uint8", "scale": 0.5, "min": -1.0},
    }  # fmt: skip
    half = {"name": "h", "shape": [1], "dtype": "float32", "quantization": {"dtype": "float16"}}
    (tmp_path / "s").write_bytes(bytes([0, 6]) + np.float16([1.5]).tobytes())
    texts = {"padding": {"s": [83, 65]}, "_class": {"list": {"s": [[108], "bA=="]}}}
    attributes = {**texts, "dtype": {"type": "DT_FLOAT"}}
    nodes = [{"name": name, "op": "Const", "attr": attributes} for name in "wh"]
    model = {
        "modelTopology": {"node": nodes},
        "weightsManifest": [{"paths": ["s"], "weights": [entry, half]}],
    }
    (tmp_path / "model.json").write_text(json.dumps(model))
    graph_def = read_graph_model(str(tmp_path))
    assert graph_def.node[0].attr["padding"].s == b"SA"
    assert graph_def.node[0].attr["_class"].list.s == [b"l", b"l"]
    values = [tf.make_ndarray(node.attr["value"].tensor) for node in graph_def.node]
    np.testing.assert_array_equal(values[0], np.float32([-1, 2]))
    np.testing.assert_array_equal(values[1], np.float32([1.5]))


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "sub/../../secret", ".", "ram://s/x"]
)
def test_tfjs_shard_outside_the_folder(original, tmp_path, name):
    (tmp_path / "secret").write_bytes(b"x" * 1000)
    manifest = [{"paths": [name], "weights": []}]
    folder = write_tfjs(original.graph_def, tmp_path / "model", weightsManifest=manifest)
    bucket = f"ram://{tmp_path.name}/{len(name)}"
    _upload(folder, bucket)
    for place in [bucket] if name.startswith("ram:") else [folder, bucket]:
        _refused(Tfjs().read, f"{place}/model.json", repr(name), "outside the folder")


def test_tfjs_shard_that_is_a_link_to_the_outside(original, tmp_path):
    folder = write_tfjs(original.graph_def, tmp_path / "model")
    (tmp_path / "secret").write_bytes(b"x" * 1000)
    (folder / "shard1").unlink()
    (folder / "shard1").symlink_to(tmp_path / "secret")
    _refused(Tfjs().read, folder / "model.json", "'shard1'", "outside the folder")


def test_tfjs_shards_that_are_empty_missing_or_cut_off(original, tmp_path):
    folder = write_tfjs(original.graph_def, tmp_path / "model")
    content = (folder / "shard2").read_bytes()
    (folder / "shard2").write_bytes(content[:-1])
    _refused(Tfjs().read, folder / "model.json", "the shards end after")
    (folder / "shard2").write_bytes(content + b"more")
    _refused(Tfjs().read, folder / "model.json", "and its weights")
    (folder / "shard2").write_bytes(b"")
    _refused(Tfjs().read, folder / "model.json", "'shard2' is empty (0 bytes)")
    (folder / "shard2").unlink()
    _refused(Tfjs().read, folder / "model.json", "'shard2' cannot be read")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"modelTopology"', "is not a TensorFlow.js model"),
        ("[" * 1_000_000, "is not a TensorFlow.js model"),
        ('{"modelTopology":' + "1" * 5000 + "}", "is not a TensorFlow.js model"),
        ("[]", "has no modelTopology"),
        ('{"modelTopology": {"model_config": {}}, "weightsManifest": []}', "Layers models"),
        ('{"modelTopology": {"node": []}}', "has no weightsManifest"),
        ('{"modelTopology": {"node": [1]}, "weightsManifest": []}', "modelTopology is damaged"),
        (
            '{"modelTopology": {"node": [{"name": "x", "op": ["a"]}]}, "weightsManifest": []}',
            "modelTopology is damaged",
        ),
        (
            '{"modelTopology": {"node": []}, "weightsManifest": [{"paths": ["\\u0000"]}]}',
            "weightsManifest is damaged",
        ),
        ('{"modelTopology": {"node": []}, "weightsManifest": [{}]}', "weightsManifest is damaged"),
        (
            '{"modelTopology": {"node": [{"name": "a", "op": "Const"}]}, "weightsManifest": []}',
            "has no weights for 1 constant, such as a",
        ),
    ],
)
def test_damaged_tfjs_models(tmp_path, content, text):
    (tmp_path / "model.json").write_text(content)
    for read in (Tfjs().read, Tfjs().load):
        _refused(read, tmp_path / "model.json", text)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("weights_manifest.json", '[{"paths": ["s"], "weights": []}]'),
        ("face-weights_manifest.json", '[{"paths": ["s"], "weights": []}]'),
        ("model.json", '{"weightsManifest": []}'),
    ],
)
def test_weights_without_a_graph(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    for path in (tmp_path, tmp_path / name):
        _refused(Tfjs().read, path, f"{name} is weights without a graph: it names weights and")


def test_labels_attached_to_a_tflite_model(converted, tmp_path):
    assert tflite_reader.attached_labels(converted) == {}
    file = tmp_path / "m.tflite"
    file.write_bytes(converted)
    with zipfile.ZipFile(file, "a") as attached:
        attached.writestr("labels.txt", "???\ncat\ndog\n")
    assert tflite_reader.read_tflite(str(file)).label_map == {1: "cat", 2: "dog"}
    assert tflite_reader.attached_labels(b"") == {}


def _saved_model(folder, graph_def):
    message = saved_model_message()
    graph = message.meta_graphs.add()
    graph.meta_info_def.tags.append("serve")
    graph.graph_def.CopyFrom(graph_def)
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(message.SerializeToString())
    return folder


def test_saved_model_of_constants_with_its_label_map(original, tmp_path):
    folder = _saved_model(tmp_path / "saved", folded(original))
    write_label_map({1: "cat"}, str(folder / "assets" / "map.pbtxt"))
    published = SavedModel().read(str(folder))
    assert published.label_map == {1: "cat"}
    assert len(published.structure.convolutions) == len(original.own.structure.convolutions)


def test_the_graph_for_serving_is_read(original, tmp_path):
    folder = _saved_model(tmp_path / "saved", tf1.GraphDef())
    message = saved_model_message()
    message.ParseFromString((folder / "saved_model.pb").read_bytes())
    message.meta_graphs[0].meta_info_def.tags[:] = ["train"]
    served = message.meta_graphs.add()
    served.meta_info_def.tags.extend(["serve", "other"])
    served.graph_def.CopyFrom(folded(original))
    (folder / "saved_model.pb").write_bytes(message.SerializeToString())
    assert SavedModel().read(str(folder)).structure.convolutions


def test_saved_model_of_variables(original, tmp_path):
    values = {name: original.arrays[name] for name in original.own.shapes}
    folder = _saved_model(tmp_path / "saved", original.own.graph.as_graph_def())
    (folder / "variables").mkdir()
    importer.write_checkpoint(str(folder / "variables" / "variables"), values, 0)
    published = SavedModel().read(str(folder / "saved_model.pb"))
    assert set(values) <= set(published.arrays)
    assert len(published.structure.convolutions) == len(original.own.structure.convolutions)


def test_saved_models_that_cannot_be_used(original, tmp_path):
    folder = _saved_model(tmp_path / "saved", folded(original))
    file = folder / "saved_model.pb"
    file.write_bytes(file.read_bytes()[:5000])
    _refused(SavedModel().read, folder, "cut off after 5000 bytes")
    file.write_bytes(b"")
    _refused(SavedModel().read, folder, "contains no graph")


def test_a_checkpoint_that_is_cut_off(original, tmp_path):
    values = {name: original.arrays[name] for name in original.own.shapes}
    importer.write_checkpoint(str(tmp_path / "model.ckpt"), values, 0)
    data = tmp_path / "model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-4])
    _refused(float_variables, tmp_path / "model.ckpt", "is damaged")

import os
import shutil

import numpy as np
import pytest

from estimator_det.boxes.heatmaps import real_pixels
from estimator_det.compat import tf, tf1
from estimator_det.errors import RunError
from estimator_det.images.resize import pad_to_multiple
from exporters import formats
from exporters.formats.base import FORMATS
from exporters.formats.frozen_graph import FROZEN_GRAPH_FILE
from exporters.formats.onnx import Onnx
from exporters.formats.openvino import Openvino, _gather_without_batch
from exporters.loaded_model import REQUIRED_OUTPUTS, label_map_of, parent_folder, read_class_names


def test_models_are_recognized_by_content(exported, tmp_path):
    graph = shutil.copy(exported / FROZEN_GRAPH_FILE, tmp_path / "graph.onnx")
    (found,) = formats.exported_models(str(graph))
    assert found.format.name == "frozen_graph"
    (tmp_path / "phone").write_bytes(b"\0\0\0\0TFL3")
    (found,) = formats.exported_models(str(tmp_path / "phone"))
    assert found.format.name == "tflite"
    graph = shutil.copy(exported / FROZEN_GRAPH_FILE, tmp_path / "other.pb")
    assert [each.path for each in formats.exported_models(str(tmp_path))] == [str(graph)]
    (found,) = formats.exported_models(str(exported / "saved_model" / "saved_model.pb"))
    assert found.format.name == "saved_model"
    (found,) = formats.exported_models(str(exported / "saved_model"))
    assert found.format.name == "saved_model"


def test_the_folder_of_the_export_that_a_model_is_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "model.xml").write_text("")
    for name, path in (
        ("saved_model", "saved_model"),
        ("saved_model", f"{tmp_path}/saved_model/"),
        ("openvino", "openvino/model.xml"),
        ("frozen_graph", "frozen_inference_graph.pb"),
    ):
        assert formats.FoundModel(FORMATS.get(name)(), path).folder == str(tmp_path)
    (tmp_path / "label_map.pbtxt").write_text('item { id: 1 name: "cat" }')
    monkeypatch.chdir(tmp_path / "openvino")
    assert read_class_names(label_map_of(parent_folder("."))) == {1: "cat"}


def test_files_that_are_no_model(tmp_path, exported):
    with pytest.raises(FileNotFoundError, match="no such model"):
        formats.load_model(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="it is a checkpoint, and a model is made of it"):
        formats.load_model(str(exported / "model.ckpt"))
    for content in (b"", b"\n", b"\n\n\n\n\n\n", b"text", b"\x08\x01\x12"):
        path = tmp_path / "file.pb"
        path.write_bytes(content)
        with pytest.raises(FileNotFoundError, match="no model in"):
            formats.load_model(str(path))
    with pytest.raises(FileNotFoundError, match=r"formats (?!.*tf2_checkpoint).*frozen_graph"):
        formats.load_model(str(exported / "pipeline.config"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").touch()
    with pytest.raises(FileNotFoundError, match=r"no model in .* a checkpoint.*-det export"):
        formats.load_model(str(tmp_path / "run"))


def _convert(chosen, graph, outputs, folder):
    (folder / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    path = str(folder / "converted.onnx")
    chosen.convert(str(folder / "graph.pb"), "images", outputs, path)
    return path


def _openvino_model(graph, outputs, folder):
    path = _convert(Openvino, graph, outputs, folder)
    return pytest.importorskip("openvino").Core().read_model(os.path.join(path, "model.xml"))


def test_openvino_keeps_the_order_of_equal_values_without_its_slow_sort(tmp_path):
    openvino = pytest.importorskip("openvino")
    values = np.array([[0.1, 0.5, 0.9, 0.5, 0.2, 0.9, 0.5]], np.float32)
    with tf.Graph().as_default() as graph:
        images = tf1.placeholder(tf.float32, [1, 7], name="images")
        best = tf.math.top_k(images, 5)
        for name, tensor in best._asdict().items():
            tf.identity(tensor, name=name)
    model = _openvino_model(graph, list(best._fields), tmp_path)
    outputs = openvino.compile_model(model, "CPU")([values])
    assert outputs["values:0"].tolist() == [[np.float32(x) for x in (0.9, 0.9, 0.5, 0.5, 0.5)]]
    assert outputs["indices:0"].tolist() == [[2, 5, 1, 3, 6]]
    sorts = [each for each in model.get_ops() if each.get_type_name() == "TopK"]
    assert sorts and not any(each.get_attributes()["stable"] for each in sorts)


@pytest.mark.parametrize(
    ("scale", "shape"),
    [(2.0, [None, None, None]), ([2.0, 3.0, 5.0], [None, 7, None]), ([2.0, 3.0, 5.0], [2, 7, 9])],
)
def test_openvino_resizes_with_channels_first(tmp_path, scale, shape):
    openvino = pytest.importorskip("openvino")
    pixels = np.random.default_rng(0).integers(0, 255, [2, 7, 9, 3]).astype(np.uint8)
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        images = tf1.placeholder(tf.uint8, [*shape, 3], name="images")
        normal = tf.cast(images, tf.float32) * scale - 1.0
        resized = tf.identity(tf1.image.resize(normal, [4, 5]) + 1.0, name="resized")
        wanted = session.run(resized, {images: pixels})
    model = _openvino_model(graph, ["resized"], tmp_path)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    (actual,) = openvino.compile_model(model, "CPU", options)([pixels]).values()
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)
    kinds = [each.get_type_name() for each in model.get_ordered_ops()]
    assert kinds.index("Transpose") < kinds.index("Multiply") < kinds.index("Interpolate")


def test_onnx_rounds_sizes_up_to_multiples(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    with tf.Graph().as_default() as graph:
        images = tf1.placeholder(tf.float32, [None, None, None, 3], name="images")
        tf.identity(pad_to_multiple(images, 4), name="padded")
        tf.identity(real_pixels(tf.shape(images)[tf.newaxis, 1:], (3, 3), 4), name="real")
    session = onnxruntime.InferenceSession(_convert(Onnx, graph, ["padded", "real"], tmp_path))
    padded, real = session.run(None, {"images:0": np.ones([1, 5, 8, 3], np.float32)})
    assert padded.shape == (1, 8, 8, 3) and real.sum() == 4


def test_openvino_gathers_from_one_image_without_a_crash(tmp_path):
    openvino = pytest.importorskip("openvino")
    values = np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    with tf.Graph().as_default() as graph:
        table = tf1.placeholder(tf.float32, [1, 6, 4], name="images")
        rows = tf.where(table[:, :, 0] > 7.0, 5, 1)

        def add(i, total):
            return i + 1, total + tf.gather(table, rows, batch_dims=1)

        _, total = tf.while_loop(lambda i, _: i < 2, add, add(0, 0.0))
        tf.identity(total, name="total")
    model = _openvino_model(graph, ["total"], tmp_path)
    (loop,) = (each for each in model.get_ops() if each.get_type_name() == "Loop")
    nodes = [*model.get_ops(), *loop.get_function().get_ops()]
    gathers = [each.get_attributes() for each in nodes if each.get_type_name() == "Gather"]
    assert len(gathers) > 1 and not any(each["batch_dims"] for each in gathers)
    outputs = openvino.compile_model(model, "CPU")([values])
    np.testing.assert_array_equal(outputs["total:0"], 2 * values[:, [1, 1, 5, 5, 5, 5]])
    image = openvino.opset1.parameter([1, 2], np.float32)
    without_attribute = openvino.opset1.gather(image, np.array([0]), np.array(1))
    _gather_without_batch(openvino.Model([without_attribute], [image]))


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_images_that_a_model_cannot_use(name, tmp_path):
    chosen = FORMATS.get(name)()
    for module in (*chosen.converter, *chosen.runtime):
        pytest.importorskip(module)
    outputs = [*REQUIRED_OUTPUTS, "raw_detection_boxes"]
    for channels in (5, 3):
        with tf.Graph().as_default() as graph:
            images = tf1.placeholder(tf.float32, [None, None, None, channels], name="images")
            halves = tf1.image.resize(images, tf.shape(images)[1:3] // 2)
            for output in REQUIRED_OUTPUTS:
                tf.reshape(tf.reduce_sum(halves), [1], name=output)
            tf.reshape(halves, [1, -1, channels], name="raw_detection_boxes")
        (tmp_path / str(channels)).mkdir()
        path = _convert(chosen, graph, outputs, tmp_path / str(channels))
        if channels != 3:
            with pytest.raises(RunError, match="takes images of 5 channels, and detect reads"):
                chosen.load(path)
    model = chosen.load(path)
    assert model.run(np.zeros([1, 2, 3, 3])).keys() == {*outputs}
    for shape in ([1, 1, 9, 3], [1, 2, 3, 4]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"pixels|Scale|shape|dimensions"):
            model.run(np.zeros(shape))


def test_outputs_of_openvino_have_no_names_of_inner_operations(tmp_path):
    openvino = pytest.importorskip("openvino")
    images = openvino.opset13.parameter([-1, 4, 4, 3], np.uint8)
    outputs = [openvino.opset13.convert(images, "f32") for _ in REQUIRED_OUTPUTS]
    for output, name in zip(outputs, REQUIRED_OUTPUTS):
        output.output(0).get_tensor().set_names({name, f"Postprocessor/{name}"})
    openvino.save_model(openvino.Model(outputs, [images]), tmp_path / "model.xml")
    model = FORMATS.get("openvino")().load(str(tmp_path / "model.xml"))
    assert set(model.run(np.zeros([1, 4, 4, 3], np.uint8))) == set(REQUIRED_OUTPUTS)

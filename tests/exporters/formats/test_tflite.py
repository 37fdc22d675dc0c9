from __future__ import annotations

import collections
import concurrent.futures
import re
from typing import Any, Dict, List

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf
from estimator_det.compat.private import tflite_schema
from estimator_det.config import pipeline
from estimator_det.detectors.base import make_detector
from estimator_det.errors import RunError, UsageError
from exporters import Detector
from exporters.formats import check, tflite, tflite_metadata
from exporters.formats.tflite import TfliteDetector
from exporters.formats.tflite_metadata import Normalization, add_metadata, read_normalization
from exporters.formats.tflite_reader import POSTPROCESS, read_tflite, unpack
from exporters.network import ExportOptions, TfliteOptions
from tests.conftest import ROOT
from tests.exporters.conftest import NAMES, Trained
from tests.exporters.formats.models import operation_names, tflite_graph

NORMALIZATION = Normalization((127.5,) * 3, (127.5,) * 3)


def _tensors(content: bytes) -> List[Any]:
    graph = tflite_schema().Model.GetRootAsModel(content, 0).Subgraphs(0)
    return [graph.Tensors(i) for i in range(graph.TensorsLength())]


@pytest.fixture(scope="module")
def graph(trained: Trained) -> tflite.TfliteGraph:
    return tflite_graph(trained.config, trained.checkpoint)


@pytest.fixture(scope="module")
def float_model(graph: tflite.TfliteGraph) -> bytes:
    return add_metadata(tflite.convert(graph), graph.normalization, 4, NAMES, "test")


@pytest.fixture(scope="module")
def photos() -> List[np.ndarray]:
    """Smooth images of two sizes."""
    ramp = np.linspace(0, 255, 40 * 60 * 3).reshape(40, 60, 3)
    return [ramp.astype(np.uint8), ramp[::-1, ::2].astype(np.uint8)]


@pytest.fixture(scope="module")
def expected(trained: Trained, photos: List[np.ndarray]) -> List[Dict[str, np.ndarray]]:
    checkpoint = check.CheckpointDetector(trained.config, trained.checkpoint)
    return [checkpoint.run(pixels[None]) for pixels in photos]


def _difference(content, trained, expected, photos, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    model = TfliteDetector(str(path), keeps_raw=True)
    return check.compare(trained.config.model, expected, model, photos)


def test_a_float_model(float_model, trained, expected, photos, tmp_path):
    names = operation_names(float_model)
    assert names[-1] == POSTPROCESS and names.count(POSTPROCESS) == 1
    assert names.count("CONV_2D") == 6 and "MUL" not in names and "FAKE_QUANT" not in names
    found = _difference(float_model, trained, expected, photos, tmp_path)
    assert max(found.scores, found.boxes) < 1e-5 and found.rows > 100
    detector = Detector(str(tmp_path / "model.tflite"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # as a server does
        for each, alone in zip(pool.map(detector, photos * 20), detector(photos) * 20):
            np.testing.assert_array_equal(each.scores, alone.scores)


def test_numbers_of_detections_are_those_of_the_configuration(trained):
    path = "model.ssd.post_processing.batch_non_max_suppression"
    numbers = [f"{path}.max_total_detections=30", f"{path}.max_detections_per_class=8"]
    config = pipeline.apply_overrides(trained.config, numbers)
    for options, total, per_class, text in (
        (TfliteOptions(), 30, 8, "keeps 30 detections of an image at most; boxes of different"),
        (TfliteOptions(use_regular_nms=True), 30, 8, "30 detections of an image at most, 8 of a"),
        (TfliteOptions(max_detections=1, detections_per_class=3), 1, 3, "keeps 1 detection of"),
    ):
        written = tflite.postprocessing_options(config.model.ssd, options)
        assert (written["max_detections"], written["detections_per_class"]) == (total, per_class)
        assert text in tflite.Tflite().limits(config, ExportOptions(tflite=options))
    raw = ExportOptions(tflite=TfliteOptions(add_postprocessing_op=False))
    assert not tflite.Tflite().limits(config, raw)


def test_a_model_without_the_operation(trained, tmp_path):
    options = TfliteOptions(add_postprocessing_op=False)
    content = tflite.convert(tflite_graph(trained.config, trained.checkpoint, options))
    assert POSTPROCESS not in operation_names(content)
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"no operation {POSTPROCESS}; export it with --add"):
        TfliteDetector(str(path))


@pytest.mark.parametrize("quantize", ["float16", "dynamic", "int8"])
def test_quantization_after_training(quantize, graph, trained, expected, photos, tmp_path):
    preprocess = make_detector(trained.config.model, is_training=False).preprocess

    def representative():
        for pixels in photos:
            yield [preprocess(tf.constant(pixels[None], tf.float32))[0].numpy()]

    content = tflite.convert(graph, quantize, representative)
    names = collections.Counter(operation_names(content))
    assert names[POSTPROCESS] == 1 and names["CONV_2D"] == 6
    types = collections.Counter(each.Type() for each in _tensors(content))
    kind = tflite_schema().TensorType
    if quantize == "float16":
        assert types[kind.FLOAT16] >= 6 and names["DEQUANTIZE"] == types[kind.FLOAT16]
    else:
        assert types[kind.INT8] >= 6
    content = add_metadata(content, graph.normalization, 4, NAMES, "test")
    found = _difference(content, trained, expected, photos, tmp_path)
    limit = {"float16": 2e-3, "dynamic": 0.05, "int8": 0.05}[quantize]
    assert max(found.scores, found.boxes) < limit


def test_class_names_and_normalization_of_a_loaded_model(float_model, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(float_model)
    model = TfliteDetector(str(path))
    assert model.class_names == read_tflite(str(path)).label_map == NAMES
    assert model.batch_size == 1 and read_normalization(unpack(float_model)) == NORMALIZATION
    found = Detector(model)(np.full([30, 50, 3], 200, np.uint8))
    assert 0 < len(found.scores) <= 20 and set(found.classes) <= set(NAMES)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_the_code_of_the_page_has_the_scores_of_detect(
    quantize, graph, tmp_path, monkeypatch, pictures
):
    def representative():  # not all levels, so that quantized inputs are not the pixels
        for pixels in np.linspace(-0.5, 0.8, 64 * 96 * 3, dtype=np.float32).reshape(1, 64, 96, 3):
            yield [pixels[np.newaxis]]

    content = tflite.convert(graph, quantize, representative)
    (tmp_path / "exported").mkdir()
    path = tmp_path / "exported" / "model.tflite"
    path.write_bytes(add_metadata(content, graph.normalization, 4, NAMES, "test"))
    Image.fromarray(pictures[0]).save(tmp_path / "photo.jpg")
    page = (ROOT / "docs" / "exporting.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if "tf.lite.Interpreter" in block)
    monkeypatch.chdir(tmp_path)
    names: Dict[str, Any] = {}
    exec(code, names)
    found = Detector(path)("photo.jpg")
    assert len(found) == names["number"] > 0
    atol = 1e-3 if quantize else 1e-5  # a few pixels are rounded to the other side
    np.testing.assert_allclose(names["scores"][: len(found)], found.scores, atol=atol)
    np.testing.assert_allclose(names["boxes"][: len(found)], found.normalized_boxes, atol=atol)


def test_normalizations():
    assert (
        tflite_metadata.measure_normalization(lambda pixels: pixels / 127.5 - 1.0) == NORMALIZATION
    )
    means = (123.68, 116.779, 103.939)
    found = tflite_metadata.measure_normalization(lambda pixels: pixels - tf.constant(means))
    assert found == Normalization(means, (1.0, 1.0, 1.0))
    with pytest.raises(UsageError, match="does not normalize pixels"):
        tflite_metadata.measure_normalization(tf.sqrt)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model { ssd { image_resizer { identity_resizer {} } } }", "is identity_resizer"),
        (
            "model { ssd { image_resizer { keep_aspect_ratio_resizer { max_dimension: 96 } } } }",
            "--set 'model.ssd.image_resizer={ fixed_shape_resizer { height: 96 width: 96 } }'",
        ),
        ("model { ssd { box_coder { square_box_coder {} } } }", "is square_box_coder"),
        (
            "model { ssd { post_processing { batch_non_max_suppression { soft_nms_sigma: 0.5 } } }"
            " }",
            "soft_nms_sigma: is 0.5",
        ),
        ("train_input_reader { num_additional_channels: 1 }", "only color images"),
    ],
)
def test_configurations_that_are_refused(trained, change, message):
    config = pipeline.merge_text(trained.config, change)
    del config.eval_input_reader[:]
    with pytest.raises(UsageError, match=message):
        tflite.check_tflite(config, ExportOptions())


@pytest.mark.parametrize(("dtype", "zero"), [(np.uint8, 128), (np.int8, 0), (np.uint8, 100)])
def test_quantized_inputs_are_clipped(dtype, zero):
    """White is 1.0, one step above the largest number, and must not become the least."""
    model = object.__new__(TfliteDetector)
    model._normalization = NORMALIZATION
    model._input = {"shape": [1, 2, 2, 3], "dtype": dtype, "quantization": (1 / 128, zero)}
    limits = np.iinfo(dtype)
    for pixel, number in ((255, zero + 128), (0, zero - 128), (127, zero - 1), (191, zero + 64)):
        found = model._as_input(np.full([1, 2, 2, 3], pixel, np.uint8))
        assert found.dtype == dtype and found.shape == (1, 2, 2, 3)
        expected = min(max(number, limits.min), limits.max)
        assert set(found.reshape(-1).astype(int)) == {expected}, pixel

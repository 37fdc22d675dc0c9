"""Models that the Object Detection API exports from these weights: operations, options, results."""

from __future__ import annotations

import collections
import json
from typing import Any

import numpy as np
import pytest

from benchmarks.conformance import seeded
from estimator_det.compat import tf, tf1
from estimator_det.compat.private import tflite_interpreter
from estimator_det.config import pipeline
from estimator_det.detectors.base import make_detector
from exporters.formats import tflite
from exporters.formats.tflite_reader import (
    POSTPROCESS,
    find_postprocess,
    postprocess_options,
    unpack,
)
from exporters.network import TfliteOptions
from tests.conftest import MODELS
from tests.exporters.formats.models import operation_names, tflite_graph


@pytest.mark.slow
def test_the_object_detection_api(tmp_path):
    name = "ssd_mobilenet_v1_300x300_coco14_sync"
    folder = MODELS / "quantization" / "tflite"
    golden = json.loads((folder / f"{name}.json").read_text())
    arrays = np.load(folder / f"{name}.npz")
    config = pipeline.read_pipeline(str(MODELS / "pipelines" / f"{name}.config"))
    checkpoint = _save(config, seeded.value, str(tmp_path / "model.ckpt"))
    pixels = np.load(MODELS / "numeric" / "_inputs.npz")["images_300"][:1]
    for key, options in (
        ("float", TfliteOptions(max_detections=10)),
        ("regular_nms_20", TfliteOptions(max_detections=20, use_regular_nms=True)),
    ):
        content = tflite.convert(tflite_graph(config, checkpoint, options))
        if key == "float":
            counts = dict(collections.Counter(operation_names(content)))
            wanted = golden["float"]["op_counts"]
            # The Object Detection API's graph has one reshape more, of [1, A, 1, 4] to [1, A, 4].
            assert counts == {**wanted, "RESHAPE": wanted["RESHAPE"] - 1}
        postprocess = find_postprocess(unpack(content))
        wanted = golden[key]["postprocess"]["options"]
        assert postprocess_options(postprocess) == pytest.approx(wanted)
        path = tmp_path / "model.tflite"
        path.write_bytes(content)
        interpreter = tf.lite.Interpreter(str(path), experimental_preserve_all_tensors=True)
        interpreter.allocate_tensors()
        (image,) = interpreter.get_input_details()
        assert image["name"] == golden["float"]["inputs"][0]["name"]
        interpreter.set_tensor(image["index"], (pixels * (2 / 255) - 1).astype(np.float32))
        interpreter.invoke()
        if key == "float":
            _check_raw(interpreter, postprocess, arrays)
        outputs = zip(interpreter.get_output_details(), golden[key]["outputs"], strict=True)
        for number, (each, stated) in enumerate(outputs):
            assert each["name"] == stated["name"]
            suffix = f"_{number}" if number else ""
            expected = arrays[f"{key}__{POSTPROCESS}{suffix}"]
            found = interpreter.get_tensor(each["index"])
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.slow
def test_ranges_of_training_of_the_object_detection_api(tmp_path):
    """Of a model that was trained with simulated quantization."""
    name = "ssd_mobilenet_v2_quantized_300x300_coco"
    golden = json.loads((MODELS / "quantization" / "tflite" / f"{name}.json").read_text())["uint8"]
    arrays = np.load(MODELS / "quantization" / "tflite" / f"{name}.npz")
    trained = json.loads((MODELS / "quantization" / f"{name}.json").read_text())
    ranges = dict(zip(trained["quant_scopes"], trained["eval"]["damped"]["ranges"]))

    def value(variable: str, shape: Any) -> Any:
        scope, _, end = variable.rpartition("/")
        if scope in ranges:
            return np.float32(ranges[scope][("min", "max").index(end)])
        return seeded.damped_value(variable, shape)

    config = pipeline.read_pipeline(str(MODELS / "pipelines" / f"{name}.config"))
    checkpoint = _save(config, value, str(tmp_path / "model.ckpt"))
    content = tflite.convert(tflite_graph(config, checkpoint))
    counts = dict(collections.Counter(operation_names(content)))
    assert {key: counts[key] for key in golden["op_counts"] if key != "RESHAPE"} == {
        key: count for key, count in golden["op_counts"].items() if key != "RESHAPE"
    }
    # Today's converter gives the operation float32, and concatenations one scale.
    assert set(counts) - set(golden["op_counts"]) <= {"QUANTIZE", "DEQUANTIZE"}
    interpreter = tflite_interpreter(content, keeps_all=True)
    interpreter.allocate_tensors()
    (image,) = interpreter.get_input_details()
    assert image["dtype"] == np.uint8 and image["quantization"] == (1 / 128, 128)
    pixels = np.load(MODELS / "numeric" / "_inputs.npz")["images_300"][:1]
    interpreter.set_tensor(image["index"], pixels)
    interpreter.invoke()
    postprocess = find_postprocess(unpack(content))
    for key, index in zip(("box_encodings", "class_predictions"), postprocess.inputs):
        found = tflite.value_of(interpreter, index)[0]
        difference = np.abs(found[arrays["raw_idx"]] - arrays[f"graph8__{key}"])
        # Three times what the Object Detection API's own conversion differs by.
        assert difference.mean() < 3 * golden[f"raw_{key}"]["mean_abs_diff_to_graph"]
        assert difference.max() < 3 * golden[f"raw_{key}"]["max_abs_diff_to_graph"]


def _check_raw(interpreter, postprocess, arrays):
    encodings, scores, anchors = map(interpreter.get_tensor, postprocess.inputs)
    rows = arrays["raw_idx"]
    np.testing.assert_allclose(encodings[0, rows], arrays["float__raw_box_encodings"], atol=2e-5)
    np.testing.assert_allclose(scores[0, rows], arrays["float__raw_class_predictions"], atol=2e-5)
    rows = arrays["anchors_idx"]
    np.testing.assert_allclose(anchors[rows], arrays["anchors_center_size"], atol=1e-6)


def _save(config: Any, value: Any, path: str) -> str:
    with tf.Graph().as_default():
        size = config.model.ssd.image_resizer.fixed_shape_resizer
        detector = make_detector(config.model, False, config.graph_rewriter)
        with tf1.variable_scope(tf1.get_variable_scope(), use_resource=True):
            detector.predict(tf.zeros([1, size.height, size.width, 3]))
        with tf1.Session() as session:
            variables = tf1.global_variables()
            for each in variables:
                each.load(value(each.op.name, each.shape), session)
            return tf1.train.Saver(variables).save(session, path)

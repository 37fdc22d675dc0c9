"""Detectors that others published, imported: they detect what they did, to rounding."""

import json

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors.base import make_detector
from exporters.importing import importer, mapping
from exporters.importing.own_model import build_own_model
from exporters.reading.published import refuse_not_finite
from inputs import serving
from model_fn.serving.graph import serve

CORNERS = ("ymin", "xmin", "ymax", "xmax")


def _map(real_data, source, folder, file, config="model.config"):
    base = real_data / "real_models" / folder
    config = pipeline.read_pipeline(str(base / config))
    published = importer.read_published(source, str(base / file))
    refuse_not_finite(published)
    return config, mapping.map_variables(build_own_model(config), published)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "folder", "file", "num_folded"),
    [
        pytest.param(
            "tfjs", "coco_ssdlite_v2_tfjs", "model.json", 64, marks=pytest.mark.exhaustive
        ),
        ("tflite", "oid_ssd_v2_tflite", "oidv4_fp16.tflite", 60),
    ],
)
def test_detections_of_published_models_of_real_data(real_data, source, folder, file, num_folded):
    config, mapped = _map(real_data, source, folder, file)
    assert not [row for row in mapped.rows if row.state in (mapping.MISSING, mapping.OTHER_SHAPE)]
    assert len(mapped.folded) == num_folded
    expected = json.loads(
        (real_data / "real_models" / folder / "expected_detections.json").read_text()
    )
    name, count = "image1.jpg", 0
    pixels = np.asarray(Image.open(real_data / "data" / name).convert("RGB"))
    found = _detect(config, mapped.values, pixels)
    for one in expected[name]:
        same = found["detection_classes"][0] == one["class_id"]
        scores = np.where(same, np.abs(found["detection_scores"][0] - one["score"]), 1)
        best = int(np.argmin(scores))
        assert scores[best] < 1e-5
        box = [one["box"][corner] for corner in CORNERS]
        np.testing.assert_allclose(found["detection_boxes"][0, best], box, atol=1e-5)
        count += 1
    assert count == (found["detection_scores"][0] > 0.5).sum() > 0


def _detect(config, values, pixels):
    detector = make_detector(config.model, is_training=False)
    with tf.Graph().as_default():
        receiver = serving.make_receiver("image_tensor", detector.preprocess, None, 0)
        _, outputs = serve(detector, receiver.inputs, receiver.true_shapes)
        setters = {each.op.name: each.initializer for each in tf1.global_variables()}
        with tf1.Session() as session:
            fed = {setters[name].inputs[1]: value for name, value in values.items()}
            session.run(list(setters.values()), fed)
            (image,) = receiver.placeholders.values()
            return session.run(outputs, {image: pixels[np.newaxis]})


@pytest.mark.slow
def test_frozen_graph_of_real_data_that_the_object_detection_api_wrote(real_data):
    file = "frozen_inference_graph.pb"
    _, mapped = _map(real_data, "frozen_graph", "native_tf115_pets", file, "pipeline.config")
    assert {row.state for row in mapped.rows} == {mapping.COPIED}
    prefix = str(real_data / "real_models" / "native_tf115_pets" / "model.ckpt")
    reader = tf1.train.NewCheckpointReader(prefix)
    for name, values in mapped.values.items():
        np.testing.assert_array_equal(values, reader.get_tensor(name))

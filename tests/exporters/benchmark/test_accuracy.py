from __future__ import annotations

from typing import Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf
from exporters.benchmark.measure import evaluate_model
from exporters.loaded_model import LoadedModel
from inputs.datasets import writer
from model_fn.evaluation.detections.scoring import config_of_records
from tests.inputs.examples import BOXES, example

BOX_FIELDS = [list(values) for values in zip(*BOXES.values())]  # ymin, xmin, ymax, xmax


class _Fixed(LoadedModel):
    """Detects the same on every image, eagerly, as some formats do."""

    def __init__(self, classes: List[int]) -> None:
        super().__init__("fixed", {}, "")
        self._classes = classes

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        assert tf.executing_eagerly()
        assert images.dtype == np.uint8 and images.shape == (1, 8, 12, 3)
        boxes = np.array([[BOX_FIELDS[1], BOX_FIELDS[0], [0.0] * 4]], np.float32)
        return {
            "detection_boxes": boxes,
            "detection_scores": np.array([[0.9, 0.8, 0]], np.float32),
            "detection_classes": np.array([[*self._classes, 1]], np.float32),
            "num_detections": np.array([2], np.float32),
        }


@pytest.mark.parametrize(("classes", "expected"), [([2, 1], 1.0), ([2, 2], 0.5)])
def test_map_of_records(classes, expected, tmp_path):
    label_map = str(tmp_path / "map.pbtxt")
    writer.write_label_map({1: "cat", 2: "dog"}, label_map)
    record = str(tmp_path / "a.record")
    with tf.io.TFRecordWriter(record) as records:
        for name in "ab":
            labels = {"image/object/class/label": [1, 2], "image/source_id": name}
            records.write(example({**BOXES, **labels}))
    config = config_of_records([record], label_map)
    found = evaluate_model(_Fixed(classes), config, 1 if expected == 1.0 else None)
    assert found["DetectionBoxes_Precision/mAP@.50IOU"] == pytest.approx(expected)

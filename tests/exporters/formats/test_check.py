import re

import numpy as np
import pytest

from estimator_det.protos import model_pb2
from exporters.formats import check
from exporters.formats.base import EXACT, Tolerance
from exporters.loaded_model import LoadedModel


class _Fixed(LoadedModel):
    def __init__(self, outputs):
        super().__init__("model", {}, "")
        self.outputs = outputs

    def run(self, images):
        return self.outputs


def _outputs(**changes):
    raw_scores = np.float32([[[0.1, 0.9, 0.2], [0.3, 0.4, 0.8]]])
    raw_boxes = np.float32([[[0.1, 0.2, 0.5, 0.6], [-0.1, 0.3, 0.7, 1.2]]])
    found = {
        "raw_detection_scores": raw_scores,
        "raw_detection_boxes": raw_boxes,
        "num_detections": np.float32([2]),
        "detection_boxes": np.float32([[[0.1, 0.2, 0.5, 0.6], [0.0, 0.3, 0.7, 1.0]]]),
        "detection_scores": np.float32([[0.9, 0.8]]),
        "detection_classes": np.float32([[1, 2]]),
    }
    return {**found, **{key: np.float32(value) for key, value in changes.items()}}


def _model(kind="ssd"):
    config = model_pb2.DetectionModel()
    if kind == "ssd":
        config.ssd.num_classes = 2
        config.ssd.image_resizer.fixed_shape_resizer.height = 300
    else:
        config.faster_rcnn.num_classes = 2
    return config


IMAGE = [np.zeros([4, 4, 3], np.uint8)]


def _compare(found, kind="ssd"):
    return check.compare(_model(kind), [_outputs()], _Fixed(found), IMAGE)


@pytest.mark.parametrize(
    ("changes", "scores", "boxes"),
    [
        ({}, 0, 0),
        ({"detection_scores": [[0.9, 0.7]]}, 0.1, 0),
        ({"detection_boxes": [[[0.1, 0.2, 0.5, 0.6], [0.0, 0.5, 0.7, 1.0]]]}, 0, 0.2),
        ({"detection_classes": [[1, 1]]}, np.inf, None),
        ({"num_detections": [1]}, np.inf, None),
        ({"num_detections": [0]}, 0.9, 0.9),
        ({"detection_keypoints": [[[[0.1, 0.2]], [[0.5, 0.3]]]]}, 0, 0.3),
        ({"detection_keypoint_scores": [[[0.9], [0.5]]]}, 0.3, 0),
    ],
)
def test_models_without_raw_predictions_are_compared_by_detections(changes, scores, boxes):
    points = {
        "detection_keypoints": np.float32([[[[0.1, 0.2]], [[0.5, 0.6]]]]),
        "detection_keypoint_scores": np.float32([[[0.9], [0.8]]]),
    }
    outputs = {**points, **_outputs(**changes)}
    outputs = {k: v for k, v in outputs.items() if not k.startswith("raw_")}
    found = check.compare(_model(), [{**_outputs(), **points}], _Fixed(outputs), IMAGE)
    assert found.scores == pytest.approx(scores)
    assert boxes is None or found.boxes == pytest.approx(boxes)


@pytest.mark.parametrize("place", [0, 1])
def test_nan_for_one_of_two_images_is_refused(place):
    class Model(LoadedModel):
        def run(self, images):
            raw = _outputs()["raw_detection_scores"]
            spoiled = images.max() == place
            return _outputs(raw_detection_scores=raw * np.nan if spoiled else raw)

    images = [np.full([4, 4, 3], i, np.uint8) for i in range(2)]
    found = check.compare(_model(), [_outputs()] * 2, Model("model", {}, ""), images)
    assert np.isnan(found.scores) and np.isnan(found.usual_scores) and found.rows == 8
    why = check.failure_reason("model", found, Tolerance(1.0, 1.0))
    assert why is not None and "does not give what the checkpoint gives" in why


RAW = _outputs()
MOVED = RAW["raw_detection_boxes"] + np.float32([0, 0.5, 0, 0])


@pytest.mark.parametrize(
    ("changes", "scores", "boxes"),
    [
        ({"raw_detection_scores": RAW["raw_detection_scores"] + [0, 0, 0.25]}, 0.25, 0),
        ({"raw_detection_boxes": MOVED}, 0, 0.5),
        ({"raw_detection_boxes": MOVED[:, :1]}, np.inf, np.inf),
        # Each detection has the class of the other one, or of the background.
        ({"detection_classes": [[2, 1]]}, 0.1, 0.4),
        ({"detection_classes": [[0, 1]]}, 0.6, 0.4),
        ({"detection_boxes": [[[0.4, 0.2, 0.5, 0.6], [0.0, 0.3, 0.7, 1.0]]]}, 0, 0.3),
        ({"num_detections": [0]}, 0.9, 0.9),
        ({"num_detections": [0], "detection_scores": [[0, 0]]}, 0.9, 0.9),
    ],
)
def test_differences(changes, scores, boxes):
    found = _compare(_outputs(**changes))
    assert (found.scores, found.boxes) == (pytest.approx(scores), pytest.approx(boxes))
    text = "raw_detection_boxes of an image has shape [1, 4], and [2, 4] in the checkpoint"
    assert (check.describe(found) == text) == (boxes == np.inf)


def test_proposals_may_change_places():
    found = _outputs()
    swapped = {key: value[:, ::-1] if value.ndim == 3 else value for key, value in found.items()}
    assert _compare(swapped, "faster_rcnn") == (0.0, 0.0, 2, 0.0, 0.0, "")
    assert _compare(swapped).scores > 0.3


def test_differences_above_the_tolerance_are_refused():
    difference = check.ModelDifference(0.1, 0.01, 5, 0.02, 0.002)
    assert check.failure_reason("a.tflite", difference, Tolerance(0.1, 0.01)) is None
    usual = Tolerance(0.02, 0.002, uses_quantile=True)
    assert check.failure_reason("a.tflite", difference, usual) is None
    for tolerance in (
        Tolerance(0.09, 1),
        Tolerance(1, 0.009),
        Tolerance(0.01, 1, uses_quantile=True),
        Tolerance(1, 0.001, uses_quantile=True),
    ):
        why = check.failure_reason("a.tflite", difference, tolerance)
        assert re.match(r"a.tflite does not give .* scores differ by 0.1, ", why)


# Boxes as an early checkpoint at a high learning rate has them.
HUGE = np.float32([[[-30_000.0, 0.2, 40_000.0, 0.6], [5_000.0, -900.0, 5_100.0, np.inf]]])


@pytest.mark.parametrize("kind", ["ssd", "faster_rcnn"])
def test_boxes_of_many_images_differ_relative_to_their_size(kind):
    expected = _outputs(raw_detection_boxes=HUGE, num_detections=[0], detection_scores=[[0, 0]])

    def compare(boxes):
        model = _Fixed({**expected, "raw_detection_boxes": np.float32(boxes)})
        return check.compare(_model(kind), [expected], model, IMAGE)

    rounded = compare(HUGE * np.float32([1 + 1e-6, 1, 1 - 1e-6, 1]))
    assert 0 < rounded.boxes < 1e-5 and rounded.scores == 0
    assert check.failure_reason("model", rounded, EXACT) is None
    for wrong in (HUGE * 1.01, HUGE + 100, HUGE[..., [1, 0, 3, 2]], HUGE * np.nan, -HUGE):
        assert check.failure_reason("model", compare(wrong), EXACT) is not None


@pytest.mark.parametrize("kind", ["ssd", "faster_rcnn"])
def test_boxes_in_the_image_differ_as_fractions_of_it(kind):
    """However small the box is, and whatever others there are."""
    expected = _outputs()
    expected["raw_detection_boxes"][0, 0] = [0.1, 0.2, 0.11, 0.21]
    expected["raw_detection_boxes"][0, 1] = HUGE[0, 0]
    for moved, is_refused in ((0.0009, False), (0.0011, True)):
        model = _Fixed({**expected, "num_detections": np.float32([0])})
        model.outputs["raw_detection_boxes"] = expected["raw_detection_boxes"] + np.float32(
            [[[moved, 0, 0, 0], [0, 0, 0, 0]]]
        )
        silent = {**expected, "detection_scores": np.float32([[0, 0]])}
        found = check.compare(_model(kind), [silent], model, IMAGE)
        assert found.boxes == pytest.approx(moved, rel=1e-3)
        assert (check.failure_reason("model", found, EXACT) is not None) == is_refused

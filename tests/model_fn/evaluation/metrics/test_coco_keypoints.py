"""Metrics of keypoints by hand, and configurations of them that are refused."""

from __future__ import annotations

import math
from typing import Any, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import EvaluatedBatch, make_metrics
from model_fn.evaluation.metrics.overlaps import keypoint_similarity
from tests.model_fn.evaluation.metrics import hand

POINTS = [{"id": 0, "name": "nose"}, {"id": 2, "name": "tail"}]
CATEGORIES = [
    {"id": 1, "name": "cat", "keypoints": POINTS},
    {"id": 2, "name": "dog", "keypoints": POINTS[:1]},
    {"id": 3, "name": "car"},
]
# Of one cat in a box of 40 x 40; the second of three keypoints is not one of cats.
BOX = (1, 0, 0, 40, 40)
TRUE = [[[10.0, 10.0], [math.nan, math.nan], [30.0, 30.0]]]
MAP = "Keypoints_Precision/mAP ByCategory/cat"


def _config(text: str = 'class_label: "cat"') -> eval_pb2.EvalConfig:
    inner = f"parameterized_metric {{ coco_keypoint_metrics {{ {text} }} }}"
    return text_format.Parse(inner, eval_pb2.EvalConfig())


def _batch(found: List[Any], **fields: Any) -> EvaluatedBatch:
    """Detections in the box, with these keypoints."""
    detections = [(0.9 - 0.1 * number, *BOX) for number in range(len(found))]
    fields = {"keypoints": TRUE, **fields}
    batch = hand.image([BOX], detections, detection_keypoints=found, **fields)
    return batch


def _results(batch: EvaluatedBatch, config: eval_pb2.EvalConfig) -> Dict[str, float]:
    coco, *sets = make_metrics(config, CATEGORIES)
    assert coco.names[0] == "DetectionBoxes_Precision/mAP"  # In addition to the sets.
    (metrics,) = sets
    metrics.add(batch)
    results = metrics.results()
    assert list(results) == metrics.names
    return results


def test_similarity() -> None:
    """exp(-d^2 / (2 area (2 sigma)^2)): with sigma 0.05, area 1600 and d = 4, exp(-1/2)."""
    true, none = np.array([[[0.0, 0.0], [8.0, 8.0]]]), np.array([[True, True]])
    detected = np.array([[[4.0, 0.0], [8.0, 8.0]]])
    box, area = np.array([[0.0, 0.0, 40.0, 40.0]]), np.array([1600.0])
    sigmas = np.array([0.05, 0.05])
    found = keypoint_similarity(detected, true, none, box, area, sigmas)
    np.testing.assert_allclose(found, [[(math.exp(-0.5) + 1) / 2]])
    one = keypoint_similarity(detected, true, np.array([[True, False]]), box, area, sigmas)
    np.testing.assert_allclose(one, [[math.exp(-0.5)]])
    # Without labels, what is within three times the box is at distance 0.
    far = np.array([[[-40.0, 80.0], [84.0, 0.0]]])
    unlabeled = keypoint_similarity(far, true, ~none, box, area, sigmas)
    np.testing.assert_allclose(unlabeled, [[(1 + math.exp(-0.5)) / 2]])


def test_what_is_found() -> None:
    """The second keypoint does not matter; the better one of two counts first."""
    exact = [[10.0, 10.0], [0.0, 0.0], [30.0, 30.0]]
    results = _results(_batch([exact]), _config())
    assert results[MAP] == pytest.approx(1.0)
    assert results["Keypoints_Recall/AR@1 ByCategory/cat"] == pytest.approx(1.0)
    off = [[10.0, 14.0], [0.0, 0.0], [30.0, 34.0]]  # similarity exp(-1/2), about 0.61
    results = _results(_batch([off]), _config())
    assert results[MAP] == pytest.approx(0.3)  # At the thresholds 0.5, 0.55 and 0.6.
    assert results["Keypoints_Precision/mAP@.50IOU ByCategory/cat"] == pytest.approx(1.0)
    # The names of the reference: AR@10 is the recall at 0.5, AR@100 that at 0.75.
    assert results["Keypoints_Recall/AR@10 ByCategory/cat"] == pytest.approx(1.0)
    assert results["Keypoints_Recall/AR@100 ByCategory/cat"] == 0.0
    # With a sigma of 0.1, the similarity is exp(-1/8), about 0.88.
    sigmas = "".join(
        f'keypoint_label_to_sigmas {{ key: "{n}" value: 0.1 }}' for n in ("nose", "tail")
    )
    results = _results(_batch([off]), _config(f'class_label: "cat" {sigmas}'))
    assert results[MAP] == pytest.approx(0.8)


def test_keypoints_that_are_not_visible_do_not_count() -> None:
    off = [[10.0, 10.0], [0.0, 0.0], [0.0, 0.0]]
    visible = [[True, False, False]]
    results = _results(_batch([off], keypoint_visibilities=visible), _config())
    assert results[MAP] == pytest.approx(1.0)
    nowhere = [[[math.nan, math.nan]] * 3]
    results = _results(_batch([off], keypoints=nowhere), _config())
    assert results[MAP] == -1.0  # An object without labels is ignored, and so is what finds it.


def test_all_classes_with_keypoints() -> None:
    """In metrics_set, the name stands for each class that no parameterized metric names."""
    config = eval_pb2.EvalConfig(metrics_set=["coco_keypoint_metrics"])
    (every,) = make_metrics(config, CATEGORIES)
    assert {name.rsplit("/", 1)[1] for name in every.names} == {"cat", "dog"}
    assert every.num_keypoints == 3
    every.add(_batch([TRUE[0]]))
    results = every.results()
    assert results[MAP] == pytest.approx(1.0)
    assert results["Keypoints_Precision/mAP ByCategory/dog"] == -1.0
    config.MergeFrom(_config())
    dogs, cats = make_metrics(config, CATEGORIES)
    assert {name.rsplit("/", 1)[1] for name in dogs.names} == {"dog"}
    assert {name.rsplit("/", 1)[1] for name in cats.names} == {"cat"}


FIELD = r"eval_config\.parameterized_metric\[0\]\.coco_keypoint_metrics"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('class_label: "cats"', rf"^{FIELD}\.class_label: 'cats' is no class .*mean 'cat'\?"),
        ('class_label: "car"', rf"^{FIELD}\.class_label: class 'car' has no keypoints"),
        (
            'class_label: "cat" keypoint_label_to_sigmas { key: "nos" value: 1 }',
            rf"^{FIELD}\.keypoint_label_to_sigmas: 'nos' is no keypoint .*mean 'nose'\?",
        ),
        (
            'class_label: "cat" keypoint_label_to_sigmas { key: "nose" value: 0 }',
            rf"^{FIELD}\.keypoint_label_to_sigmas\['nose'\] is 0; give a number above 0",
        ),
    ],
)
def test_configurations_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_metrics(_config(text), CATEGORIES)


def test_incomplete_configurations_are_refused() -> None:
    empty = eval_pb2.EvalConfig(parameterized_metric=[{}])
    with pytest.raises(ConfigError, match=r"^eval_config\.parameterized_metric\[0\]: one of"):
        make_metrics(empty, CATEGORIES)
    config = eval_pb2.EvalConfig(metrics_set=["coco_keypoint_metrics"])
    with pytest.raises(ConfigError, match="needs a label map whose classes have keypoints"):
        make_metrics(config, CATEGORIES[2:])
    twice = _config()
    twice.MergeFrom(_config())
    with pytest.raises(ConfigError, match=r"\[1\]: 'Keypoints_.*cat' is given twice"):
        make_metrics(twice, CATEGORIES)


def test_batches_with_too_few_keypoints_are_errors() -> None:
    (_, metrics) = make_metrics(_config(), CATEGORIES)
    batch = _batch([TRUE[0]])
    for field in ("keypoints", "detection_keypoints"):
        with pytest.raises(ValueError, match=f"needs 3 keypoints; {field} of the batch has 2"):
            metrics.add(batch._replace(**{field: getattr(batch, field)[:, :, :2]}))

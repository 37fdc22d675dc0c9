"""Panoptic quality by hand."""

from __future__ import annotations

import math
from typing import Any, Dict

import pytest

from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import EvaluatedBatch, make_metrics
from tests.model_fn.evaluation.metrics import hand

CAT = (1, 0, 0, 10, 10)
MOST_OF_CAT = (1, 0, 0, 10, 8)


def _results(*batches: EvaluatedBatch, **options: Any) -> Dict[str, float]:
    config = eval_pb2.EvalConfig(metrics_set=["coco_panoptic_metrics"], **options)
    (metrics,) = make_metrics(config, hand.CATEGORIES)
    for batch in batches:
        metrics.add(hand.with_masks(batch))
    found = metrics.results()
    assert set(found) == set(metrics.names)
    return {key.replace("Quality@0.50IOU", ""): value for key, value in found.items()}


def test_one_of_two_and_one_too_many() -> None:
    """IoU 0.8 of one pair; one wrong, one missed: 0.8 x 1 / (1 + 1/2 + 1/2)."""
    boxes = [CAT, (1, 50, 50, 60, 60)]
    detections = [(0.9, *MOST_OF_CAT), (0.8, 1, 80, 80, 90, 90)]
    results = _results(hand.image(boxes, detections))
    assert results["Segmentation"] == pytest.approx(0.8)
    assert results["Recognition"] == pytest.approx(0.5)
    assert results["Panoptic"] == pytest.approx(0.4)
    assert (results["NumValidClasses"], results["NumTotalClasses"]) == (1, 3)


def test_detections_match_in_their_order() -> None:
    """The first one takes the cat, whatever its score."""
    results = _results(hand.image([CAT], [(0.1, *MOST_OF_CAT), (0.9, *CAT)]))
    assert results["Segmentation"] == pytest.approx(0.8)
    assert results["Recognition"] == pytest.approx(1 / 1.5)


def test_a_detection_in_a_crowd_is_neither_right_nor_wrong() -> None:
    crowd = (1, 0, 0, 100, 50)
    inside, half = (0.9, 1, 20, 0, 30, 10), (0.8, 1, 20, 45, 30, 55)
    outside = (0.7, 1, 20, 46, 30, 56)
    boxes, found = [crowd, (1, 80, 80, 90, 90)], (0.9, 1, 80, 80, 90, 90)
    batch = hand.image(boxes, [inside, half, found], is_crowd=[True, False])
    assert _results(batch)["Panoptic"] == pytest.approx(1.0)
    batch = hand.image(boxes, [inside, outside, found], is_crowd=[True, False])
    assert _results(batch)["Panoptic"] == pytest.approx(1 / 1.5)


def test_nothing_at_all() -> None:
    results = _results(hand.image([], []))
    assert math.isnan(results["Panoptic"]) and results["NumValidClasses"] == 0

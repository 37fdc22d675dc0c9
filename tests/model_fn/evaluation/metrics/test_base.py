from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import METRICS, make_metrics
from model_fn.evaluation.metrics.base import (
    EVAL_FIELDS,
    chosen_metrics,
    detections_of,
    has_class,
)
from tests.model_fn.evaluation.metrics import hand

CATEGORIES = [
    {**category, "keypoints": [{"id": 0, "name": "nose"}]} for category in hand.CATEGORIES
]


def test_ids_outside_of_a_vector_are_not_in_it() -> None:
    found = has_class(np.float32([1, 0, 1]), np.int32([1, 2, 3, 4, 0, -1]))
    assert found.tolist() == [True, False, True, False, False, False]


def test_detections_of_unlabeled_classes() -> None:
    detections = [(0.9, 1, 0, 0, 1, 1), (0.8, 2, 0, 0, 1, 1), (0.7, 9, 0, 0, 1, 1)]
    batch = hand.image([], detections, labeled_classes=[0.0, 1.0])
    assert detections_of(batch, 0).tolist() == [0, 1, 2]
    assert detections_of(batch, 0, skip_unlabeled=True).tolist() == [1]


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_set(name: str) -> None:
    """It gives a value for each of its names, without images and with two empty ones."""
    config = eval_pb2.EvalConfig(metrics_set=[name], include_metrics_per_category=True)
    (metrics,) = make_metrics(config, CATEGORIES)
    points = {"keypoints": np.zeros((0, 1, 2)), "detection_keypoints": np.zeros((0, 1, 2))}
    empty = hand.with_masks(hand.image([], [], **points))
    batches: List[List[Any]] = [[], [empty, empty]]
    for given in batches:
        for batch in given:
            metrics.add(batch)
        results = metrics.results()
        assert list(dict.fromkeys(metrics.names)) == metrics.names
        assert set(results) == set(metrics.names)
        values = [value for key, value in results.items() if not key.startswith("Num")]
        assert all(value == -1 or np.isnan(value) for value in values)
        assert all(isinstance(value, float) for value in results.values())
    assert set(EVAL_FIELDS) == set(METRICS)
    assert metrics.needs <= {"masks", "keypoints", "detection_keypoints"}


def test_names_of_different_sets_differ() -> None:
    chosen = chosen_metrics(eval_pb2.EvalConfig(metrics_set=sorted(METRICS)))
    config = eval_pb2.EvalConfig(metrics_set=chosen, include_metrics_per_category=True)
    names = [name for metrics in make_metrics(config, CATEGORIES) for name in metrics.names]
    assert len(names) == len(set(names))
    assert len(chosen) == 14

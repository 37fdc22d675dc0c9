from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import METRICS
from model_fn.evaluation.metrics.average_precision_sets import PRECISION_AT_RECALL as NAME
from model_fn.evaluation.metrics.base import EvaluatedBatch

CATEGORIES = [{"id": 1, "name": "cat"}]


def test_nothing_at_all() -> None:
    results = METRICS.get(NAME)(eval_pb2.EvalConfig(), CATEGORIES).results()
    assert np.isnan(list(results.values())).all() and len(results) == 2


@pytest.mark.parametrize("bounds", [(0.5, 0.4), (-0.1, 1.0), (0.0, 1.1), (float("nan"), 1.0)])
def test_bounds_that_contain_no_recall_are_errors(bounds: Any) -> None:
    config = eval_pb2.EvalConfig(recall_lower_bound=bounds[0], recall_upper_bound=bounds[1])
    with pytest.raises(ConfigError, match=r"eval_config\.recall_lower_bound is"):
        METRICS.get(NAME)(config, CATEGORIES)


def test_the_lower_bound_belongs_to_the_range() -> None:
    boxes = np.float32([[[0, 0, 10, 10], [20, 20, 30, 30]]])
    batch = EvaluatedBatch(
        detection_boxes=np.float32([[boxes[0, 0], [50, 50, 60, 60], boxes[0, 1]]]),
        detection_scores=np.float32([[0.9, 0.8, 0.7]]),
        detection_classes=np.ones((1, 3), np.int32),
        num_detections=np.int32([3]),
        boxes=boxes,
        classes=np.ones((1, 2), np.int32),
        num_boxes=np.int32([2]),
    )
    metrics = METRICS.get(NAME)(eval_pb2.EvalConfig(recall_lower_bound=0.5), CATEGORIES)
    metrics.add(batch)
    # Right, wrong, right: precision 1 at recall 1/2, and 2/3 at recall 1.
    np.testing.assert_allclose(list(metrics.results().values()), 0.5 + 0.5 * 2 / 3)

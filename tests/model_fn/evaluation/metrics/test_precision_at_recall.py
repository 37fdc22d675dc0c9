from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import METRICS, EvaluatedBatch, make_metrics
from model_fn.evaluation.metrics.precision_at_recall import NAME, PrecisionAtRecall
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("recall_metrics")
CATEGORIES = [{"id": k, "name": f"cat{k}"} for k in range(1, 5)]
# EvaluatedBatch field -> array; classes from 1, and a labeled class for the background.
FIELDS = {
    "detection_boxes": "det_boxes",
    "detection_scores": "det_scores",
    "detection_classes": "det_classes",
    "boxes": "gt_boxes",
    "classes": "gt_classes",
    "difficult": "gt_difficult",
    "is_crowd": "gt_crowd",
    "area": "gt_area",
    "labeled_classes": "gt_labeled_multihot",
}
OPTIONAL = {"difficult": "difficult", "is_crowd": "crowd", "area": "area",
            "labeled_classes": "labeled_multihot"}  # fmt: skip


def _image(name: str, given: List[str]) -> EvaluatedBatch:
    """One image of the golden numbers, padded by one row of nonsense."""
    arrays: Dict[str, Any] = {}
    for field, key in FIELDS.items():
        if field in OPTIONAL and OPTIONAL[field] not in given:
            continue
        rows = ARRAYS[f"{name}__{key}"]
        if field == "labeled_classes":
            arrays[field] = rows[np.newaxis, 1:]
            continue
        padding = np.ones((1, *rows.shape[1:]), rows.dtype)
        arrays[field] = np.concatenate([rows, padding])[np.newaxis]
    return EvaluatedBatch(
        num_detections=np.array([arrays["detection_scores"].shape[1] - 1]),
        num_boxes=np.array([arrays["classes"].shape[1] - 1]),
        **arrays,
    )


@pytest.mark.parametrize("case", sorted(SETTINGS["cases"]))
def test_golden(case: str) -> None:
    setting = SETTINGS["cases"][case]
    config = eval_pb2.EvalConfig(metrics_set=[setting["metric"]])
    for field in (
        "recall_lower_bound",
        "recall_upper_bound",
        "skip_predictions_for_unlabeled_class",
    ):
        if field in setting:
            setattr(config, field, setting[field])
    (metrics,) = make_metrics(config, CATEGORIES)
    images = setting["inputs"].split(".")[0][:-1]
    for _ in range(2):  # A second evaluation keeps its options.
        for number in range(8):
            metrics.add(_image(f"{images}{number}", setting["groundtruth_fields"]))
        results = metrics.results()
        assert sorted(results) == sorted(metrics.names)
        assert set(results) == set(SETTINGS["results"][case])
        for name, expected in SETTINGS["results"][case].items():
            assert results[name] == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True), name


def test_nothing_at_all() -> None:
    results = PrecisionAtRecall(CATEGORIES[:1]).results()
    assert np.isnan(list(results.values())).all() and len(results) == 2


@pytest.mark.parametrize("bounds", [(0.5, 0.4), (-0.1, 1.0), (0.0, 1.1), (float("nan"), 1.0)])
def test_bounds_that_contain_no_recall_are_errors(bounds: Any) -> None:
    config = eval_pb2.EvalConfig(recall_lower_bound=bounds[0], recall_upper_bound=bounds[1])
    with pytest.raises(ConfigError, match=r"eval_config\.recall_lower_bound: is"):
        METRICS.get(NAME)(config, CATEGORIES)

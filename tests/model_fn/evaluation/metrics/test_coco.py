from __future__ import annotations

import logging
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import METRICS, EvaluatedBatch, base, make_metrics
from model_fn.evaluation.metrics.coco import CocoBoxMetrics
from model_fn.evaluation.metrics.run_lengths import Masks
from tests.conftest import golden_component
from tests.model_fn.evaluation.metrics.golden import make_batch, stacked

SETTINGS, ARRAYS = golden_component("metrics")
CATEGORIES = SETTINGS["categories"]


@pytest.mark.parametrize(("case", "fields"), [("coco", []), ("coco_crowd", ["crowd"])])
@pytest.mark.parametrize("size", [6, 2])
def test_golden(case: str, fields: List[str], size: int) -> None:
    metrics = CocoBoxMetrics(CATEGORIES)
    for first in range(0, 6, size):
        images = [f"img{k}" for k in range(first, first + size)]
        metrics.add(make_batch(images, fields, [], ARRAYS))
    results = metrics.results()
    assert list(results) == metrics.names
    assert set(results) == set(SETTINGS["results"][case])
    for name, expected in SETTINGS["results"][case].items():
        assert results[name] == pytest.approx(expected, rel=1e-6, abs=1e-9), name


def test_two_sets_share_encoded_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of the whole image, as boxes that fill it."""
    encoded: List[Any] = []
    encode, images = base.encode_masks, ["mask0", "mask1", "mask2"]
    monkeypatch.setattr(base, "encode_masks", lambda *a: encoded.append(a) or encode(*a))
    names = ["coco_mask_metrics", "pascal_voc_instance_segmentation_metrics"]
    sets = make_metrics(eval_pb2.EvalConfig(metrics_set=names), CATEGORIES)
    batch = make_batch(images, [], [], ARRAYS)
    height, width = ARRAYS["mask0__gt_masks"].shape[1:]
    sizes = np.tile(np.int32([height, width]), (len(images), 1))
    whole = np.float32([0, 0, height, width])
    masks = (stacked(images, f"{kind}_masks", ARRAYS).astype(np.float32) for kind in ("det", "gt"))
    batch = batch._replace(
        detection_boxes=np.broadcast_to(whole, (*batch.detection_scores.shape, 4)),
        masks=Masks(*masks, real_sizes=sizes, image_sizes=sizes),
    )
    base.add_to_all(sets, batch)
    values = {name: value for each in sets for name, value in each.results().items()}
    assert len(encoded) == 1
    expected = {**SETTINGS["results"]["coco_masks"], **SETTINGS["results"]["pascal_masks"]}
    assert values == pytest.approx(expected, rel=1e-6, nan_ok=True)


def _one_image(**changes: Any) -> EvaluatedBatch:
    batch: Dict[str, Any] = {
        "detection_boxes": np.array([[[0, 0, 10, 10], [20, 20, 40, 40]]], np.float32),
        "detection_scores": np.array([[0.9, 0.8]], np.float32),
        "detection_classes": np.array([[1, 2]], np.int32),
        "num_detections": np.array([2], np.int32),
        "boxes": np.array([[[0, 0, 10, 10], [100, 100, 140, 140]]], np.float32),
        "classes": np.array([[1, 2]], np.int32),
        "num_boxes": np.array([2], np.int32),
    }
    return EvaluatedBatch(**{**batch, **changes})


def test_per_category_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    config = eval_pb2.EvalConfig(include_metrics_per_category=True, all_metrics_per_category=True)
    config.super_categories["animals"] = "cat1, cat2"
    (metrics,) = make_metrics(config, CATEGORIES)
    metrics.add(_one_image())
    results = metrics.results()
    assert set(results) == set(metrics.names)
    # Category 1 is found, 2 is missed, 3 and 4 do not occur.
    assert results["DetectionBoxes_Precision/mAP"] == pytest.approx(0.5)
    by_category = "DetectionBoxes_PerformanceByCategory/mAP/cat"
    assert [results[f"{by_category}{k}"] for k in (1, 2, 3)] == pytest.approx([1.0, 0.0, -1.0])
    assert results["DetectionBoxes_Precision/mAP (small) ByCategory/cat1"] == pytest.approx(1.0)
    assert results["DetectionBoxes_Recall/AR@1 ByCategory/cat2"] == 0.0
    assert results["DetectionBoxes_PerformanceBySuperCategory/animals"] == pytest.approx(0.5)
    assert capsys.readouterr().out == ""


def test_results_forget_and_explain_minus_one(caplog: pytest.LogCaptureFixture) -> None:
    metrics = CocoBoxMetrics(CATEGORIES)
    metrics.add(_one_image())
    assert metrics.results()["DetectionBoxes_Precision/mAP"] == pytest.approx(0.5)
    with caplog.at_level(logging.WARNING):
        metrics.add(_one_image(num_boxes=np.array([0], np.int32)))
        assert metrics.results()["DetectionBoxes_Precision/mAP"] == -1.0
    assert "none of the 0 groundtruth boxes of the 1 images" in caplog.text


def test_unknown_sets_and_categories_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'coco_detection_metrics'"):
        make_metrics(eval_pb2.EvalConfig(metrics_set=["coco_detection_metric"]), CATEGORIES)
    config = eval_pb2.EvalConfig(include_metrics_per_category=True)
    config.super_categories["animals"] = "cat1,dog"
    with pytest.raises(ConfigError, match="dog"):
        make_metrics(config, CATEGORIES)


def test_no_set_named_means_coco() -> None:
    (metrics,) = make_metrics(eval_pb2.EvalConfig(), CATEGORIES)
    assert isinstance(metrics, CocoBoxMetrics)
    assert "coco_detection_metrics" in METRICS

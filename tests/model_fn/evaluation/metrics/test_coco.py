from __future__ import annotations

import logging
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import METRICS, EvaluatedBatch, base, make_metrics
from model_fn.evaluation.metrics.coco import SUMMARIES, CocoBoxMetrics
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


def test_every_summary_of_a_category() -> None:
    """Of a single category, they equal the summaries of the whole evaluation."""
    category = [{"id": 1, "name": "one"}]
    config = eval_pb2.EvalConfig(include_metrics_per_category=True, all_metrics_per_category=True)
    (metrics,) = make_metrics(config, category)
    # By size: IoU 0.72 of a small box, 0.77 and 0.52 of medium ones, 0.9 of a large one; ten
    # detections of no box, among the others in the order of scores.
    wide = np.float32([10.0, 50.0, 60.0, 200.0])
    share = np.float32([0.72, 0.77, 0.52, 0.9])
    boxes = np.zeros((1, 4, 4), np.float32)
    boxes[0, :, 0] = [0, 100, 300, 500]
    boxes[0, :, 2] = boxes[0, :, 0] + wide
    boxes[0, :, 3] = wide
    found = boxes.copy()
    found[0, :, 3] *= share
    noise = np.tile(np.float32([[[700, 0, 710, 10], [800, 0, 950, 150]]]), [1, 5, 1])
    metrics.add(
        EvaluatedBatch(
            detection_boxes=np.concatenate([found, noise], 1),
            detection_scores=np.float32([[0.9, 0.5, 0.8, 0.7, 0.95, *[0.6] * 9]]),
            detection_classes=np.ones((1, 14), np.int32),
            num_detections=np.int32([14]),
            boxes=boxes,
            classes=np.ones((1, 4), np.int32),
            num_boxes=np.int32([4]),
        )
    )
    results = metrics.results()
    summaries = [results[f"DetectionBoxes_{name}"] for name in SUMMARIES]
    assert len(set(summaries)) > 8
    assert results["DetectionBoxes_PerformanceByCategory/mAP/one"] == pytest.approx(summaries[0])
    for name, summary in zip(SUMMARIES, summaries):
        by_category = f"DetectionBoxes_{name} ByCategory/one"
        assert results[by_category] == pytest.approx(summary), name


def test_area_of_the_record_decides_the_size() -> None:
    metrics = CocoBoxMetrics(CATEGORIES)
    metrics.add(_one_image(area=np.array([[5000.0, 0.0]], np.float32)))
    results = metrics.results()
    # The first box counts as medium by its record, the second by its 40 x 40 pixels.
    assert results["DetectionBoxes_Precision/mAP (small)"] == -1.0
    assert results["DetectionBoxes_Precision/mAP (medium)"] == pytest.approx(0.5)


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

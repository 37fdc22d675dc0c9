"""Every metrics set against values of the Object Detection API, and differences on purpose."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import pytest

from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import EvaluatedBatch, make_metrics
from model_fn.evaluation.metrics.average_precision import ApOptions, AveragePrecision
from model_fn.evaluation.metrics.base import Metrics
from model_fn.evaluation.metrics.coco_panoptic import CocoPanopticMetrics
from model_fn.evaluation.metrics.lvis import LvisBoxMetrics
from tests.model_fn.evaluation.metrics.golden import (
    ARRAYS,
    CASES,
    CATEGORIES,
    RESULTS,
    SETTINGS,
    encode,
    images_of,
    make_batch,
)

FIELDS = (
    "include_metrics_per_category",
    "all_metrics_per_category",
    "recall_lower_bound",
    "recall_upper_bound",
    "skip_predictions_for_unlabeled_class",
)
# Cases in which the Object Detection API fails -> what we do is in a test of that name.
FAILING = [name for name, values in RESULTS.items() if "error" in values]
# Cases of values that the Object Detection API gets wrong; each has a test below.
WRONG = [
    "keypoint_cat1_nan_visible",
    "oid_challenge_boxes_after_clear",
    "oid_challenge_boxes_multihot_labels",
    "oid_challenge_segmentation_multihot_labels",
    "precision_at_recall_0.2_0.8_after_clear",
]
# Super-categories are means of members with groundtruth; the Object Detection API counts -1 and
# unknown names as members.
OTHER_MEANS = ("superB", "superC")
# Cases outside of any metrics set; each has a test below.
INNER = [name for name, case in CASES.items() if case["metric"].startswith("(")]
EQUAL = sorted(set(CASES) - {*FAILING, *WRONG, *INNER})


def _categories(case: Dict[str, Any]) -> List[Dict[str, Any]]:
    if case.get("categories") == "lvis_categories":
        found: List[Dict[str, Any]] = SETTINGS["lvis_categories"]
        return found
    points = case.get("category_keypoints", SETTINGS["keypoints"])
    return [{**category, "keypoints": points} for category in case.get("categories", CATEGORIES)]


def _config(case: Dict[str, Any]) -> eval_pb2.EvalConfig:
    config = eval_pb2.EvalConfig()
    for field in FIELDS:
        if field in case:
            setattr(config, field, case[field])
    for name, members in case.get("super_categories", {}).items():
        config.super_categories[name] = ", ".join(m for m in members if m != "unknown")
    if case["metric"] != "coco_keypoint_metrics":
        config.metrics_set.append(case["metric"])
        return config
    entry = config.parameterized_metric.add().coco_keypoint_metrics
    entry.class_label = case["class_text"]
    known = {point["name"] for point in case.get("category_keypoints", SETTINGS["keypoints"])}
    for name, sigma in (SETTINGS["oks_sigmas"] if case["oks_sigmas"] else {}).items():
        if name in known:
            entry.keypoint_label_to_sigmas[name] = sigma
    return config


def _metrics(case: Dict[str, Any]) -> Metrics:
    metrics = make_metrics(_config(case), _categories(case))[-1]
    if "matching_iou_threshold" in case:
        threshold = case["matching_iou_threshold"]
        options = dataclasses.replace(metrics._options, threshold=threshold)
        return AveragePrecision(CATEGORIES, options)
    if "iou_threshold" in case:
        thresholds = {k: case[k] for k in ("iou_threshold", "ioa_threshold") if k in case}
        return CocoPanopticMetrics(CATEGORIES, per_category=True, **thresholds)
    return metrics


def _batch(name: str, images: Optional[Sequence[str]] = None) -> EvaluatedBatch:
    """The input of a case, changed as its note says."""
    case = CASES[name]
    images = images or images_of(case)
    batch = make_batch(images, case.get("groundtruth_fields", ()), case.get("detection_fields", ()))
    note = case.get("note", "")
    if "NaN coordinates replaced by 0" in note:
        batch = batch._replace(keypoints=np.nan_to_num(batch.keypoints))
    if "set to zero" in note and "masks" in note:
        masks = [
            encode(ARRAYS[f"{i}__gt_masks"] * (1 - ARRAYS[f"{i}__gt_mask_missing"][:, None, None]))
            for i in images
        ]
        batch = batch._replace(masks=batch.masks._replace(groundtruth=masks))
    if name in ("lvis_masks_all_exhaustive", "lvis_masks_no_lists"):
        batch = batch._replace(not_exhaustive=np.zeros_like(batch.not_exhaustive))
    if name == "lvis_masks_no_lists":
        batch = batch._replace(verified_negatives=np.zeros_like(batch.verified_negatives))
    if name == "lvis_masks_all_negative_verified":
        batch = batch._replace(verified_negatives=np.ones_like(batch.verified_negatives))
    return _expanded(batch) if "hierarchy" in case else batch


def _results(name: str, batch: Optional[EvaluatedBatch] = None) -> Dict[str, float]:
    """What the metrics of a case give for its batch, or for another one."""
    metrics = _metrics(CASES[name])
    metrics.add(_batch(name) if batch is None else batch)
    return metrics.results()


def _expanded(batch: EvaluatedBatch) -> EvaluatedBatch:
    """The batch with a copy, as class 4, of each box and label of classes 1 and 2."""
    size = batch.classes.shape[1]
    rows = []
    for classes, count in zip(batch.classes, batch.num_boxes):
        own = np.arange(count)
        rows.append(np.concatenate([own, own[np.isin(classes[:count], [1, 2])]]))
    taken = np.array([np.pad(row, (0, 2 * size - len(row))) for row in rows])
    counts = batch.num_boxes[:, np.newaxis]
    is_copy = (np.arange(2 * size) >= counts) & (np.arange(2 * size) < [[len(r)] for r in rows])
    classes = np.where(is_copy, 4, np.take_along_axis(batch.classes, taken, 1))
    labels = batch.labeled_classes
    if labels is not None:
        labels = labels.copy()
        labels[:, 3] = labels[:, [0, 1, 3]].max(axis=1)
    return batch._replace(
        boxes=np.take_along_axis(batch.boxes, taken[..., np.newaxis], 1),
        classes=classes,
        group_of=np.take_along_axis(batch.group_of, taken, 1),
        num_boxes=np.int32([len(row) for row in rows]),
        labeled_classes=labels,
    )


def _check(results: Dict[str, float], expected: Dict[str, float]) -> None:
    for name, value in expected.items():
        assert results[name] == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("name", EQUAL)
def test_values(name):
    images = images_of(CASES[name])
    expected = {
        key: value
        for key, value in RESULTS[name].items()
        if "super_categories" not in CASES[name] or not key.endswith(OTHER_MEANS)
    }
    for size in (len(images), 3):  # one batch, then several
        metrics = _metrics(CASES[name])
        for start in range(0, len(images), size):
            metrics.add(_batch(name, images[start : start + size]))
        results = metrics.results()
        assert list(dict.fromkeys(metrics.names)) == metrics.names
        assert set(results) == set(metrics.names)
        _check(results, expected)
    if "edge" not in name:  # the Object Detection API leaves categories out that do not occur
        assert set(results) == set(RESULTS[name])


def test_all_sets_in_one_pass():
    """A batch with all fields gives each set the same as one with its own fields only."""
    chosen = ["coco_masks", "oid_challenge_segmentation", "pascal_masks", "coco_masks_no_area"]
    sets = [_metrics(CASES[name]) for name in chosen[:3]]
    fields = {field for name in chosen[:3] for field in CASES[name]["groundtruth_fields"]}
    batch = make_batch(images_of(CASES["coco_masks"]), fields, ["masks"])
    for name, metrics in zip(chosen, sets):
        metrics.add(batch)
        _check(metrics.results(), RESULTS[name])


def test_boxes_of_lvis():
    metrics = LvisBoxMetrics(SETTINGS["lvis_categories"])
    fields = ["area", "verified_neg", "not_exhaustive"]
    metrics.add(make_batch([f"seg{k}" for k in range(8)], fields, []))
    results = metrics.results()
    expected = RESULTS["lvis_boxes_tools_level"]
    assert set(results) == {f"DetectionBoxes_{name}" for name in expected}
    _check(results, {f"DetectionBoxes_{name}": value for name, value in expected.items()})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("oid_v2_masks", ApOptions("OpenImagesV2_", uses_masks=True, group_of_weight=0.0)),
        (
            "object_detection_evaluator_precision_recall_corloc",
            ApOptions("", ignores_difficult=True),
        ),
    ],
)
def test_average_precision_outside_of_sets(name, options):
    metrics = AveragePrecision(CATEGORIES, options)
    metrics.add(_batch(name))
    _check(metrics.results(), {key: x for key, x in RESULTS[name].items() if "CorLoc" not in key})


def test_groups_without_weight():
    """What the Object Detection API counts in a second evaluation, without the weight."""
    options = ApOptions(
        "OpenImagesDetectionChallenge_", group_of_weight=0.0, of_labeled_classes=True
    )
    metrics = AveragePrecision(CATEGORIES, options)
    metrics.add(_batch("oid_challenge_boxes"))
    _check(metrics.results(), RESULTS["oid_challenge_boxes_after_clear"])


@pytest.mark.parametrize("kind", ["boxes", "segmentation"])
def test_labels_of_an_image_are_classes_not_numbers(kind):
    """The multi-hot vector gives what ids give; the Object Detection API reads it as ids."""
    name = f"oid_challenge_{kind}"
    batch = _batch(f"{name}_multihot_labels")
    _check(_results(name, batch), RESULTS[name])
    as_ids = np.zeros_like(batch.labeled_classes)
    as_ids[:, 0] = batch.labeled_classes.any(axis=1)
    _check(
        _results(name, batch._replace(labeled_classes=as_ids)), RESULTS[f"{name}_multihot_labels"]
    )


def test_coordinates_that_are_no_numbers_never_match():
    """They count as not labeled: visible ones give what invisible ones do."""
    name = "keypoint_cat1_nan_visible"
    batch = _batch(name)
    assert batch.keypoint_visibilities is None and np.isnan(batch.keypoints).any()
    _check(_results(name), RESULTS["keypoint_cat1_sigmas"])
    nowhere = np.full_like(batch.detection_keypoints, np.nan)
    results = _results(name, batch._replace(detection_keypoints=nowhere))
    assert results["Keypoints_Precision/mAP ByCategory/cat1"] == 0.0


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_super_categories_are_means_of_what_has_groundtruth(kind):
    results = _results(f"coco_{kind}_per_category_all_super")
    (prefix,) = {name.split("_")[0] for name in results}
    for summary in ("Precision/mAP", "Recall/AR@100 (large)"):
        third, fourth = (results[f"{prefix}_{summary} ByCategory/cat{k}"] for k in (3, 4))
        known = [value for value in (third, fourth) if value > -1]
        expected = np.mean(known) if known else -1.0
        assert results[f"{prefix}_{summary} BySuperCategory/superB"] == pytest.approx(expected)


# Where the Object Detection API fails.


def test_labeled_classes_are_not_required():
    """skip_predictions_for_unlabeled_class without labels skips nothing."""
    name = "coco_boxes_skip_unlabeled_but_no_labels"
    (plain,) = make_metrics(eval_pb2.EvalConfig(), CATEGORIES)
    plain.add(_batch(name))
    assert _results(name) == plain.results()


def test_panoptic_without_crowds():
    name = "panoptic_no_crowd_field"
    batch = _batch(name)
    no_crowds = batch._replace(is_crowd=np.zeros(batch.classes.shape, bool))
    assert _results(name) == _results(name, no_crowds)


def test_panoptic_ignores_classes_outside_of_the_categories():
    metrics = CocoPanopticMetrics(CATEGORIES[:3])
    metrics.add(_batch("panoptic_unknown_class"))
    results = metrics.results()
    by_category = [
        RESULTS["panoptic_per_category"][f"PanopticQuality@0.50IOU_ByCategory/cat{k}"]
        for k in (1, 2, 3)
    ]
    assert results["PanopticQuality@0.50IOU"] == pytest.approx(np.mean(by_category))
    assert results["NumTotalClasses"] == 3


def test_panoptic_of_an_image_without_detections():
    """Its objects are missed."""
    batch = _batch("panoptic", ["seg2"])
    nothing = batch._replace(
        num_detections=np.int32([0]), masks=batch.masks._replace(detections=[[]])
    )
    results = _results("panoptic", nothing)
    assert results["PanopticQuality@0.50IOU"] == 0.0
    assert results["NumValidClasses"] > 0


def test_lvis_without_lists_of_classes():
    """A missing list is an empty one; metrics of each category do not exist."""
    metrics = _metrics({**CASES["lvis_masks_per_category"], "include_metrics_per_category": True})
    batch = _batch("lvis_masks_no_lists")
    metrics.add(batch._replace(not_exhaustive=None, verified_negatives=None))
    _check(metrics.results(), RESULTS["lvis_masks_no_lists"])

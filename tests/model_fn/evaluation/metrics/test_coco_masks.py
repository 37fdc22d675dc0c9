from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from estimator_det.compat import tf, tf1
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import METRICS, EvaluatedBatch, make_metrics
from model_fn.evaluation.metrics.base import Masks, metric_ops
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("metrics")
MORE_SETTINGS, MORE_ARRAYS = golden_component("mask_metrics")
CATEGORIES = SETTINGS["categories"]


def _batch(arrays: Dict[str, np.ndarray], images: List[str], fields: List[str]) -> EvaluatedBatch:
    """Masks of the whole image as boxes that fill it; rows of rubbish pad each image."""

    def stack(key: str, extra: int = 2) -> np.ndarray:
        rows = [arrays[f"{image}__{key}"] for image in images]
        size = max(map(len, rows)) + extra
        filler = np.full((len(rows), size, *rows[0].shape[1:]), 7, rows[0].dtype)
        for i, row in enumerate(rows):
            filler[i, : len(row)] = row
        return filler

    scores = stack("det_scores")
    height, width = arrays[f"{images[0]}__gt_masks"].shape[1:]
    sizes = np.tile(np.int32([height, width]), (len(images), 1))
    return EvaluatedBatch(
        detection_boxes=np.broadcast_to(np.float32([0, 0, height, width]), (*scores.shape, 4)),
        detection_scores=scores,
        detection_classes=stack("det_classes"),
        num_detections=np.int32([len(arrays[f"{image}__det_scores"]) for image in images]),
        boxes=stack("gt_boxes"),
        classes=stack("gt_classes"),
        num_boxes=np.int32([len(arrays[f"{image}__gt_classes"]) for image in images]),
        is_crowd=stack("gt_crowd").astype(bool) if "crowd" in fields else None,
        area=stack("gt_area") if "area" in fields else None,
        masks=Masks(
            stack("det_masks").astype(np.float32),
            stack("gt_masks").astype(np.float32),
            real_sizes=sizes,
            image_sizes=sizes,
        ),
    )


def _results(batches: List[EvaluatedBatch], **options: Any) -> Dict[str, float]:
    config = eval_pb2.EvalConfig(metrics_set=["coco_mask_metrics"], **options)
    (metrics,) = make_metrics(config, CATEGORIES)
    for batch in batches:
        metrics.add(batch)
    results = metrics.results()
    assert set(results) == set(metrics.names)
    return results


def _check(results: Dict[str, float], expected: Dict[str, float]) -> None:
    assert set(results) == set(expected)
    for name, value in expected.items():
        assert results[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_golden() -> None:
    batches = [_batch(ARRAYS, images, []) for images in (["mask0", "mask1"], ["mask2"])]
    _check(_results(batches), SETTINGS["results"]["coco_masks"])


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("coco_masks", {}),
        ("coco_masks_no_area", {}),
        ("coco_masks_no_crowd_no_area", {}),
        ("coco_masks_per_category", {"include_metrics_per_category": True}),
        (
            "coco_masks_per_category_all",
            {"include_metrics_per_category": True, "all_metrics_per_category": True},
        ),
    ],
)
def test_golden_with_crowd_regions_and_areas(case: str, options: Dict[str, bool]) -> None:
    fields = MORE_SETTINGS["cases"][case]["groundtruth_fields"]
    images = [f"seg{i}" for i in range(8)]
    batches = [_batch(MORE_ARRAYS, images[i : i + 2], fields) for i in range(0, 8, 2)]
    _check(_results(batches, **options), MORE_SETTINGS["results"][case])


def test_in_a_graph() -> None:
    (metrics,) = make_metrics(eval_pb2.EvalConfig(metrics_set=["coco_mask_metrics"]), CATEGORIES)
    batch = _batch(ARRAYS, ["mask0", "mask1", "mask2"], [])
    with tf.Graph().as_default(), tf1.Session() as session:
        tensors = tf.nest.map_structure(
            lambda value: None if value is None else tf.constant(value), batch
        )
        ops = metric_ops(metrics, tensors)
        session.run(next(update for _, update in ops.values()))
        values = session.run({name: value for name, (value, _) in ops.items()})
    for name, expected in SETTINGS["results"]["coco_masks"].items():
        assert values[name] == pytest.approx(expected, rel=1e-6), name


def test_frames_of_detections_and_groundtruth() -> None:
    """A padded input of half the size, and a mask of 2 x 2 that fills the left half of its box."""
    inputs = np.zeros((1, 1, 16, 20), np.float32)
    inputs[0, 0, 2:6, 1:5] = 1  # of 12 x 10 real pixels
    inputs[0, 0, 12:] = 1  # in the padding, where nothing counts
    batch = EvaluatedBatch(
        detection_boxes=np.float32([[[4, 2, 12, 18]]]),
        detection_scores=np.float32([[0.9]]),
        detection_classes=np.int32([[1]]),
        num_detections=np.int32([1]),
        boxes=np.float32([[[4, 2, 12, 10]]]),
        classes=np.int32([[1]]),
        num_boxes=np.int32([1]),
        masks=Masks(
            detected=np.float32([[[[1, 0], [1, 0]]]]),
            masks=inputs,
            real_sizes=np.int32([[12, 10]]),
            image_sizes=np.int32([[24, 20]]),
        ),
    )
    metrics = METRICS.get("coco_mask_metrics")(eval_pb2.EvalConfig(), CATEGORIES)
    (entry,) = metrics.groundtruth_entries(batch, 0)
    drawn = coco_mask.decode(entry["segmentation"])
    assert drawn.shape == (24, 20)
    # The corners are aligned: 11 steps of the input are 23 of the image.
    assert np.argwhere(drawn).min(0).tolist() == [4, 2]
    assert np.argwhere(drawn).max(0).tolist() == [11, 9]
    assert entry["area"] == 64
    (found,) = metrics.detection_entries(batch, 0, np.int64([0]))
    drawn = coco_mask.decode(found["segmentation"])
    assert found["area"] == drawn.sum()
    assert np.argwhere(drawn).min(0).tolist() == [4, 2]
    assert np.argwhere(drawn).max(0).tolist() == [11, 9]
    metrics.add(batch)
    assert metrics.results()["DetectionMasks_Precision/mAP"] == pytest.approx(1.0)

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import EvaluatedBatch, make_metrics
from model_fn.evaluation.metrics.run_lengths import Masks
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("metrics")
CATEGORIES = SETTINGS["categories"]
SETS = ["coco_mask_metrics", "pascal_voc_instance_segmentation_metrics"]


def _batch(images: List[str]) -> EvaluatedBatch:
    """Masks of the whole image as boxes that fill it; rows of rubbish pad each image."""

    def stack(key: str) -> np.ndarray:
        rows = [ARRAYS[f"{image}__{key}"] for image in images]
        size = max(map(len, rows)) + 2
        filler = np.full((len(rows), size, *rows[0].shape[1:]), 7, rows[0].dtype)
        for i, row in enumerate(rows):
            filler[i, : len(row)] = row
        return filler

    scores = stack("det_scores")
    height, width = ARRAYS[f"{images[0]}__gt_masks"].shape[1:]
    sizes = np.tile(np.int32([height, width]), (len(images), 1))
    return EvaluatedBatch(
        detection_boxes=np.broadcast_to(np.float32([0, 0, height, width]), (*scores.shape, 4)),
        detection_scores=scores,
        detection_classes=stack("det_classes"),
        num_detections=np.int32([len(ARRAYS[f"{image}__det_scores"]) for image in images]),
        boxes=stack("gt_boxes"),
        classes=stack("gt_classes"),
        num_boxes=np.int32([len(ARRAYS[f"{image}__gt_classes"]) for image in images]),
        masks=Masks(
            stack("det_masks").astype(np.float32),
            stack("gt_masks").astype(np.float32),
            real_sizes=sizes,
            image_sizes=sizes,
        ),
    )


def test_two_sets_share_encoded_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    from model_fn.evaluation.metrics import base

    encoded: List[Any] = []
    encode = base.encode_masks
    monkeypatch.setattr(base, "encode_masks", lambda *a: encoded.append(a) or encode(*a))
    sets = make_metrics(eval_pb2.EvalConfig(metrics_set=SETS), CATEGORIES)
    base.add_to_all(sets, _batch(["mask0", "mask1", "mask2"]))
    values = {name: value for each in sets for name, value in each.results().items()}
    assert len(encoded) == 1
    expected = {**SETTINGS["results"]["coco_masks"], **SETTINGS["results"]["pascal_masks"]}
    assert values == pytest.approx(expected, rel=1e-6, nan_ok=True)

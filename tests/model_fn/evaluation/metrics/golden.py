"""Metrics measured on the Object Detection API: inputs, cases and values."""

from __future__ import annotations

import json
from typing import Any, Collection, Dict, List, Sequence

import numpy as np
from pycocotools import mask as coco_mask

from model_fn.evaluation.metrics import EvaluatedBatch
from model_fn.evaluation.metrics.run_lengths import RunLengths
from tests.conftest import TESTS

FOLDER = TESTS / "golden" / "metrics"
with np.load(FOLDER / "metrics.npz") as _file:
    ARRAYS: Dict[str, np.ndarray] = {key: _file[key] for key in _file.files}
SETTINGS: Dict[str, Any] = json.loads((FOLDER / "metrics.json").read_text())["settings"]
CASES: Dict[str, Dict[str, Any]] = SETTINGS["cases"]
RESULTS: Dict[str, Dict[str, Any]] = SETTINGS["results"]
CATEGORIES: List[Dict[str, Any]] = [
    {**category, "keypoints": SETTINGS["keypoints"]} for category in SETTINGS["categories"]
]
NUM_CLASSES = len(CATEGORIES)

# Name in the file -> field of EvaluatedBatch, of groundtruth.
_GIVEN = {
    "crowd": "is_crowd",
    "area": "area",
    "difficult": "difficult",
    "group_of": "group_of",
    "keypoints": "keypoints",
    "keypoint_visibilities": "keypoint_visibilities",
}
_K_HOT = {
    "labeled_multihot": "labeled_classes",
    "verified_neg": "verified_negatives",
    "not_exhaustive": "not_exhaustive",
}


def images_of(case: Dict[str, Any]) -> List[str]:
    """Names of the images, in order."""
    first = case["inputs"].split(".")[0]
    return [first] if ".." not in case["inputs"] else [f"{first[:-1]}{k}" for k in range(8)]


def stacked(images: Sequence[str], key: str, arrays: Dict[str, np.ndarray]) -> np.ndarray:
    """Rows of several images in one array, padded with rubbish."""
    rows = [arrays[f"{image}__{key}"] for image in images]
    size = max(map(len, rows)) + 2
    filler = np.ones((len(rows), size, *rows[0].shape[1:]), rows[0].dtype)
    for i, row in enumerate(rows):
        filler[i, : len(row)] = row
    return filler


def make_batch(
    images: Sequence[str],
    given: Collection[str],
    found: Collection[str],
    arrays: Dict[str, np.ndarray] = ARRAYS,
) -> EvaluatedBatch:
    """Images with a case's groundtruth_fields and detection_fields; rubbish pads each one."""

    def stack(key: str) -> np.ndarray:
        return stacked(images, key, arrays)

    fields = {field: stack(f"gt_{key}") for key, field in _GIVEN.items() if key in given}
    for key, field in _K_HOT.items():
        if key in given:
            fields[field] = np.stack([arrays[f"{image}__gt_{key}"][1:] for image in images])
    if "image_classes" in given:
        fields["labeled_classes"] = np.stack(
            [np.isin(range(1, NUM_CLASSES + 1), arrays[f"{i}__gt_image_classes"]) for i in images]
        ).astype(np.float32)
    if "keypoints" in found:
        fields["detection_keypoints"] = stack("det_keypoints")
    batch = EvaluatedBatch(
        detection_boxes=stack("det_boxes"),
        detection_scores=stack("det_scores"),
        detection_classes=stack("det_classes"),
        num_detections=np.int32([len(arrays[f"{image}__det_scores"]) for image in images]),
        boxes=stack("gt_boxes"),
        classes=stack("gt_classes"),
        num_boxes=np.int32([len(arrays[f"{image}__gt_classes"]) for image in images]),
        **fields,
    )
    if "masks" in found or "masks" in given:
        masks = [[encode(arrays[f"{i}__{kind}_masks"]) for i in images] for kind in ("det", "gt")]
        batch = batch._replace(masks=RunLengths(*masks))
    return batch


def encode(masks: np.ndarray) -> List[Any]:
    """Run lengths of masks [n, height, width]."""
    return [coco_mask.encode(np.asfortranarray(mask, np.uint8)) for mask in masks]

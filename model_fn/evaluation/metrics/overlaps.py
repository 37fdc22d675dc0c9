"""Overlaps of an image's detections with its groundtruth, and what COCO's matching needs of both.

Letters: N detections, G groundtruth boxes, P keypoints.
"""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np
from pycocotools import mask as coco_mask

from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.metrics.coco_matching import ImageObjects
from model_fn.evaluation.metrics.run_lengths import RunLength


def box_iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """IoU of yxyx boxes [..., N, 4], [..., G, 4] -> [..., N, G]; 0 for two empty boxes."""
    shared = _shared_area(first, second)
    union = box_area(first)[..., :, np.newaxis] + box_area(second)[..., np.newaxis, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def box_ioa(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The part of each box of `first` that each of `second` covers, as `box_iou`."""
    shared = _shared_area(first, second)
    area = np.broadcast_to(box_area(first)[..., :, np.newaxis], shared.shape)
    return np.divide(shared, area, out=np.zeros_like(shared), where=area > 0)


def box_area(boxes: np.ndarray) -> np.ndarray:
    """Area of yxyx boxes [..., 4] -> float64 [...]; 0 if an end is before the start."""
    boxes = np.asarray(boxes, np.float64)
    return np.maximum(boxes[..., 2:] - boxes[..., :2], 0.0).prod(axis=-1)


def _shared_area(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    first = np.asarray(first, np.float64)[..., :, np.newaxis, :]
    second = np.asarray(second, np.float64)[..., np.newaxis, :, :]
    # One direction after the other: NumPy is slow along an axis of two.
    height, width = (
        np.minimum(first[..., high], second[..., high])
        - np.maximum(first[..., low], second[..., low])
        for low, high in ((0, 2), (1, 3))
    )
    return np.maximum(height, 0.0) * np.maximum(width, 0.0)


def mask_iou(
    first: Sequence[RunLength], second: Sequence[RunLength], covers: Optional[np.ndarray] = None
) -> np.ndarray:
    """IoU of masks [N, G]; of each `covers`, bool [G], the part of the first that it covers."""
    if not first or not second:
        return np.zeros((len(first), len(second)))
    flags = [False] * len(second) if covers is None else np.asarray(covers, bool).tolist()
    return coco_mask.iou(list(first), list(second), flags)


def mask_areas(masks: Sequence[RunLength]) -> np.ndarray:
    """Pixels of each mask, float64 [n]."""
    return np.asarray(coco_mask.area(list(masks)) if masks else [], np.float64)


def box_objects(image: EvaluatedBatch) -> ImageObjects:
    """Boxes of an image of a batch for COCO's matching."""
    detections, boxes = image.detection_boxes, image.boxes
    overlaps = box_iou(detections, boxes)
    if np.any(image.is_crowd):  # The other overlaps take as long.
        overlaps = np.where(image.is_crowd, box_ioa(detections, boxes), overlaps)
    return ImageObjects(
        scores=image.detection_scores,
        categories=image.detection_classes,
        areas=box_area(detections),
        true_categories=image.classes,
        true_areas=np.where(image.area > 0, image.area, box_area(boxes)),
        is_crowd=image.is_crowd,
        is_ignored=image.is_crowd,
        overlaps=overlaps,
    )


def mask_objects(image: EvaluatedBatch) -> ImageObjects:
    """Masks of an image of a batch for COCO's matching.

    As in the Object Detection API, the area of groundtruth is the given area, or else the area of
    its box; the area of a detection is the area of its mask.
    """
    detected, true = image.masks
    return box_objects(image)._replace(
        areas=mask_areas(detected), overlaps=mask_iou(detected, true, image.is_crowd)
    )


def keypoint_similarity(
    detected: np.ndarray,
    keypoints: np.ndarray,
    is_labeled: np.ndarray,
    boxes: np.ndarray,
    areas: np.ndarray,
    sigmas: np.ndarray,
) -> np.ndarray:
    """COCO's object keypoint similarity, [N, G].

    Of an object without a labeled keypoint, distances are those to twice its box, as in COCOeval.
    A detected keypoint that is NaN is infinitely far away.

    Args:
        detected: [N, P, 2], y and x.
        keypoints: [G, P, 2]; of any value where `is_labeled`, bool [G, P], is false.
        boxes: [G, 4], yxyx.
        areas: [G], pixels squared.
        sigmas: [P], standard deviation of each keypoint as a share of the object's size.
    """
    detected = np.asarray(detected, np.float64)[:, np.newaxis]
    true = np.where(is_labeled[..., np.newaxis], np.asarray(keypoints, np.float64), 0.0)
    boxes = np.asarray(boxes, np.float64)
    sizes = boxes[:, 2:] - boxes[:, :2]
    low, high = ((boxes[:, :2] + k * sizes)[:, np.newaxis] for k in (-1, 2))
    to_box = np.maximum(low - detected, 0.0) + np.maximum(detected - high, 0.0)
    has_labels = is_labeled.any(axis=1)
    distance = np.where(has_labels[:, np.newaxis, np.newaxis], detected - true, to_box)
    squared = np.square(distance).sum(axis=3)
    squared = np.where(np.isnan(squared), np.inf, squared)
    exponent = squared / (2 * np.square(2 * sigmas)) / (areas[:, np.newaxis] + np.spacing(1))
    counted = is_labeled | ~has_labels[:, np.newaxis]
    similar = np.where(counted, np.exp(-exponent), 0.0).sum(axis=2)
    return np.asarray(similar / np.maximum(counted.sum(axis=1), 1))

"""COCO mask metrics: those of boxes, with the overlap of masks."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

from estimator_det.boxes.mask_regions import MaskRegion, paste_mask, resize_mask, run_lengths
from model_fn.evaluation.metrics.base import (
    EVAL_FIELDS,
    MASK_METRICS,
    METRICS,
    EvaluatedBatch,
    Masks,
)
from model_fn.evaluation.metrics.coco import (
    PER_CATEGORY_FIELDS,
    CocoBoxMetrics,
    per_category_options,
)

NAME = "coco_mask_metrics"


class CocoMaskMetrics(CocoBoxMetrics):
    """Average precision and recall of masks at the size of the original image.

    As in the reference, the size of groundtruth is its given area, else that of its box; the size
    of a detection is that of its mask. Arguments are those of `CocoBoxMetrics`.
    """

    prefix = "DetectionMasks_"
    iou_type = "segm"

    def image_entry(self, batch: EvaluatedBatch, row: int) -> Dict[str, Any]:
        height, width = _masks(batch).image_sizes[row].tolist()
        return {"height": height, "width": width}

    def groundtruth_entries(self, batch: EvaluatedBatch, row: int) -> List[Dict[str, Any]]:
        masks = _masks(batch)
        height, width = masks.real_sizes[row]
        size = masks.image_sizes[row].tolist()
        entries = super().groundtruth_entries(batch, row)
        for entry, mask in zip(entries, masks.masks[row, :, :height, :width]):
            entry["segmentation"] = run_lengths(resize_mask(mask, size), size)
        return entries

    def detection_entries(
        self, batch: EvaluatedBatch, row: int, found: np.ndarray
    ) -> List[Dict[str, Any]]:
        masks = _masks(batch)
        size = masks.image_sizes[row].tolist()
        in_image = batch.detection_boxes[row] / np.tile(np.float32(size), 2)
        entries = super().detection_entries(batch, row, found)
        for i, entry in zip(found, entries):
            region: MaskRegion = paste_mask(masks.detected[row, i], in_image[i], size)
            entry["segmentation"] = run_lengths(region, size)
            entry["area"] = float(np.count_nonzero(region.inside))
        return entries


def _masks(batch: EvaluatedBatch) -> Masks:
    if batch.masks is None:
        raise ValueError(f"{NAME} needs batches with masks; given one without")
    return batch.masks


MASK_METRICS.add(NAME)
EVAL_FIELDS[NAME] = PER_CATEGORY_FIELDS


@METRICS.register(NAME)
def _make(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> CocoMaskMetrics:
    return CocoMaskMetrics(categories, **per_category_options(eval_config))

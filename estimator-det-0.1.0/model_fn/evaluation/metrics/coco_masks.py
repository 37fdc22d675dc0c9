"""COCO mask metrics: those of boxes, with the overlap of masks."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from model_fn.evaluation.metrics.base import register
from model_fn.evaluation.metrics.coco import (
    PER_CATEGORY_FIELDS,
    CocoBoxMetrics,
    per_category_options,
)
from model_fn.evaluation.metrics.overlaps import mask_objects


class CocoMaskMetrics(CocoBoxMetrics):
    """Average precision and recall of masks at the size of the original image.

    Arguments are those of `CocoBoxMetrics`.
    """

    prefix = "DetectionMasks_"
    needs = frozenset({"masks"})
    objects = staticmethod(mask_objects)


@register("coco_mask_metrics", eval_fields=PER_CATEGORY_FIELDS)
def _make(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> CocoMaskMetrics:
    return CocoMaskMetrics(categories, **per_category_options(eval_config))

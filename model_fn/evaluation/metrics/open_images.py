"""Open Images metrics (https://storage.googleapis.com/openimages/web/evaluation.html).

They are average precision at IoU 0.5 with boxes of groups. The challenges evaluate an image on its
classes only: those of its boxes, and those that a label of the image declares present or absent.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence

from model_fn.evaluation.metrics.average_precision import ApOptions, AveragePrecision
from model_fn.evaluation.metrics.base import register


@register(
    "oid_V2_detection_metrics",
    "open_images_V2_detection_metrics",
    "open_images_detection_metrics",
    "open_images_metrics",
)
def _make_v2(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> AveragePrecision:
    del eval_config
    return AveragePrecision(categories, ApOptions("OpenImagesV2_", group_of_weight=0.0))


@register("oid_challenge_detection_metrics", "oid_challenge_object_detection_metrics")
def _make_challenge(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> AveragePrecision:
    del eval_config
    options = ApOptions(
        "OpenImagesDetectionChallenge_", group_of_weight=1.0, of_labeled_classes=True
    )
    return AveragePrecision(categories, options)


@register("oid_challenge_segmentation_metrics")
def _make_segmentation(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> AveragePrecision:
    del eval_config
    options = ApOptions(
        "OpenImagesInstanceSegmentationChallenge_",
        uses_masks=True,
        group_of_weight=0.0,
        of_labeled_classes=True,
    )
    return AveragePrecision(categories, options)

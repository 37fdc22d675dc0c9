"""Metrics sets of average precision at IoU 0.5: PASCAL VOC's, Open Images', and within recalls.

Open Images (https://storage.googleapis.com/openimages/web/evaluation.html) knows boxes of groups.
Its challenges evaluate an image on its classes only: those of its boxes, and those that a label of
the image declares present or absent.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence

from estimator_det.config.text import ConfigError
from model_fn.evaluation.metrics.average_precision import ApOptions, AveragePrecision
from model_fn.evaluation.metrics.base import register

# Names of a set, the set's own first -> what it counts.
SETS = {
    ("pascal_voc_detection_metrics", "pascal_voc_metrics"): ApOptions(
        "PascalBoxes_", ignores_difficult=True
    ),
    ("weighted_pascal_voc_detection_metrics",): ApOptions(
        "WeightedPascalBoxes_", ignores_difficult=True, is_weighted=True
    ),
    ("pascal_voc_instance_segmentation_metrics",): ApOptions(
        "PascalMasks_", ignores_difficult=True, uses_masks=True
    ),
    ("weighted_pascal_voc_instance_segmentation_metrics",): ApOptions(
        "WeightedPascalMasks_", ignores_difficult=True, uses_masks=True, is_weighted=True
    ),
    (
        "oid_V2_detection_metrics",
        "open_images_V2_detection_metrics",
        "open_images_detection_metrics",
        "open_images_metrics",
    ): ApOptions("OpenImagesV2_", group_of_weight=0.0),
    ("oid_challenge_detection_metrics", "oid_challenge_object_detection_metrics"): ApOptions(
        "OpenImagesDetectionChallenge_", group_of_weight=1.0, of_labeled_classes=True
    ),
    ("oid_challenge_segmentation_metrics",): ApOptions(
        "OpenImagesInstanceSegmentationChallenge_",
        uses_masks=True,
        group_of_weight=0.0,
        of_labeled_classes=True,
    ),
}
PRECISION_AT_RECALL = "precision_at_recall_detection_metrics"


def _register(names: Sequence[str], options: ApOptions) -> None:
    @register(*names)
    def make(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> AveragePrecision:
        del eval_config
        return AveragePrecision(categories, options)


for _names, _options in SETS.items():
    _register(_names, _options)


@register(
    PRECISION_AT_RECALL,
    eval_fields=(
        "recall_lower_bound",
        "recall_upper_bound",
        "skip_predictions_for_unlabeled_class",
    ),
)
def _make_within_recalls(
    eval_config: Any, categories: Sequence[Dict[str, Any]]
) -> AveragePrecision:
    """PASCAL VOC's metric on the part of each precision/recall curve within a range of recall."""
    low, high = eval_config.recall_lower_bound, eval_config.recall_upper_bound
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(
            "eval_config.recall_lower_bound",
            f"is {low:g}, and recall_upper_bound is {high:g}; both must be within 0 "
            "and 1, and the upper one not below the lower one",
        )
    options = ApOptions(
        "PrecisionAtRecallBoxes_",
        ignores_difficult=True,
        skip_unlabeled=eval_config.skip_predictions_for_unlabeled_class,
        recall_range=(low, high),
    )
    return AveragePrecision(categories, options)

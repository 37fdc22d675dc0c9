"""PASCAL VOC metrics of boxes and masks: average precision at IoU 0.5."""

from __future__ import annotations

from typing import Any, Dict, Sequence

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
}


def _register(names: Sequence[str], options: ApOptions) -> None:
    @register(*names)
    def make(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> AveragePrecision:
        del eval_config
        return AveragePrecision(categories, options)


for _names, _options in SETS.items():
    _register(_names, _options)

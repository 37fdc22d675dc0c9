"""Average precision at IoU 0.5 within a range of recall, as the reference computes it.

It is the PASCAL VOC metric on the part of each precision/recall curve that lies in the range.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence

from estimator_det.config.text import ConfigError
from model_fn.evaluation.metrics.average_precision import ApOptions, AveragePrecision
from model_fn.evaluation.metrics.base import register

NAME = "precision_at_recall_detection_metrics"


@register(
    NAME,
    eval_fields=(
        "recall_lower_bound",
        "recall_upper_bound",
        "skip_predictions_for_unlabeled_class",
    ),
)
def _make(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> AveragePrecision:
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

"""Detection metrics, by their name in `eval_config.metrics_set`; each module enters its own."""

from estimator_det.config.registry import import_modules
from model_fn.evaluation.metrics.base import METRICS, EvaluatedBatch, make_metrics

import_modules(__name__, __path__)

__all__ = ["METRICS", "EvaluatedBatch", "make_metrics"]

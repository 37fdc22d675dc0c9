"""Detection metrics, by their name in `eval_config.metrics_set`; each module enters its own."""

from __future__ import annotations

import importlib
import pkgutil

from model_fn.evaluation.metrics.base import METRICS, EvaluatedBatch, make_metrics

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METRICS", "EvaluatedBatch", "make_metrics"]

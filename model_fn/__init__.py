"""Detector, optimizer and metrics become an EstimatorSpec; the runner trains and evaluates.

The names below are imported when first used, so that importing a part costs only that part.
Checkpoints are evaluated by `model_fn.runs.evaluator.evaluate`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from model_fn.model_fn import create_model_fn
    from model_fn.runs.context import Hook, StepResult
    from model_fn.runs.evaluator import continuous_eval
    from model_fn.runs.options import TrainOptions
    from model_fn.runs.runner import train_and_evaluate

__all__ = [
    "Hook",
    "StepResult",
    "TrainOptions",
    "continuous_eval",
    "create_model_fn",
    "train_and_evaluate",
]

_HOMES = {
    "Hook": "model_fn.runs.context",
    "StepResult": "model_fn.runs.context",
    "TrainOptions": "model_fn.runs.options",
    "continuous_eval": "model_fn.runs.evaluator",
    "create_model_fn": "model_fn.model_fn",
    "train_and_evaluate": "model_fn.runs.runner",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted([*globals(), *_HOMES])

"""The input pipeline: from TFRecords to padded batches of static shape.

The three functions are imported on first use, so that reading a label map imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from inputs.pipeline import create_eval_input_fn, create_train_input_fn
    from inputs.serving import create_predict_input_fn

_MODULES = {
    "create_train_input_fn": "inputs.pipeline",
    "create_eval_input_fn": "inputs.pipeline",
    "create_predict_input_fn": "inputs.serving",
}

__all__ = ["create_eval_input_fn", "create_predict_input_fn", "create_train_input_fn"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'inputs' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> List[str]:
    return sorted([*globals(), *_MODULES])

"""Exports checkpoints as models for serving, and runs such models on images.

The names below are imported when they are first used, because they import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from exporters.detector import Detections, Detector
    from exporters.formats.export import ExportedModel, export_saved_model

__all__ = ["Detections", "Detector", "ExportedModel", "export_saved_model"]

_MODULES = {
    "Detections": "exporters.detector",
    "Detector": "exporters.detector",
    "ExportedModel": "exporters.formats.export",
    "export_saved_model": "exporters.formats.export",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> List[str]:
    return sorted([*globals(), *_MODULES])

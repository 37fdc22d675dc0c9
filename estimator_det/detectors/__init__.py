"""Detectors by model name. Importing the package imports its modules, which register them."""

from __future__ import annotations

import importlib
import pkgutil

from estimator_det.detectors.base import (
    DETECTORS,
    Context,
    Detections,
    Detector,
    Groundtruth,
    Predictions,
    make_detector,
    make_preprocessor,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "DETECTORS",
    "Context",
    "Detections",
    "Detector",
    "Groundtruth",
    "Predictions",
    "make_detector",
    "make_preprocessor",
]

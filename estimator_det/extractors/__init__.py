"""Feature extractors by type string; a new sibling module is found by itself."""

from __future__ import annotations

import importlib
import pkgutil

from estimator_det.config.advice import TpuAdvice

TPU = TpuAdvice(
    "feature_extractor", "use ssd_mobilenet_v1 or another feature extractor made for TPU"
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

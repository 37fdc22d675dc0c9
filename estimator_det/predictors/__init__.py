"""Box heads by message name. Importing the package imports its modules, which register them."""

from __future__ import annotations

import importlib
import pkgutil

from estimator_det.config.advice import TpuAdvice

TPU = (
    TpuAdvice("box_predictor", "use convolutional_box_predictor without dropout"),
    TpuAdvice("second_stage_box_predictor", "use mask_rcnn_box_predictor without dropout"),
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

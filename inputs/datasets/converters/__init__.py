"""Readers of annotated images in the formats of other tools, one file for each format."""

from estimator_det.config.registry import import_modules
from inputs.datasets.converters.base import CONVERTERS, open_source

import_modules(__name__, __path__)

__all__ = ["CONVERTERS", "open_source"]

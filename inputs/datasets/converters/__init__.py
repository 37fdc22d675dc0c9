"""Readers of annotated images in the formats of other tools, one file for each format."""

import importlib
import pkgutil

from inputs.datasets.converters.base import CONVERTERS, open_source

for _sibling in pkgutil.iter_modules(__path__):  # each registers its function
    importlib.import_module(f"{__name__}.{_sibling.name}")

__all__ = ["CONVERTERS", "open_source"]

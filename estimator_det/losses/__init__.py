"""Losses: classification, localization, and the selection of hard examples.

Letters in shapes: B images, A anchors, C class columns. Losses are float32 even if the network
is not; they are returned per anchor (or per anchor and class), already weighted and not summed.

Importing the package imports every module in it, so that a component in a new file is registered.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

"""Boxes: geometry, coders, anchors, matching, target assignment, sampling, suppression, masks.

Letters in shapes: B batch, G groundtruth boxes (padded), A anchors, C class columns, N and M any
number of boxes, P keypoints. Boxes are `ymin, xmin, ymax, xmax`; their frame (normalized or pixels)
is the same in all arguments, unless a docstring says otherwise.

Importing the package imports every module in it, so that a component in a new file is registered.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

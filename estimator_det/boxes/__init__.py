"""Boxes: geometry, coders, anchors, matching, target assignment, sampling, suppression, masks.

Letters in shapes: B batch, G groundtruth boxes (padded), A anchors, C class columns, N and M any
number of boxes, P keypoints. Boxes are `ymin, xmin, ymax, xmax`; their frame (normalized or pixels)
is the same in all arguments, unless a docstring says otherwise.
"""

from estimator_det.config.registry import import_modules

import_modules(__name__, __path__)

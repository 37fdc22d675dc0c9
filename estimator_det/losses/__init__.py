"""Losses: classification, localization, and the selection of hard examples.

Letters in shapes: B images, A anchors, C class columns. Losses are float32 even if the network
is not; they are returned per anchor (or per anchor and class), already weighted and not summed.
"""

from estimator_det.config.registry import import_modules

import_modules(__name__, __path__)

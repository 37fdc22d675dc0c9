"""Box heads by message name."""

from estimator_det.config.registry import import_modules

import_modules(__name__, __path__)

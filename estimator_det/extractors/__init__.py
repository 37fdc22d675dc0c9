"""Feature extractors by type string."""

from estimator_det.config.registry import import_modules

import_modules(__name__, __path__)

"""Random changes of image and labels during training, one function per `PreprocessingStep`."""

from estimator_det.config.registry import import_modules
from inputs.augment.base import AUGMENTATIONS, make_steps
from inputs.augment.mixing import check_mixtures

import_modules(__name__, __path__)

__all__ = ["AUGMENTATIONS", "check_mixtures", "make_steps"]

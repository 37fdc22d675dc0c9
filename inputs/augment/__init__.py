"""Random changes of image and labels during training, one function per `PreprocessingStep`."""

import importlib
import pkgutil

from inputs.augment.base import AUGMENTATIONS, make_steps
from inputs.augment.mixing import check_steps

for _sibling in pkgutil.iter_modules(__path__):  # each module registers its functions
    importlib.import_module(f"{__name__}.{_sibling.name}")

__all__ = ["AUGMENTATIONS", "check_steps", "make_steps"]

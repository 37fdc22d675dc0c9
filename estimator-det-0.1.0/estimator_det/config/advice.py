"""What to do about a part of the configuration that a TPU cannot run."""

from __future__ import annotations

from typing import NamedTuple


class TpuAdvice(NamedTuple):
    """The constant `TPU` of a module, or of a package for all its modules.

    `model_fn.preflight.op_origin` reads it for operations that the module makes.
    """

    field: str  # within the detector's message, or from the top if it begins with train_config
    remedy: str

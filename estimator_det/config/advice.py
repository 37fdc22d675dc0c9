"""What to do about a part of the configuration that a TPU cannot run."""

from __future__ import annotations

from typing import NamedTuple


class TpuAdvice(NamedTuple):
    """The constant `TPU` of a module, or of a package for all its modules; or several in a tuple.

    `model_fn.checks.op_origin` reads the first whose field the detector has, for operations
    that the module makes; where none has, that of the caller.
    """

    field: str  # within the detector's message, or from the top if it begins with train_config
    remedy: str

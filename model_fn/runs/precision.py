"""Switches of the process for precisions that need more than another type of tensors."""

from __future__ import annotations

from typing import Optional

from estimator_det.compat import onednn, tf
from estimator_det.errors import UsageError
from inputs import machine
from model_fn.runs.options import BFLOAT16_CONVOLUTIONS, MIXED_BFLOAT16


def set_up(precision: Optional[str]) -> None:
    """Switches the process to the precision of a run; refuses what it cannot compute in."""
    if precision != BFLOAT16_CONVOLUTIONS:
        return
    text = f"precision is {BFLOAT16_CONVOLUTIONS}, "
    if tf.config.list_physical_devices("GPU"):
        raise UsageError(f"{text}which CPUs have; on a GPU give {MIXED_BFLOAT16}")
    if not machine.can_round_convolutions():
        raise UsageError(f"{text}which needs a processor with {machine.AMX}; leave it out")
    if not onednn.round_convolutions():
        raise UsageError(
            f"{text}and convolutions of this process stay float32: TensorFlow has computed before, "
            "or TF_ENABLE_ONEDNN_OPTS=0 switches oneDNN off. Use a new process without this "
            "variable, or leave precision out"
        )

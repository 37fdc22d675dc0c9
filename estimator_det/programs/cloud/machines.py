"""The machines of a job: worker pools, accelerators and TPUs."""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Tuple

from estimator_det.programs import console

CHIEF, WORKER, PARAMETER_SERVER, EVALUATOR = ROLES = ("chief", "worker", "ps", "evaluator")

_ACCELERATOR = re.compile(r"([A-Z]\w*)(?::([1-9]\d*))?")


class Machine(NamedTuple):
    """One kind of virtual machine."""

    machine_type: str
    accelerator_type: str = ""
    accelerator_count: int = 0
    tpu_topology: str = ""

    @property
    def is_tpu(self) -> bool:
        """True for the host of a TPU."""
        return bool(self.tpu_topology) or self.accelerator_type.startswith("TPU")


class Pool(NamedTuple):
    """Equal machines with the same part in training."""

    role: str  # one of ROLES
    machine: Machine
    replicas: int


class Tpu(NamedTuple):
    """A TPU with one host."""

    machine: Machine
    num_cores: int


TPUS: Dict[str, Tpu] = {
    "v2-8": Tpu(Machine("cloud-tpu", "TPU_V2", 8), 8),
    "v3-8": Tpu(Machine("cloud-tpu", "TPU_V3", 8), 8),
    "v5litepod-1": Tpu(Machine("ct5lp-hightpu-1t", tpu_topology="1x1"), 1),
    "v5litepod-4": Tpu(Machine("ct5lp-hightpu-4t", tpu_topology="2x2"), 4),
    "v5litepod-8": Tpu(Machine("ct5lp-hightpu-8t", tpu_topology="2x4"), 8),
}


def parse_accelerator(text: str) -> Tuple[str, int]:
    """`NVIDIA_TESLA_T4:2` -> type and number per machine; the number is 1 by default."""
    parts = _ACCELERATOR.fullmatch(text.upper().replace("-", "_"))
    if parts is None or parts[1].startswith("TPU"):
        raise console.UsageError(
            f"--accelerator {text}: give a type of Vertex AI and a number for each machine, "
            "e.g. NVIDIA_TESLA_T4:2; TPUs are given by --tpu"
        )
    return parts[1], int(parts[2] or 1)

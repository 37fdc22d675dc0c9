"""The machines of a job: worker pools, accelerators, TPUs, and how much memory they have.

Types and topologies are those of the pages that docs/cloud.md lists with the date of the check.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Tuple

from estimator_det import console

CHIEF, WORKER, PARAMETER_SERVER, EVALUATOR = ROLES = ("chief", "worker", "ps", "evaluator")

ACCELERATORS = (
    "NVIDIA_TESLA_P4",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_V100",
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_A100",
    "NVIDIA_A100_80GB",
    "NVIDIA_L4",
    "NVIDIA_H100_80GB",
    "NVIDIA_H100_MEGA_80GB",
    "NVIDIA_H200_141GB",
    "NVIDIA_B200",
)

# GiB of each virtual CPU, by the family of the machine type.
_GIB_PER_CPU = {
    "n1-standard": 3.75,
    "n1-highmem": 6.5,
    "n1-highcpu": 0.9,
    "n2-standard": 4.0,
    "n2-highmem": 8.0,
    "n2-highcpu": 1.0,
    "e2-standard": 4.0,
    "e2-highmem": 8.0,
    "e2-highcpu": 1.0,
    "c2-standard": 4.0,
    "g2-standard": 4.0,
}
_GIB = {
    "a2-highgpu-1g": 85,
    "a2-highgpu-2g": 170,
    "a2-highgpu-4g": 340,
    "a2-highgpu-8g": 680,
    "a2-megagpu-16g": 1360,
    "a2-ultragpu-1g": 170,
    "a2-ultragpu-2g": 340,
    "a2-ultragpu-4g": 680,
    "a2-ultragpu-8g": 1360,
    "ct5lp-hightpu-1t": 48,
    "ct5lp-hightpu-4t": 192,
    "ct5lp-hightpu-8t": 384,
}


class Machine(NamedTuple):
    """One kind of virtual machine."""

    machine_type: str
    accelerator_type: str = ""
    accelerator_count: int = 0
    tpu_topology: str = ""

    @property
    def is_tpu(self) -> bool:
        """Whether it is the host of a TPU."""
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
    """`NVIDIA_TESLA_T4:2` -> type and number per machine; the number is 1 by default.

    Raises:
        UsageError: if the type is unknown, or the number is not positive.
    """
    kind, colon, number = text.partition(":")
    kind = kind.upper().replace("-", "_")
    if kind not in ACCELERATORS:
        raise console.UsageError(
            f"--accelerator {text}: {kind} is not known. Known: {', '.join(ACCELERATORS)}; TPUs "
            "are given by --tpu"
        )
    if colon and not (number.isdecimal() and int(number)):
        raise console.UsageError(
            f"--accelerator {text}: give the number of accelerators of each machine after the "
            f"colon, e.g. {kind}:2"
        )
    return kind, int(number or 1)


def host_memory(machine_type: str) -> Optional[int]:
    """Bytes of memory of a machine type; None if it is not known here."""
    if machine_type in _GIB:
        return _GIB[machine_type] << 30
    found = re.fullmatch(r"([a-z]\d-[a-z]+)-(\d+)", machine_type)
    if found and found[1] in _GIB_PER_CPU:
        return int(_GIB_PER_CPU[found[1]] * int(found[2]) * (1 << 30))
    return None

"""Settings of a measured training, and the turns that its process takes on the device.

Imported by torchvision's interpreter too, so it needs the standard library alone.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List

MAX_SECONDS = 120  # on the device, after which a process is ended
SECONDS = 3.0  # that end a measurement before its last call, from two calls on

FLOAT32, TF32, FLOAT16, BFLOAT16 = "float32", "TF32", "mixed_float16", "mixed_bfloat16"
PRECISIONS = (FLOAT32, TF32, FLOAT16, BFLOAT16)
ESTIMATOR, LOOP, MIRRORED, TORCHVISION = "Estimator", "none", "mirrored", "torchvision"
# Two-stage models keep the aspect ratio of their images otherwise.
TWO_STAGE_SIZE = (600, 1024)  # height, width


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings of a training."""

    model: str  # name of a configuration, or of a function of torchvision
    batch_size: int
    precision: str = TF32
    trainer: str = LOOP  # Estimator, a strategy of the TF2 loop, or torchvision
    jit_compile: bool = False
    steps_per_call: int = 1  # more than 1 in the TF2 loop alone

    @property
    def column(self) -> str:
        """Heading of the table: all settings but the model and the batch size."""
        words = [self.precision]
        if self.jit_compile:
            words.append("XLA")
        if self.trainer not in (LOOP, TORCHVISION):
            words.append(self.trainer)
        if self.steps_per_call > 1:
            words.append(f"{self.steps_per_call} steps a call")
        return ", ".join(words)

    @property
    def environment(self) -> Dict[str, str]:
        """Environment of its process."""
        # A process that waits for the device must not hold all of its memory.
        changes = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        if self.precision != TF32:
            changes["NVIDIA_TF32_OVERRIDE"] = "0"  # cuBLAS and cuDNN then leave TF32 out
        return {**os.environ, **changes}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings that all measurements share; paths are absolute."""

    configs: str  # folder with MODEL.config
    record: str
    label_map: str
    lock: str  # file that the process that uses the device holds
    calls: int  # timed at most
    warm_up: int = 5  # calls before, which choose kernels and allocate memory


class Clock:
    """Times of calls, each of one step or more, on a device that processes use in turns."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lock = open(plan.lock, "w")  # noqa: SIM115 (held until the process ends)
        self._times: List[float] = []  # begin of the first call, then the end of each

    def start(self) -> None:
        """Waits for the device, then starts."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        signal.alarm(MAX_SECONDS)
        self._times.append(time.perf_counter())

    def tick(self) -> bool:
        """Counts a call; True if enough of them have been timed."""
        self._times.append(time.perf_counter())
        return self.num_timed >= self._plan.calls or (self.num_timed > 1 and self.seconds > SECONDS)

    @property
    def num_timed(self) -> int:
        return len(self._times) - 1 - self._plan.warm_up

    @property
    def seconds(self) -> float:
        """Seconds of all timed calls."""
        return self._times[-1] - self._times[self._plan.warm_up]

    def figures(self, case: Case) -> Dict[str, float]:
        """Images per second, and the time of the first step."""
        images = case.batch_size * case.steps_per_call * self.num_timed
        return {
            "images_per_second": images / self.seconds,
            "first_step_seconds": self._times[1] - self._times[0],
        }


def command(module: str, case: Case, plan: Plan) -> List[str]:
    """Arguments of an interpreter that measures the case by `main` of the module."""
    return ["-m", module, json.dumps([dataclasses.asdict(case), dataclasses.asdict(plan)])]


def main(measure: Callable[[Case, Plan], Any]) -> None:
    """Measures the case of the command line; prints the figures as JSON in the last line."""
    case, plan = json.loads(sys.argv[1])
    print(json.dumps(measure(Case(**case), Plan(**plan))))

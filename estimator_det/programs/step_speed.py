"""Speed of training steps of a model on this machine."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import resource
import tempfile
import time
from typing import TYPE_CHECKING, List, NamedTuple

import numpy as np

from estimator_det.config import pipeline
from inputs.machine import has_bfloat16
from model_fn.runs import runner
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import FLOAT32, MIXED_BFLOAT16, TrainOptions

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

FIRST_STEPS = 3  # slower, since they choose kernels and allocate memory
MEASURED_STEPS = 6
MEASURED_SECS = 15.0  # for slow models, at least one step
BETTER_TIME = 0.85  # share of the time in float32 for which bfloat16 is worth its rounding


class Speed(NamedTuple):
    """A measured training step."""

    seconds: float
    batch_size: int
    num_bytes: int  # peak memory of the process during the steps
    precision: str = FLOAT32  # one of `model_fn.runs.options.PRECISIONS`


def fastest(config: pipeline_pb2.TrainEvalPipelineConfig) -> Speed:
    """Speed of a step in the faster one of float32 and bfloat16."""
    exact = measure(config)
    if not has_bfloat16():
        return exact
    # Small networks are faster in float32 even where processors compute bfloat16.
    rounded = measure(config, MIXED_BFLOAT16)
    return rounded if rounded.seconds < BETTER_TIME * exact.seconds else exact


class _Timer(Hook):
    """Ends a run when enough steps have been timed."""

    def __init__(self) -> None:
        self.times: List[float] = []  # at which steps ended

    def begin(self, context: RunContext, step: int) -> None:
        self._stop = context.stop

    def after_step(self, result: StepResult) -> None:
        self.times.append(time.monotonic())
        timed = len(self.times) - FIRST_STEPS
        is_slow = timed >= 1 and self.times[-1] - self.times[FIRST_STEPS - 1] > MEASURED_SECS
        if timed >= MEASURED_STEPS or is_slow:
            self._stop.request()


def measure(config: pipeline_pb2.TrainEvalPipelineConfig, precision: str = FLOAT32) -> Speed:
    """Trains a few steps of a configuration, in a folder that is deleted."""
    # So low that even a first batch of unfit anchors cannot end the run as not finite.
    rate = "learning_rate { constant_learning_rate { learning_rate: 1e-5 } }"
    optimizer = f"train_config.optimizer={{ adam_optimizer {{ {rate} }} }}"
    config = pipeline.apply_overrides(config, [optimizer])
    timer = _Timer()
    options = TrainOptions(
        hooks=(timer,), precision=precision, progress=False, num_train_steps=10**6
    )
    reset_peak_memory()
    logging.disable(logging.WARNING)  # The run is not the user's.
    try:
        with tempfile.TemporaryDirectory() as folder:
            runner.run(config, folder, options, evaluates=False)
    finally:
        logging.disable(logging.NOTSET)
    seconds, batch_size = _median_step(timer.times), config.train_config.batch_size
    return Speed(seconds, batch_size, peak_memory(), precision)


def reset_peak_memory() -> None:
    """Forgets the peak of what this process did before, such as reading a whole data set."""
    with contextlib.suppress(OSError):  # not permitted in some containers
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Largest memory of this process since `reset_peak_memory`, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in kibibytes on Linux


def _median_step(times: List[float]) -> float:
    """Median seconds of a step, from the times at which steps ended."""
    return float(np.median(np.diff(times[FIRST_STEPS - 1 :])))

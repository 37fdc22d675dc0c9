"""Speed of training steps on this machine, measured with the very model."""

from __future__ import annotations

import logging
import resource
import statistics
import tempfile
import time
from typing import Any, List, NamedTuple

from estimator_det.config import pipeline
from inputs.machine import has_bfloat16
from model_fn.runs import runner
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import FLOAT32, MIXED_BFLOAT16

FIRST_STEPS = 3  # slower, since TensorFlow plans its kernels
MEASURED_STEPS = 6
MEASURED_SECS = 15.0  # for slow models, at least one step
BETTER_TIME = 0.85  # share of the time in float32 for which bfloat16 is worth its rounding


class Speed(NamedTuple):
    """A measured training step."""

    seconds: float
    batch_size: int
    num_bytes: int  # peak memory of the process
    precision: str = FLOAT32  # one of `model_fn.runs.options.PRECISIONS`


def fastest(config: Any) -> Speed:
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
        self.times: List[float] = []

    def begin(self, context: RunContext, step: int) -> None:
        self._stop = context.stop

    def after_step(self, result: StepResult) -> None:
        self.times.append(time.monotonic())
        # The first steps choose kernels and allocate memory.
        timed = len(self.times) - FIRST_STEPS
        is_slow = timed >= 1 and self.times[-1] - self.times[FIRST_STEPS - 1] > MEASURED_SECS
        if timed >= MEASURED_STEPS or is_slow:
            self._stop.request()

    @property
    def seconds(self) -> float:
        """Median seconds of a step."""
        times = self.times[FIRST_STEPS - 1 :]
        return statistics.median(after - before for before, after in zip(times, times[1:]))


def measure(config: Any, precision: str = FLOAT32) -> Speed:
    """Trains a few steps of a configuration, in a folder that is deleted."""
    # So low that even a first batch of unfit anchors cannot end the run as not finite.
    rate = "learning_rate { constant_learning_rate { learning_rate: 1e-5 } }"
    optimizer = f"train_config.optimizer={{ adam_optimizer {{ {rate} }} }}"
    config = pipeline.apply_overrides(config, [optimizer])
    timer = _Timer()
    logging.disable(logging.WARNING)  # The run is not the user's.
    try:
        with tempfile.TemporaryDirectory() as folder:
            runner.train(
                config,
                folder,
                hooks=(timer,),
                precision=precision,
                progress=False,
                num_train_steps=10**6,
            )
    finally:
        logging.disable(logging.NOTSET)
    # In kibibytes on Linux.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Speed(timer.seconds, config.train_config.batch_size, peak, precision)

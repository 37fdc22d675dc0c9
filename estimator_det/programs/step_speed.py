"""Speed of training steps of a model on this machine, in each precision that it has."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import tempfile
import time
import warnings
from typing import BinaryIO, List, NamedTuple, Sequence, Tuple

import numpy as np

from estimator_det.compat import failures, tf
from estimator_det.config import pipeline, plugins
from estimator_det.errors import NotFiniteLossError, RunError
from estimator_det.protos import pipeline_pb2
from inputs import machine
from model_fn.events import GRADIENT_NORM
from model_fn.runs import runner
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import BFLOAT16_CONVOLUTIONS, FLOAT32, TrainOptions
from model_fn.training.step import TOTAL_LOSS

MEASURED_STEPS = 20
MEASURED_SECS = 2.0  # for slow models, at least two steps
# Mean relative differences of the loss and of the norm of its gradients from float32.
TOLERANCES = (0.02, 0.5)
BETTER_TIME = 0.95  # share of the time in float32 for which bfloat16 is worth its rounding


class Speed(NamedTuple):
    """A measured training step."""

    seconds: float
    batch_size: int
    num_bytes: int  # peak memory of a process that trains
    precision: str = FLOAT32  # one of `model_fn.runs.options.PRECISIONS`
    # Total loss and norm of the gradients of each step; all precisions start with one seed.
    losses: Sequence[Tuple[float, float]] = ()


def own_precisions(config: pipeline_pb2.TrainEvalPipelineConfig) -> List[str]:
    """The precisions that train as well as float32 on this machine, first float32.

    Without mixed_bfloat16: it rounds residual sums and outputs of heads, too, and what that costs
    a long training, a few steps with a tiny learning rate cannot foresee.
    """
    is_quantized = config.graph_rewriter.HasField("quantization")
    if is_quantized or tf.config.list_physical_devices("GPU"):
        return [FLOAT32]
    return [FLOAT32, *([BFLOAT16_CONVOLUTIONS] if machine.has_bfloat16() else ())]


def fastest(speeds: Sequence[Speed]) -> Speed:
    """The fastest precision whose losses and gradients agree with float32, `speeds[0]`."""
    exact = speeds[0]
    alike = [each for each in speeds[1:] if is_alike(each, exact)]
    best = min(alike, key=lambda each: each.seconds, default=exact)
    return best if best.seconds < BETTER_TIME * exact.seconds else exact


def is_alike(speed: Speed, exact: Speed) -> bool:
    """True if losses and gradients agree with float32 as closely as rounding allows."""
    pairs = np.array(list(zip(speed.losses, exact.losses)))  # [steps, 2, loss and norm]
    if not pairs.size:
        return False
    differences = np.abs(pairs[:, 0] / pairs[:, 1] - 1)
    return bool((differences.mean(axis=0) <= TOLERANCES).all())


def describe(speeds: Sequence[Speed]) -> str:
    """The precision that `fastest` chooses, and the time of every measured precision."""
    exact = speeds[0]
    texts = []
    for each in speeds:
        text = f"{each.precision} {each.seconds:.2f} s"
        if not each.losses:
            text = f"{each.precision} fails here"
        elif each is not exact and not is_alike(each, exact):
            text += ", other losses"
        texts.append(text)
    return f"precision: {fastest(speeds).precision}; a step in {'; '.join(texts)}"


def measure(
    config: pipeline_pb2.TrainEvalPipelineConfig, precisions: Sequence[str] = (FLOAT32,)
) -> List[Speed]:
    """Trains a few steps in each precision, in processes and folders that end with them."""
    # A GPU has memory for one of them.
    jobs = 1 if tf.config.list_physical_devices("GPU") else len(precisions)
    modules = list(plugins.module_files())
    with tempfile.NamedTemporaryFile() as turns:
        shared = (config.SerializeToString(), modules, turns.name, jobs)
        try:
            return list(machine.run_in_processes(_measure_alone, shared, precisions, jobs=jobs))
        except machine.ProcessDiedError as error:
            raise RunError(
                "no step was measured: the process died, perhaps because memory ran out. Lower "
                "train_config.batch_size, or the size of the images"
            ) from error


class _Timer(Hook):
    """Times steps while no other process trains, and ends the run when there are enough.

    All processes build their graphs at the same time. Then they train one after another, each
    while it holds the lock of the file `turns`, which has a byte for each process that is ready.
    """

    def __init__(self, turns: BinaryIO, num_processes: int) -> None:
        self._turns, self._num_processes = turns, num_processes
        self.times: List[float] = []  # at which steps ended
        self.losses: List[Tuple[float, float]] = []

    def begin(self, context: RunContext, step: int) -> None:
        self._stop = context.stop

    def before_step(self, step: int) -> None:
        if self.times:
            return
        self._turns.write(b".")
        while os.path.getsize(self._turns.name) < self._num_processes:
            time.sleep(0.05)
        fcntl.flock(self._turns, fcntl.LOCK_EX)

    def after_step(self, result: StepResult) -> None:
        self.times.append(time.monotonic())
        self.losses.append((result.scalars[TOTAL_LOSS], result.scalars[GRADIENT_NORM]))
        is_slow = len(self.times) > 1 and self.times[-1] - self.times[0] > MEASURED_SECS
        if len(self.times) >= MEASURED_STEPS or is_slow:
            self._stop.request()
            fcntl.flock(self._turns, fcntl.LOCK_UN)


def _measure_alone(shared: Tuple[bytes, List[str], str, int], precision: str) -> Speed:
    serialized, modules, path, num_processes = shared
    plugins.load(modules)  # A new process has none.
    config = pipeline_pb2.TrainEvalPipelineConfig.FromString(serialized)
    # So low that all precisions compute with about the same weights, and losses differ by rounding
    # alone. Adam has as many variables as momentum with averages.
    rate = "learning_rate { constant_learning_rate { learning_rate: 1e-7 } }"
    optimizer = (
        f"train_config.optimizer={{ adam_optimizer {{ {rate} }} use_moving_average: false }}"
    )
    config = pipeline.apply_overrides(config, [optimizer])
    logging.disable(logging.WARNING)  # The run is not the user's.
    warnings.simplefilter("ignore")
    with open(path, "ab", buffering=0) as turns, tempfile.TemporaryDirectory() as folder:
        timer = _Timer(turns, num_processes)
        options = TrainOptions(
            hooks=(timer,), precision=precision, progress=False, num_train_steps=10**6, seed=0
        )
        try:
            runner.run(config, folder, options, evaluates=False)
        except NotFiniteLossError:
            if precision == FLOAT32:
                raise
            timer.losses.clear()
        except tf.errors.OpError as error:  # which other processes cannot get
            raise RunError(failures.reason(error)) from error
        finally:
            turns.write(b".")  # The others do not wait for a run that failed before its first step.
    # The first step is slower, since it chooses kernels and allocates memory.
    seconds = float(np.median(np.diff(timer.times))) if timer.losses else math.inf
    return Speed(seconds, config.train_config.batch_size, peak_memory(), precision, timer.losses)


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    # `getrusage` begins with the memory of the process that started this one.
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])

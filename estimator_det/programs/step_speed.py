"""Speed of training steps on this machine: of the very model, and of a small convolution."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import resource
import tempfile
import time
from typing import TYPE_CHECKING, Any, List, NamedTuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.files import atomic
from estimator_det.programs.pretrained import default_cache
from inputs.machine import has_bfloat16
from model_fn.runs import runner
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import FLOAT32, MIXED_BFLOAT16

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

FIRST_STEPS = 3  # slower, since they choose kernels and allocate memory
MEASURED_STEPS = 6
MEASURED_SECS = 15.0  # for slow models, at least one step
BETTER_TIME = 0.85  # share of the time in float32 for which bfloat16 is worth its rounding
CACHE_FILE = "bfloat16.json"  # processor and TensorFlow -> share of the time in float32

_LOG = logging.getLogger(__name__)


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
    reset_peak_memory()
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


def advice(config: pipeline_pb2.TrainEvalPipelineConfig) -> List[str]:
    """A line about the gain from bfloat16, if this processor computes it in hardware."""
    if not has_bfloat16() or config.graph_rewriter.HasField("quantization"):
        return []
    percent = round(100 * (1 - _remembered_share()))
    gain = f"takes {percent}% less time" if percent > 0 else "is not faster"
    return [
        f"precision:  a training step of a small convolution {gain} in bfloat16 than in float32 "
        "here; train --precision auto measures this model"
    ]


def _remembered_share() -> float:
    """Share of the time in float32 that bfloat16 takes, from the cache or measured for it."""
    path = os.path.join(default_cache(), CACHE_FILE)
    key = f"{_processor()}, TensorFlow {tf.__version__}"
    try:
        shares = dict(json.loads(pathlib.Path(path).read_bytes()))
    except (OSError, ValueError, TypeError):  # missing or damaged: it is written again
        shares = {}
    share = shares.get(key)
    if not (isinstance(share, float) and share > 0):
        share = round(_convolution_secs(tf.bfloat16) / _convolution_secs(tf.float32), 3)
        shares[key] = share
        try:
            atomic.write(path, json.dumps(shares, indent=2) + "\n")
        except OSError as error:
            _LOG.warning(
                "the speed of bfloat16 is measured again by the next command: %s cannot be "
                "written (%s). Set ESTIMATOR_DET_CACHE to a folder of yours",
                *(path, error.strerror),
            )
    return share


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def _convolution_secs(dtype: Any) -> float:
    """Median seconds of a step of a 3x3 convolution with its gradients, computed in one type."""
    with tf.Graph().as_default(), tf.device("/CPU:0"), tf1.Session() as session:
        images = tf1.Variable(tf1.random_uniform([8, 32, 32, 128], seed=0))
        kernel = tf1.Variable(tf1.random_uniform([3, 3, 128, 128], seed=0))
        outputs = tf.nn.conv2d(tf.cast(images, dtype), tf.cast(kernel, dtype), 1, "SAME")
        step = tf1.train.GradientDescentOptimizer(1e-9).minimize(tf.nn.relu(outputs))
        session.run(tf1.global_variables_initializer())
        times = []
        for _ in range(FIRST_STEPS + MEASURED_STEPS):
            session.run(step)
            times.append(time.monotonic())
    return _median_step(times)

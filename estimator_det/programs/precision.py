"""Advice on bfloat16, from a small convolution that is timed once on each kind of machine."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import statistics
import time
from typing import Any, Dict, List

from estimator_det.files import atomic
from inputs.machine import has_bfloat16

FILE = "bfloat16.json"  # in the cache folder: processor and TensorFlow -> share of the time
_FIRST_STEPS, _MEASURED_STEPS = 3, 5
_LOG = logging.getLogger(__name__)


def advice(config: Any) -> List[str]:
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
    from estimator_det.compat import tf
    from estimator_det.programs.pretrained import default_cache

    path = os.path.join(default_cache(), FILE)
    key = f"{_processor()}, TensorFlow {tf.__version__}"
    shares = _read(path)
    if key not in shares:
        shares[key] = round(_seconds(tf.bfloat16) / _seconds(tf.float32), 3)
        try:
            atomic.write(path, json.dumps(shares, indent=2) + "\n")
        except OSError as error:
            _LOG.warning(
                "the speed of bfloat16 is measured again by the next command: %s cannot be "
                "written (%s). Set ESTIMATOR_DET_CACHE to a folder of yours",
                *(path, error.strerror),
            )
    return shares[key]


def _read(path: str) -> Dict[str, float]:
    """The shares of a file; none if it is missing or damaged, since it is then written again."""
    try:
        shares = json.loads(pathlib.Path(path).read_bytes()).items()
    except (OSError, ValueError, AttributeError):
        return {}
    return {key: share for key, share in shares if isinstance(share, float) and share > 0}


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def _seconds(dtype: Any) -> float:
    """Median seconds of a step of a 3x3 convolution with its gradients, computed in one type."""
    from estimator_det.compat import tf, tf1

    with tf.Graph().as_default(), tf.device("/CPU:0"), tf1.Session() as session:
        images = tf1.Variable(tf1.random_uniform([8, 32, 32, 128], seed=0))
        kernel = tf1.Variable(tf1.random_uniform([3, 3, 128, 128], seed=0))
        outputs = tf.nn.conv2d(tf.cast(images, dtype), tf.cast(kernel, dtype), 1, "SAME")
        step = tf1.train.GradientDescentOptimizer(1e-9).minimize(tf.nn.relu(outputs))
        session.run(tf1.global_variables_initializer())
        times = [time.monotonic()]
        for _ in range(_FIRST_STEPS + _MEASURED_STEPS):
            session.run(step)
            times.append(time.monotonic())
    times = times[_FIRST_STEPS:]  # The first steps choose kernels and allocate memory.
    return statistics.median(after - before for before, after in zip(times, times[1:]))

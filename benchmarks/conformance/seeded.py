"""Values of variables in golden runs: functions of a variable's name and shape alone."""

from __future__ import annotations

import math
import zlib
from typing import Callable, Dict, Sequence

import numpy as np

SeededValue = Callable[[str, Sequence[int]], np.ndarray]

_OFFSETS = ("beta", "bias", "biases", "moving_mean")
# The last batch norm of residual branches, whose scales let activations of deep networks grow.
_DAMPED = ("/conv3/BatchNorm/gamma", "/project/BatchNorm/gamma")


def _value(
    name: str, shape: Sequence[int], scales: Sequence[str], depthwise_weights: str
) -> np.ndarray:
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    noise = np.asarray(noise, np.float32)
    last = name.rpartition("/")[2]
    if last in scales:
        return 1 + np.float32(0.1) * noise
    if last in _OFFSETS:
        return np.float32(0.1) * noise
    if last == "moving_variance":
        return 1 + np.float32(0.1) * np.abs(noise)
    inputs = shape[:2] if last == depthwise_weights else shape[:-1]
    return noise * np.float32(np.sqrt(2.0 / max(math.prod(inputs), 1)))


def value(name: str, shape: Sequence[int]) -> np.ndarray:
    """The value of a variable of the TF1 line, float32."""
    return _value(name, shape, ("gamma",), "depthwise_weights")


def damped_value(name: str, shape: Sequence[int]) -> np.ndarray:
    """`value`, with a quarter of the scales that end a residual branch."""
    return value(name, shape) * np.float32(0.25 if name.endswith(_DAMPED) else 1)


def tf2_value(key: str, shape: Sequence[int], scale: float) -> np.ndarray:
    """The value of a variable of the TF2 line, by its key in an object-based checkpoint."""
    scales = ("gamma", "per_input_weights", "bifpn_combine_weights")
    return _value(key, shape, scales, "depthwise_kernel") * np.float32(scale)


# By their names in golden records.
VALUES: Dict[str, SeededValue] = {"det_value": value, "det_value_damped": damped_value}

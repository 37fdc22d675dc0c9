"""Deterministic variable initialisation shared by all golden data (numpy only)."""

import zlib

import numpy as np


def det_value(name, shape):
    """name without ':0'; shape a sequence of ints -> float32 array."""
    shape = tuple(int(d) for d in shape)
    rng = np.random.default_rng(zlib.crc32(name.encode("utf-8")))
    x = np.asarray(rng.standard_normal(shape)).astype(np.float32)
    if name.endswith("/gamma"):
        v = 1 + 0.1 * x
    elif name.endswith(("/beta", "/biases", "/bias")) or name.endswith("moving_mean"):
        v = 0.1 * x
    elif name.endswith("moving_variance"):
        v = 1 + 0.1 * np.abs(x)
    else:
        if name.endswith("depthwise_weights"):
            fan_in = shape[0] * shape[1]
        else:
            fan_in = int(np.prod(shape[:-1])) if len(shape) > 1 else 1
        v = x * np.float32(np.sqrt(2.0 / max(fan_in, 1)))
    return np.asarray(v, dtype=np.float32).reshape(shape)


DAMPED_SUFFIXES = ("/conv3/BatchNorm/gamma", "/project/BatchNorm/gamma")


def det_value_damped(name, shape):
    """Variant used by numeric/*__damped.*: the scale of the last batch norm of each
    residual branch is multiplied by 0.25, which keeps deep residual nets in a sane range."""
    v = det_value(name, shape)
    if name.endswith(DAMPED_SUFFIXES):
        v = (v * np.float32(0.25)).astype(np.float32)
    return v

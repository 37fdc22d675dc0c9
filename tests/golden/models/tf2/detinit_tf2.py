"""Deterministic values of the TF2 goldens (numpy only, own code).

key: the checkpoint key without '/.ATTRIBUTES/VARIABLE_VALUE'.
scale: the fifth column of "variables" in configs/NAME.json.
"""

import zlib

import numpy as np


def det_value_tf2(key, shape, scale=1.0):
    shape = tuple(int(d) for d in shape)
    rng = np.random.default_rng(zlib.crc32(key.encode("utf-8")))
    x = np.asarray(rng.standard_normal(shape)).astype(np.float32)
    last = key.rsplit("/", 1)[-1]
    if last in ("gamma", "per_input_weights", "bifpn_combine_weights"):
        v = 1 + 0.1 * x
    elif last in ("beta", "bias", "moving_mean"):
        v = 0.1 * x
    elif last == "moving_variance":
        v = 1 + 0.1 * np.abs(x)
    else:
        if last == "depthwise_kernel":
            fan_in = shape[0] * shape[1]
        else:
            fan_in = int(np.prod(shape[:-1])) if len(shape) > 1 else 1
        v = x * np.float32(np.sqrt(2.0 / max(fan_in, 1)))
    v = np.asarray(v, dtype=np.float32).reshape(shape)
    return (v * np.float32(scale)).astype(np.float32)

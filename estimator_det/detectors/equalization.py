"""Penalty that equalizes the channel ranges of each kernel.

If one channel of a kernel has a much larger range than another, a quantizer with one step for the
whole kernel has few levels for the small one. The penalty is the variance over output channels of
log(max |w|), summed over kernels: zero if all ranges are equal, and independent of a kernel's
overall scale. The Object Detection API reads the option but ignores it.
"""

from __future__ import annotations

import functools
from typing import Callable, Optional, Sequence

from estimator_det.compat import tf, tf1
from estimator_det.errors import ConfigError
from estimator_det.protos import losses_pb2

SMALLEST_RANGE = 1e-6  # keeps the logarithm of an all-zero channel finite


def equalization_penalty(weight: float, exclude_prefixes: Sequence[str] = ()) -> tf.Tensor:
    """Computes the scalar penalty of the convolution kernels of the network that has been built.

    Kernels are skipped if their variables' names begin with one of the prefixes.
    """
    kernels = [
        variable
        for variable in tf1.trainable_variables()
        if variable.shape.rank == 4 and not variable.op.name.startswith(tuple(exclude_prefixes))
    ]
    if not kernels:
        raise ConfigError.at(
            "model.ssd.loss.equalization_loss.exclude_prefixes",
            f"exclude_prefixes {list(exclude_prefixes)} cover every kernel",
            "remove one",
        )
    return weight * tf.add_n([range_spread(kernel) for kernel in kernels])


def range_spread(kernel: tf.Variable) -> tf.Tensor:
    """Computes the variance of log(max |w|) over the output channels of an HWIO or HWC1 kernel."""
    height, width = kernel.shape[0], kernel.shape[1]
    is_depthwise = kernel.op.name.endswith("depthwise_weights")
    channels = -1 if is_depthwise else kernel.shape[3]
    flat = tf.reshape(kernel, [height * width if is_depthwise else -1, channels])
    ranges = tf.maximum(tf.reduce_max(tf.abs(flat), axis=0), SMALLEST_RANGE)
    return tf.math.reduce_variance(tf.math.log(ranges))


def make_equalization(config: losses_pb2.Loss) -> Optional[Callable[[], tf.Tensor]]:
    """Builds the penalty of a `Loss` message; None if its weight is 0."""
    weight, prefixes = config.equalization_loss.weight, config.equalization_loss.exclude_prefixes
    return functools.partial(equalization_penalty, weight, prefixes) if weight else None

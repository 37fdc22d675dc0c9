"""Normal initializers with four graph nodes; TensorFlow's initializers have six."""

from __future__ import annotations

from typing import Any, Callable

from estimator_det.compat import tf, tf1

Initializer = Callable[..., tf.Tensor]


def _scaled(draw: Callable[..., tf.Tensor], mean: float, stddev: float) -> Initializer:
    def initialize(shape: Any, dtype: Any = tf.float32, partition_info: Any = None) -> tf.Tensor:
        del partition_info  # part of the TF1 signature only
        seed, seed2 = tf1.get_seed(None)
        # To the kernels, two zeros mean that there is no seed.
        values = draw(shape=shape, dtype=dtype, seed=seed or 0, seed2=seed2 or 0) * stddev
        return values + mean if mean else values

    return initialize


def truncated_normal(stddev: float, mean: float = 0.0) -> Initializer:
    """Normal initializer without values beyond two deviations; uses the graph's seed."""
    return _scaled(tf.raw_ops.TruncatedNormal, mean, stddev)


def random_normal(stddev: float, mean: float = 0.0) -> Initializer:
    """Normal initializer; uses the graph's seed."""
    return _scaled(tf.raw_ops.RandomStandardNormal, mean, stddev)

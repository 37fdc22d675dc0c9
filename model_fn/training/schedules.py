"""Learning-rate schedules from their configuration.

A schedule takes its message and the global step, an int64 scalar, and returns a float32 scalar.
All arithmetic is in float32, as in the reference.
"""

from __future__ import annotations

import math
from typing import Any, Callable

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError
from estimator_det.protos import optimizer_pb2

LEARNING_RATES: Registry[Callable[[Any, tf.Tensor], tf.Tensor]] = Registry("learning rate")


@LEARNING_RATES.register("constant_learning_rate")
def _constant(config: optimizer_pb2.ConstantLearningRate, global_step: tf.Tensor) -> tf.Tensor:
    del global_step
    return tf.constant(config.learning_rate, tf.float32)


@LEARNING_RATES.register("exponential_decay_learning_rate")
def _exponential_decay(
    config: optimizer_pb2.ExponentialDecayLearningRate, global_step: tf.Tensor
) -> tf.Tensor:
    """Holds the burn-in rate, then decays exponentially, never below `min_learning_rate`.

    The decay counts from the end of the burn-in.
    """
    if config.decay_steps <= 0:
        raise ConfigError(
            None, f"exponential decay: decay_steps must be positive; given {config.decay_steps}"
        )
    # Exact up to step 2^24, and the type of every rate in the reference.
    step = tf.cast(global_step, tf.float32)
    periods = (step - config.burnin_steps) / config.decay_steps
    if config.staircase:
        periods = tf.floor(periods)
    initial_rate = config.initial_learning_rate
    decayed = initial_rate * tf.pow(config.decay_factor, periods)
    # 0 is not a rate here: the reference treats the field's default like an absent one.
    during_burnin = config.burnin_learning_rate or initial_rate
    rate = tf.where(step < config.burnin_steps, during_burnin, decayed)
    return tf.maximum(rate, config.min_learning_rate)


@LEARNING_RATES.register("manual_step_learning_rate")
def _manual_steps(
    config: optimizer_pb2.ManualStepLearningRate, global_step: tf.Tensor
) -> tf.Tensor:
    """Piecewise constant; each rate of the schedule holds from its step on.

    With `warmup`, the rate rises linearly from the initial one at step 0 to that of the first
    entry.
    """
    boundaries = [entry.step for entry in config.schedule]
    rates = [config.initial_learning_rate, *(entry.learning_rate for entry in config.schedule)]
    if any(later <= earlier for earlier, later in zip(boundaries, boundaries[1:])):
        raise ConfigError(None, f"manual steps: schedule steps must rise; given {boundaries}")
    # The number of boundaries that have passed is the index of the rate; none is index 0.
    is_past = tf.cast(global_step, tf.int64) >= tf.constant(boundaries, tf.int64)
    rate = tf.gather(tf.constant(rates, tf.float32), tf.reduce_sum(tf.cast(is_past, tf.int32)))
    if config.warmup and boundaries and boundaries[0] > 0:
        step = tf.cast(global_step, tf.float32)
        slope = (rates[1] - rates[0]) / boundaries[0]
        rate = tf.where(step < boundaries[0], rates[0] + slope * step, rate)
    return rate


@LEARNING_RATES.register("cosine_decay_learning_rate")
def _cosine_decay(
    config: optimizer_pb2.CosineDecayLearningRate, global_step: tf.Tensor
) -> tf.Tensor:
    """Rises linearly to the base rate, holds it, then falls along half a cosine to 0.

    From Loshchilov and Hutter, "SGDR", https://arxiv.org/abs/1608.03983, without restarts. After
    `total_steps` the rate stays 0.
    """
    warmup_steps, hold_steps = config.warmup_steps, config.hold_base_rate_steps
    base_rate, warmup_rate = config.learning_rate_base, config.warmup_learning_rate
    decay_steps = config.total_steps - warmup_steps - hold_steps
    if decay_steps <= 0:
        raise ConfigError(
            None,
            f"cosine decay: total_steps ({config.total_steps}) must exceed warmup_steps "
            f"({warmup_steps}) + hold_base_rate_steps ({hold_steps})",
        )
    if warmup_steps and base_rate < warmup_rate:
        raise ConfigError(
            None,
            f"cosine decay: learning_rate_base ({base_rate}) must not be below "
            f"warmup_learning_rate ({warmup_rate})",
        )
    step = tf.cast(global_step, tf.float32)
    angle = math.pi * (step - warmup_steps - hold_steps) / decay_steps
    rate = 0.5 * base_rate * (1.0 + tf.cos(angle))
    if hold_steps:
        # Before the decay the angle is negative, and the cosine would be below the base rate.
        rate = tf.where(step > warmup_steps + hold_steps, rate, base_rate)
    if warmup_steps:
        slope = (base_rate - warmup_rate) / warmup_steps
        rate = tf.where(step < warmup_steps, warmup_rate + slope * step, rate)
    # The cosine would rise again after its end.
    return tf.where(step > config.total_steps, 0.0, rate)


def make_learning_rate(config: optimizer_pb2.LearningRate, global_step: tf.Tensor) -> tf.Tensor:
    """The learning rate, float32 scalar named "learning_rate", that a `LearningRate` proto asks."""
    rate = LEARNING_RATES.make_chosen(config, "learning_rate", global_step)
    # The reference's name of the tensor, by which hooks of users find it.
    return tf.identity(rate, name="learning_rate")

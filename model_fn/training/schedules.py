"""Learning-rate schedules from their configuration.

A schedule is a plain function of the global step (int64 scalar) to a float32 scalar; all
arithmetic is in float32, as in the reference.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError

LEARNING_RATES: Registry[Callable[[Any, tf.Tensor], tf.Tensor]] = Registry("learning rate")


def exponential_decay(
    global_step: tf.Tensor,
    initial_rate: float,
    decay_steps: int,
    decay_factor: float,
    *,
    staircase: bool = True,
    burnin_rate: float = 0.0,
    burnin_steps: int = 0,
    min_rate: float = 0.0,
) -> tf.Tensor:
    """Holds `burnin_rate` for `burnin_steps`, then decays exponentially, never below `min_rate`.

    The decay counts from the end of the burn-in. A `burnin_rate` of 0 means `initial_rate`,
    which is the reference's reading of the field.
    """
    if decay_steps <= 0:
        raise ConfigError(
            None, f"exponential decay: decay_steps must be positive; given {decay_steps}"
        )
    # Exact up to step 2^24, and the type of every rate in the reference.
    step = tf.cast(global_step, tf.float32)
    periods = (step - burnin_steps) / decay_steps
    if staircase:
        periods = tf.floor(periods)
    decayed = initial_rate * tf.pow(decay_factor, periods)
    # 0 is not a rate here: the reference treats the field's default like an absent one.
    during_burnin = burnin_rate if burnin_rate else initial_rate
    return tf.maximum(tf.where(step < burnin_steps, during_burnin, decayed), min_rate)


def cosine_decay(
    global_step: tf.Tensor,
    base_rate: float,
    total_steps: int,
    *,
    warmup_rate: float = 0.0,
    warmup_steps: int = 0,
    hold_steps: int = 0,
) -> tf.Tensor:
    """Rises linearly to `base_rate`, holds it, then falls along half a cosine to 0.

    From Loshchilov and Hutter, "SGDR", https://arxiv.org/abs/1608.03983, without restarts. After
    `total_steps` the rate stays 0.
    """
    decay_steps = total_steps - warmup_steps - hold_steps
    if decay_steps <= 0:
        raise ConfigError(
            None,
            f"cosine decay: total_steps ({total_steps}) must exceed warmup_steps ({warmup_steps}) "
            f"+ hold_base_rate_steps ({hold_steps})",
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
        # Before the decay begins, the angle is negative and the cosine would be below the base
        # rate.
        rate = tf.where(step > warmup_steps + hold_steps, rate, base_rate)
    if warmup_steps:
        slope = (base_rate - warmup_rate) / warmup_steps
        rate = tf.where(step < warmup_steps, warmup_rate + slope * step, rate)
    # The cosine would rise again after its end.
    return tf.where(step > total_steps, 0.0, rate)


def manual_steps(
    global_step: tf.Tensor,
    boundaries: Sequence[int],
    rates: Sequence[float],
    *,
    warmup: bool = False,
) -> tf.Tensor:
    """Piecewise constant: `rates[i]` until step `boundaries[i]`, the last rate from there on.

    With `warmup`, the rate rises linearly from `rates[0]` at step 0 to `rates[1]` at
    `boundaries[0]` instead of holding `rates[0]`.
    """
    if any(later <= earlier for earlier, later in zip(boundaries, boundaries[1:])):
        raise ConfigError(None, f"manual steps: schedule steps must rise; given {list(boundaries)}")
    if any(boundary < 0 for boundary in boundaries):
        raise ConfigError(
            None, f"manual steps: schedule steps must be >= 0; given {list(boundaries)}"
        )
    if len(rates) != len(boundaries) + 1:
        raise ConfigError(
            None,
            f"manual steps: {len(boundaries)} boundaries need {len(boundaries) + 1} "
            f"rates; given {len(rates)}",
        )
    # The number of boundaries that have passed is the index of the rate; none is index 0.
    is_past = tf.cast(global_step, tf.int64) >= tf.constant(list(boundaries), tf.int64)
    rate = tf.gather(
        tf.constant(list(rates), tf.float32), tf.reduce_sum(tf.cast(is_past, tf.int32))
    )
    if warmup and boundaries and boundaries[0] > 0:
        step = tf.cast(global_step, tf.float32)
        slope = (rates[1] - rates[0]) / boundaries[0]
        rate = tf.where(step < boundaries[0], rates[0] + slope * step, rate)
    return rate


@LEARNING_RATES.register("constant_learning_rate")
def _make_constant(config: Any, global_step: tf.Tensor) -> tf.Tensor:
    del global_step
    return tf.constant(config.learning_rate, tf.float32)


@LEARNING_RATES.register("exponential_decay_learning_rate")
def _make_exponential(config: Any, global_step: tf.Tensor) -> tf.Tensor:
    return exponential_decay(
        global_step,
        config.initial_learning_rate,
        config.decay_steps,
        config.decay_factor,
        staircase=config.staircase,
        burnin_rate=config.burnin_learning_rate,
        burnin_steps=config.burnin_steps,
        min_rate=config.min_learning_rate,
    )


@LEARNING_RATES.register("manual_step_learning_rate")
def _make_manual(config: Any, global_step: tf.Tensor) -> tf.Tensor:
    rates = [config.initial_learning_rate, *(entry.learning_rate for entry in config.schedule)]
    boundaries = [entry.step for entry in config.schedule]
    return manual_steps(global_step, boundaries, rates, warmup=config.warmup)


@LEARNING_RATES.register("cosine_decay_learning_rate")
def _make_cosine(config: Any, global_step: tf.Tensor) -> tf.Tensor:
    return cosine_decay(
        global_step,
        config.learning_rate_base,
        config.total_steps,
        warmup_rate=config.warmup_learning_rate,
        warmup_steps=config.warmup_steps,
        hold_steps=config.hold_base_rate_steps,
    )


def make_learning_rate(config: Any, global_step: tf.Tensor) -> tf.Tensor:
    """The learning rate, float32 scalar named "learning_rate", that a `LearningRate` proto asks."""
    rate = LEARNING_RATES.make_chosen(config, "learning_rate", "learning_rate", global_step)
    # The reference's name of the tensor, by which hooks of users find it.
    return tf.identity(rate, name="learning_rate")

"""Learning-rate schedules from their configuration.

A schedule takes its message and the global step, an int64 scalar, and returns a float32 scalar.
All arithmetic is in float32, as in the Object Detection API.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, Iterator, Tuple

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import Tpu, rules
from estimator_det.errors import Problem, error, warning
from estimator_det.protos import optimizer_pb2, train_pb2

# From this batch size on, learning rates are so high that training needs a warm-up.
LARGE_BATCH = 64

LEARNING_RATES: Registry[Callable[[Any, tf.Tensor], tf.Tensor]] = Registry(
    "learning rate", chosen_by="LearningRate.learning_rate"
)


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
    # Exact up to step 2^24, and the type of every rate in the API.
    step = tf.cast(global_step, tf.float32)
    periods = (step - config.burnin_steps) / config.decay_steps
    if config.staircase:
        periods = tf.floor(periods)
    initial_rate = config.initial_learning_rate
    decayed = initial_rate * tf.pow(config.decay_factor, periods)
    # 0 is not a rate here: the API treats the field's default like an absent one.
    during_burnin = config.burnin_learning_rate or initial_rate
    rate = tf.where(step < config.burnin_steps, during_burnin, decayed)
    return tf.maximum(rate, config.min_learning_rate)


@LEARNING_RATES.register("manual_step_learning_rate")
def _manual_steps(
    config: optimizer_pb2.ManualStepLearningRate, global_step: tf.Tensor
) -> tf.Tensor:
    """Piecewise constant; each rate of the schedule holds from its step on.

    With `warmup`, the rate rises linearly from the initial rate at step 0 to the rate of the first
    entry.
    """
    boundaries = [entry.step for entry in config.schedule]
    rates = [config.initial_learning_rate, *(entry.learning_rate for entry in config.schedule)]
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
    rate = LEARNING_RATES.make_chosen(config, global_step)
    # The API's name of the tensor, by which hooks of users find it.
    return tf.identity(rate, name="learning_rate")


_ENDLESS = sys.maxsize  # steps of a training that has no last one


def check_schedule(
    config: optimizer_pb2.LearningRate, at: str, num_steps: int
) -> Iterator[Problem]:
    """Problems of a learning rate in a training of this many steps; 0: an endless one."""
    schedule = config.WhichOneof("learning_rate")
    last, at = num_steps or _ENDLESS, f"{at}.{schedule}"
    if schedule == "exponential_decay_learning_rate":
        yield from _check_exponential(config.exponential_decay_learning_rate, at, last)
    elif schedule == "manual_step_learning_rate":
        yield from _check_manual_steps(config.manual_step_learning_rate, at, last)
    elif schedule == "cosine_decay_learning_rate":
        yield from _check_cosine(config.cosine_decay_learning_rate, at, last)


def _check_exponential(
    schedule: optimizer_pb2.ExponentialDecayLearningRate, path: str, num_steps: int
) -> Iterator[Problem]:
    if not schedule.decay_steps:
        yield error(f"{path}.decay_steps", "is 0: the rate has no period", "set it to 1 or more")
    yield from _check_warmup(schedule.burnin_steps, f"{path}.burnin_steps", num_steps)
    first_decay = schedule.burnin_steps + schedule.decay_steps
    if schedule.staircase and schedule.burnin_steps < num_steps < first_decay:
        yield warning(
            f"{path}.decay_steps",
            f"the rate stays {schedule.initial_learning_rate:g}: its first decay is at step "
            f"{first_decay}, but training stops at {num_steps}",
            "train with --rescale_schedule or lower decay_steps, unless this is intended",
        )


def _check_manual_steps(
    schedule: optimizer_pb2.ManualStepLearningRate, path: str, num_steps: int
) -> Iterator[Problem]:
    steps = [entry.step for entry in schedule.schedule]
    if any(later <= earlier for earlier, later in zip([0, *steps], steps)):
        yield error(
            f"{path}.schedule",
            f"its steps {steps} do not increase from above 0",
            "sort them, each step once",
        )
    late = [step for step in steps if step >= num_steps]
    if late:
        yield warning(
            f"{path}.schedule",
            f"its steps {late} are never reached, because training stops at {num_steps}",
            "train with --rescale_schedule or lower them, unless this is intended",
        )


def _check_cosine(
    schedule: optimizer_pb2.CosineDecayLearningRate, path: str, num_steps: int
) -> Iterator[Problem]:
    decay_steps = schedule.total_steps - schedule.warmup_steps - schedule.hold_base_rate_steps
    if schedule.total_steps < schedule.warmup_steps:
        yield error(
            f"{path}.warmup_steps",
            f"{schedule.warmup_steps} are more than the total of {schedule.total_steps} steps",
            "lower warmup_steps or raise total_steps",
        )
        return
    if decay_steps <= 0:
        yield error(
            f"{path}.total_steps",
            f"is {schedule.total_steps}: it must exceed warmup_steps ({schedule.warmup_steps}) + "
            f"hold_base_rate_steps ({schedule.hold_base_rate_steps})",
            "raise it, or lower one of them",
        )
    yield from _check_warmup(schedule.warmup_steps, f"{path}.warmup_steps", num_steps)
    if schedule.warmup_steps and schedule.learning_rate_base < schedule.warmup_learning_rate:
        yield error(
            f"{path}.warmup_learning_rate",
            f"{schedule.warmup_learning_rate:g} is above the base rate "
            f"{schedule.learning_rate_base:g}",
            "lower warmup_learning_rate",
        )
    total = schedule.total_steps
    if num_steps not in (_ENDLESS, total):
        schedule_text = f"the learning-rate schedule ends at step {total}"
        if total < num_steps:
            schedule_text = f"the learning rate is 0 from step {total} on"
        rescaling = f"train with --num_train_steps {num_steps} --rescale_schedule"
        remedy = f"{rescaling}, or --set {path}.total_steps={num_steps}"
        if schedule.warmup_steps > num_steps:
            remedy += f" --set {path}.warmup_steps={num_steps // 10}"
        yield warning(
            f"{path}.total_steps", f"{schedule_text}, but training stops at {num_steps}", remedy
        )


def _check_warmup(warmup_steps: int, path: str, num_steps: int) -> Iterator[Problem]:
    if warmup_steps >= num_steps:
        yield warning(
            path,
            f"training stops at step {num_steps}, within the {warmup_steps} steps of warm-up",
            "lower it, or train for longer",
        )


@rules(train_pb2.TrainConfig, target="tpu")
def _check_large_batch(train: train_pb2.TrainConfig, at: str, _: Tpu) -> Iterator[Problem]:
    kind = train.optimizer.WhichOneof("optimizer")
    rates: Any = getattr(train.optimizer, kind).learning_rate if kind else None
    schedule = rates.WhichOneof("learning_rate") if kind else None
    if train.batch_size < LARGE_BATCH or schedule is None:
        return
    path, rate = f"{at}.optimizer.{kind}.learning_rate", getattr(rates, schedule)
    edits, remedy = _warm_up_edits(path, schedule, rate, max(train.num_steps, 1))
    if edits:
        yield Problem(
            "warning",
            f"{path}.{schedule}",
            f"has no warm-up, without which a batch of {train.batch_size} easily diverges",
            remedy,
            edits,
        )


def _warm_up_edits(path: str, schedule: str, rate: Any, steps: int) -> Tuple[Tuple[str, ...], str]:
    """Assignments that add a warm-up, and what to mind; none if the schedule has one."""
    here = f"{path}.{schedule}"
    base = getattr(rate, "learning_rate", 0.0) or getattr(rate, "initial_learning_rate", 0.0)
    if schedule == "manual_step_learning_rate" and rate.schedule:
        return () if rate.warmup else (f"{here}.warmup=true",), (
            "the rate then rises from initial_learning_rate to the first of the schedule: put an "
            "entry with the full rate first"
        )
    if schedule == "cosine_decay_learning_rate":
        name, has_one = "warmup", rate.warmup_steps
        base, steps = rate.learning_rate_base, rate.total_steps
    elif schedule == "exponential_decay_learning_rate":
        name, has_one = "burnin", rate.burnin_steps and rate.burnin_learning_rate
    else:
        return (
            f"{path}={{ cosine_decay_learning_rate {{ learning_rate_base: {base:g} "
            f"total_steps: {steps} warmup_learning_rate: {base / 3:g} "
            f"warmup_steps: {max(1, steps // 20)} }} }}",
        ), "choose the base rate for the batch size"
    edits = (
        f"{here}.{name}_steps={max(1, steps // 20)}",
        f"{here}.{name}_learning_rate={base / 3:g}",
    )
    return () if has_one else edits, "a twentieth of the steps is usual"

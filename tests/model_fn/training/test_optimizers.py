from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.protos import optimizer_pb2
from model_fn.training import optimizers, schedules
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("learning_rates")


AVERAGE = "w/ExponentialMovingAverage"

# Fields of a message by the name of a case, where they are not the same.
EXPONENTIAL = {
    "learning_rate_base": "initial_learning_rate",
    "learning_rate_decay_steps": "decay_steps",
    "learning_rate_decay_factor": "decay_factor",
}


def _proto(name: str, case: Dict[str, Any]) -> optimizer_pb2.LearningRate:
    config = optimizer_pb2.LearningRate()
    if name.startswith("exp_burnin"):
        message = config.exponential_decay_learning_rate
        for key, value in case.items():
            setattr(message, EXPONENTIAL.get(key, key), value)
    elif name.startswith("cosine"):
        for key, value in {"warmup_learning_rate": 0.0, "warmup_steps": 0, **case}.items():
            setattr(config.cosine_decay_learning_rate, key, value)
    else:
        manual = config.manual_step_learning_rate
        manual.initial_learning_rate = case["rates"][0]
        manual.warmup = case.get("warmup", False)
        for step, rate in zip(case["boundaries"], case["rates"][1:]):
            manual.schedule.add(step=step, learning_rate=rate)
    return config


# The linear warm-up of exponential decay has no field in the configuration.
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "exp_warmup"])
def test_schedules_agree_with_the_object_detection_api(name):
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.placeholder(tf.int64, [])
        rate = schedules.make_learning_rate(_proto(name, SETTINGS[name]), step)
        assert rate.dtype == tf.float32
        assert len(tf1.get_default_graph().get_operations()) < 50
        rates = [session.run(rate, {step: value}) for value in ARRAYS["steps"]]
    np.testing.assert_allclose(rates, ARRAYS[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("rms_prop_optimizer { RATE }", ["w/RMSProp", "w/RMSProp_1", AVERAGE]),
        ("momentum_optimizer { RATE }", ["w/Momentum", AVERAGE]),
        (
            "adam_optimizer { RATE } use_moving_average: false",
            ["beta1_power", "beta2_power", "w/Adam", "w/Adam_1"],
        ),
    ],
)
def test_slots_take_tf1_names(text, slots):
    """There are averages by default, as in the Object Detection API."""
    text = text.replace("RATE", "learning_rate { constant_learning_rate {} }")
    config = text_format.Parse(text, optimizer_pb2.Optimizer())
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
        optimizer, _ = optimizers.make_optimizer(config, step)
        optimizer.apply_gradients(optimizer.compute_gradients(weight * 2.0), step)
        names = {variable.op.name for variable in tf1.global_variables()}
    assert names == {"global_step", "w", *slots}


CONSTANT = "learning_rate { constant_learning_rate { learning_rate: 0.5 } }"


def _after(text: str, gradients: List[float], start: float = 3.0) -> float:
    """A variable after one step with each gradient."""
    config = text_format.Parse(text, optimizer_pb2.Optimizer())
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("w", initializer=start)
        gradient = tf1.placeholder(tf.float32, [])
        optimizer, _ = optimizers.make_optimizer(config, step)
        train = optimizer.apply_gradients([(gradient, weight)], step)
        session.run(tf1.global_variables_initializer())
        for value in gradients:
            session.run(train, {gradient: value})
        return float(session.run(weight))


# The mean of squares starts at 1: 0.75 * 1 + 0.25 * 2^2, then 0.75 * 1.75 + 0.25 * 4^2.
RMS = "decay: 0.75 epsilon: 2"
RMS_STEPS = 0.5 * 2 / (1.75 + 2) ** 0.5, 0.5 * 4 / (5.3125 + 2) ** 0.5


@pytest.mark.parametrize(
    ("kind", "options", "gradients", "change"),
    [
        ("rms_prop", f"{RMS} momentum_optimizer_value: 0.25", [2, 4],
         sum(RMS_STEPS) + RMS_STEPS[0] / 4),
        ("momentum", "momentum_optimizer_value: 0.25", [2, 4], 0.5 * (2 + (0.25 * 2 + 4))),
        # The first step is the rate times g / (|g| + epsilon / sqrt(1 - 0.999)).
        ("adam", "epsilon: 0.125", [4], 0.5 * 4 / (4 + 0.125 / 0.001**0.5)),
    ],
)  # fmt: skip
def test_steps_by_hand(kind, options, gradients, change):
    text = f"{kind}_optimizer {{ {CONSTANT} {options} }}"
    assert _after(text, gradients) == pytest.approx(3 - change)


def test_moving_averages_follow_the_step_and_frozen_variables_have_one_too():
    config = text_format.Parse(
        f"momentum_optimizer {{ {CONSTANT} momentum_optimizer_value: 0 }}"
        " moving_average_decay: 0.75",
        optimizer_pb2.Optimizer(),
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("w", initializer=8.0)
        tf1.get_variable("frozen", initializer=5.0)
        tf1.get_variable("statistic", initializer=0.0, trainable=False)
        optimizer, _ = optimizers.make_optimizer(config, step)
        train = optimizer.apply_gradients([(tf.constant(8.0), weight)], step)
        averages = {v.op.name: v for v in tf1.global_variables() if "Exponential" in v.op.name}
        session.run(tf1.global_variables_initializer())
        session.run(train)
        # 8 - 0.5 * 8 = 4, then 0.75 * 8 + 0.25 * 4 = 7.
        assert session.run([weight, step]) == [4.0, 1]
        expected = {AVERAGE: 7.0, "frozen/ExponentialMovingAverage": 5.0}
        assert session.run(averages) == expected

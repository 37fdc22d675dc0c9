"""The advice on bfloat16."""

from __future__ import annotations

from typing import Any, List

import pytest

from estimator_det.compat import tf
from estimator_det.programs import step_speed
from estimator_det.protos import pipeline_pb2


@pytest.fixture(autouse=True)
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_speed, "has_bfloat16", lambda: True)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """The types that were measured; bfloat16 takes 60% of the time."""
    types: List[Any] = []

    def seconds(dtype: Any) -> float:
        types.append(dtype)
        return 0.3 if dtype == tf.bfloat16 else 0.5

    monkeypatch.setattr(step_speed, "_convolution_secs", seconds)
    return types


def advice() -> str:
    (line,) = step_speed.advice(pipeline_pb2.TrainEvalPipelineConfig())
    return line


def test_gain(measured):
    assert "takes 40% less time in bfloat16" in advice()
    assert measured == [tf.bfloat16, tf.float32]


def test_without_gain(monkeypatch):
    monkeypatch.setattr(
        step_speed, "_convolution_secs", lambda dtype: 2.0 if dtype == tf.bfloat16 else 1.0
    )
    assert "is not faster in bfloat16" in advice()


def test_no_advice_without_hardware_or_with_quantization(measured, monkeypatch):
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.graph_rewriter.quantization.delay = 1
    assert step_speed.advice(config) == []
    config.ClearField("graph_rewriter")
    monkeypatch.setattr(step_speed, "has_bfloat16", lambda: False)
    assert step_speed.advice(config) == []
    assert not measured


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_step_of_the_convolution_takes_time(dtype):
    # More than an optimizer of graphs leaves of a step whose result nobody uses.
    assert 1e-3 < step_speed._convolution_secs(dtype) < 60

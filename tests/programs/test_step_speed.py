"""The advice on bfloat16, and its cache."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.programs import step_speed
from estimator_det.protos import pipeline_pb2


def test_memory_that_was_freed_before_a_step_does_not_count():
    block = np.ones(2**26, np.float32)  # 256 MiB
    before = step_speed.peak_memory()
    del block
    step_speed.reset_peak_memory()
    assert step_speed.peak_memory() < before - 2**27


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.delenv("ESTIMATOR_DET_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(step_speed, "has_bfloat16", lambda: True)
    return tmp_path / "estimator-det" / step_speed.CACHE_FILE


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


def test_gain_is_measured_once(cache, measured):
    assert "takes 40% less time in bfloat16" in advice() == advice()
    assert measured == [tf.bfloat16, tf.float32]
    ((key, share),) = json.loads(cache.read_text()).items()
    assert key.endswith(f", TensorFlow {tf.__version__}") and share == 0.6


def test_another_tensorflow_is_measured_and_the_first_one_kept(cache, measured, monkeypatch):
    advice()
    monkeypatch.setattr(tf, "__version__", "9.0")
    advice()
    assert len(measured) == 4 and len(json.loads(cache.read_text())) == 2


@pytest.mark.parametrize(
    "content",
    ["", "[1]", "\xff", '{"a": "b", "c": 1.5} x']
    + [f'{{"KEY": {share}}}' for share in ('"fast"', "null", "-1.0", "[0.5]")],
)
def test_damaged_cache_is_measured_and_written_again(cache, measured, caplog, content):
    advice()
    (key,) = json.loads(cache.read_text())
    cache.write_text(content.replace("KEY", key), encoding="latin-1")
    assert "40% less" in advice() == advice()
    assert len(measured) == 4 and not caplog.messages


def test_cache_that_cannot_be_written_is_said_once(cache, measured, caplog):
    cache.parent.write_text("not a folder")
    assert "40% less" in advice()
    (message,) = caplog.messages
    assert f"{cache} cannot be written" in message and "ESTIMATOR_DET_CACHE" in message
    advice()
    assert len(measured) == 4


def test_without_gain(cache, measured, monkeypatch):
    monkeypatch.setattr(
        step_speed, "_convolution_secs", lambda dtype: 2.0 if dtype == tf.bfloat16 else 1.0
    )
    assert "is not faster in bfloat16" in advice()


def test_no_advice_without_hardware_or_with_quantization(cache, measured, monkeypatch):
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.graph_rewriter.quantization.delay = 1
    assert step_speed.advice(config) == []
    config.ClearField("graph_rewriter")
    monkeypatch.setattr(step_speed, "has_bfloat16", lambda: False)
    assert step_speed.advice(config) == []
    assert not measured and not os.path.exists(cache)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_step_of_the_convolution_takes_time(dtype):
    # More than an optimizer of graphs leaves of a step whose result nobody uses.
    assert 1e-3 < step_speed._convolution_secs(dtype) < 60

"""Runs by the TF2 loop on one device: like those of an Estimator, and in exchange with them."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from inputs import pipeline as input_pipeline
from inputs import schema
from model_fn.checkpoints.errors import RunError
from model_fn.runs import data_cursor, history, runner
from model_fn.runs.loop_options import InLoop
from model_fn.runs.options import Evaluating, Saving
from model_fn.runs.progress import PROGRESS_FILE, NotFiniteLossError
from model_fn.runs.signals import Stopped
from tests.model_fn import fake
from tests.model_fn.runs.test_runner import _SignalAt

AVERAGED = "train_config { optimizer { use_moving_average: true moving_average_decay: 0.5 } }"
ADAM = """train_config { optimizer { adam_optimizer { learning_rate {
  exponential_decay_learning_rate { initial_learning_rate: 0.01 decay_steps: 2 } } } } }"""
RMS = """train_config { optimizer { rms_prop_optimizer { learning_rate {
  constant_learning_rate { learning_rate: 0.01 } } } } }"""
LOOP = InLoop()


@pytest.fixture(autouse=True)
def _fake_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)
    monkeypatch.setattr(
        input_pipeline,
        "create_train_input_fn",
        lambda *_, cursor=None, **__: fake.make_train_input_fn(cursor=cursor),
    )
    monkeypatch.setattr(input_pipeline, "create_eval_input_fn", lambda *_, **__: fake.eval_input_fn)


def _train(
    folder: pathlib.Path, config: Any, num_steps: int, in_loop: Any = LOOP, **how: Any
) -> Any:
    runner.train(
        config,
        str(folder),
        num_train_steps=num_steps,
        seed=3,
        progress=False,
        in_loop=in_loop,
        **how,
    )
    return _stored(tf1.train.latest_checkpoint(str(folder)))


def _stored(prefix: str) -> Dict[str, np.ndarray]:
    reader = tf1.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _assert_equal(found: Dict[str, np.ndarray], expected: Dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def _reports(folder: pathlib.Path) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in (folder / PROGRESS_FILE).read_text().splitlines()]


@pytest.mark.parametrize("optimizer", [AVERAGED, ADAM + AVERAGED, RMS])
def test_the_loop_and_an_estimator_take_the_same_steps(
    tmp_path: pathlib.Path, optimizer: str
) -> None:
    config = fake.pipeline_config("train_config { gradient_clipping_by_norm: 0.1 }" + optimizer)
    expected = _train(tmp_path / "estimator", config, 4, in_loop=None)
    _assert_equal(_train(tmp_path / "loop", config, 4), expected)
    # Half by one and half by the other: slots, averages and the step are resumed.
    for first, second in ((LOOP, None), (None, LOOP)):
        folder = tmp_path / f"{first is None}"
        _train(folder, config, 2, in_loop=first)
        _assert_equal(_train(folder, config, 4, in_loop=second), expected)

"""Runs by the TF2 loop on one device: like those of an Estimator, and in exchange with them."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List

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


def test_several_steps_in_a_call(tmp_path: pathlib.Path) -> None:
    config = fake.pipeline_config(AVERAGED)
    expected = _train(tmp_path / "one", config, 7, progress_steps=3)
    several = InLoop(steps_per_call=3)
    _assert_equal(_train(tmp_path / "three", config, 7, several, progress_steps=3), expected)
    folder = tmp_path / "three"
    assert [entry["step"] for entry in _reports(folder)] == [3, 6, 7]
    # The position in the data is that after all steps of a call.
    position = data_cursor.read_cursor_state(str(folder), 7)
    assert position is not None and position.count == 14


def test_tensorboard_has_the_tags_of_an_estimator(tmp_path: pathlib.Path) -> None:
    config = fake.pipeline_config("train_config { summarize_gradients: true }")
    tags = []
    for name, in_loop in (("estimator", None), ("loop", LOOP)):
        _train(tmp_path / name, config, 2, in_loop)
        found = {
            value.tag
            for path in (tmp_path / name).glob("events.*")
            for event in tf1.train.summary_iterator(str(path))
            for value in event.summary.value
        }
        tags.append(found)
    assert "Loss/total_loss" in tags[0] and tags[0] == tags[1]


def _poisoned(number: int) -> Any:
    """Input whose batch of that number has an image that is not finite."""

    def input_fn(params: Any = None, input_context: Any = None) -> tf.data.Dataset:
        def poison(batch: tf.Tensor, inputs: Any) -> Any:
            features, labels = inputs
            factor = tf.where(tf.equal(batch, number), np.nan, 1.0)
            image = features[schema.IMAGE] * tf.cast(factor, tf.float32)
            return {**features, schema.IMAGE: image}, labels

        return fake.make_train_input_fn()().enumerate().map(poison)

    return input_fn


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_a_step_that_is_not_finite_changes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, steps_per_call: int
) -> None:
    config, in_loop = fake.pipeline_config(), InLoop(steps_per_call=steps_per_call)
    expected = _train(tmp_path / "good", config, 2)
    monkeypatch.setattr(
        input_pipeline, "create_train_input_fn", lambda *_, **__: _poisoned(number=2)
    )
    monkeypatch.setattr(runner._Run, "_make_cursor", lambda *_: None)
    with pytest.raises(NotFiniteLossError, match="step 3: not finite: Loss/localization_loss"):
        _train(tmp_path / "bad", config, 4, in_loop)
    folder = tmp_path / "bad" / "bad_step-3"
    _assert_equal(_stored(str(folder / "model.ckpt")), expected)
    with np.load(folder / "batch.npz") as batch:
        assert np.isnan(batch["features/image"]).all()
    assert _reports(tmp_path / "bad")[-1]["step"] == 3


def test_evaluations_and_signals(tmp_path: pathlib.Path) -> None:
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    evaluating = Evaluating(every_steps=2, best_metric="loss", export_final=False)
    with pytest.raises(Stopped, match="at step 3, which is saved"):
        runner.train_and_evaluate(
            config,
            model_dir,
            num_train_steps=9,
            progress=False,
            saving=Saving(steps=100),
            evaluating=Evaluating(every_steps=2, export_final=False),
            hooks=[_SignalAt(step=3)],
            in_loop=LOOP,
        )
    assert [each.step for each in history.read(model_dir, "0")] == [2]
    steps = [int(path.stem.split("-")[1]) for path in tmp_path.glob("model.ckpt-*.index")]
    assert sorted(steps) == [0, 2, 3]
    metrics = runner.train_and_evaluate(
        config, model_dir, num_train_steps=4, progress=False, evaluating=evaluating, in_loop=None
    )
    assert metrics["global_step"] == 4


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_stays_near_float32(tmp_path: pathlib.Path, precision: str) -> None:
    config = fake.pipeline_config()
    expected = _train(tmp_path / "wide", config, 3)
    found = _train(tmp_path / precision, config, 3, InLoop(precision=precision))
    scale = {"loss_scale", "loss_scale_steps"} if precision == "mixed_float16" else set()
    assert set(found) == {*expected, *scale}
    differences = []
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=0.05, atol=0.02, err_msg=name)
        differences.append(float(np.abs(found[name] - value).max()))
    assert max(differences) > 0.0  # it did compute in the narrow type
    _train(tmp_path / precision, config, 4, in_loop=None)


def test_xla_and_parts_take_the_same_steps(tmp_path: pathlib.Path) -> None:
    config = fake.pipeline_config()
    config.model.ssd.freeze_batchnorm = True
    expected = _train(tmp_path / "plain", config, 3)
    _assert_equal(_train(tmp_path / "xla", config, 3, InLoop(jit_compile=True)), expected)
    _assert_equal(_train(tmp_path / "parts", config, 3, InLoop(accumulate_steps=2)), expected)


def test_what_the_loop_refuses(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = fake.pipeline_config()
    for options, message in (
        ({"strategy": "parameter_server"}, "leave --strategy out"),
        ({"strategy": "tpu"}, "--use_tpu"),
        ({"strategy": "quick"}, "one of none, mirrored"),
        ({"precision": "float64"}, "one of float32"),
        ({"accumulate_steps": 0}, "accumulate_steps is 0; give 1 or more"),
        ({"num_replicas": 2}, "give strategy 'mirrored'"),
    ):
        with pytest.raises(ConfigError, match=message):
            InLoop(**options)
    with pytest.raises(
        ConfigError, match="must be divisible by 1 replicas x 4"
    ):
        _train(tmp_path, config, 1, InLoop(accumulate_steps=4))
    with pytest.raises(RunError, match="logical CPUs, and num_replicas is 64"):
        _train(tmp_path, config, 1, InLoop("mirrored", num_replicas=64))
    with pytest.raises(ConfigError, match="TF_CONFIG lists, and it lists no others"):
        _train(tmp_path, config, 1, InLoop("multi_worker_mirrored"))
    cluster = {"chief": ["h:1"], "worker": ["h:2"]}
    task = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    with pytest.raises(ConfigError, match="use strategy 'multi_worker_mirrored'"):
        _train(tmp_path, config, 1)


def test_checkpoints_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    _train(tmp_path, fake.pipeline_config(), 1)
    with pytest.raises(RunError, match="use_moving_average=false"):
        _train(tmp_path, fake.pipeline_config(AVERAGED), 2)
    with pytest.raises(RunError, match="All/weights/Adam is missing"):
        _train(tmp_path, fake.pipeline_config(ADAM), 2)

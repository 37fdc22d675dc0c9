"""Runs of the TF2 loop on one device: they equal runs of an Estimator, and continue them."""

from __future__ import annotations

import itertools
import json
import pathlib
import shutil
import time
import types
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.console.signals import Stopped
from estimator_det.errors import ConfigError, NotFiniteLossError, RunError, UsageError
from inputs import pipeline as input_pipeline
from inputs import schema
from inputs.records.cursor import first_stream_index
from model_fn.checkpoints import positions
from model_fn.debugging.replay import BATCH_FILE, CHECKPOINT
from model_fn.evaluation import history
from model_fn.events import PROGRESS_FILE
from model_fn.runs import progress, training_end, training_run
from model_fn.runs.backends.loop import LoopBackend
from model_fn.runs.context import RunContext
from model_fn.runs.options import CheckpointOptions, EvaluationOptions, LoopOptions, TrainOptions
from model_fn.training import step
from tests.arrays import assert_same
from tests.checkpoints import stored
from tests.model_fn import fake

AVERAGED = "train_config { optimizer { use_moving_average: true moving_average_decay: 0.5 } }"
ADAM = """train_config { optimizer { adam_optimizer { learning_rate {
  exponential_decay_learning_rate { initial_learning_rate: 0.01 decay_steps: 2 } } } } }"""
MOMENTUM = """train_config { optimizer { momentum_optimizer { momentum_optimizer_value: 0.9
  learning_rate { constant_learning_rate { learning_rate: 0.1 } } } } }"""
RMS = """train_config { optimizer { rms_prop_optimizer { learning_rate {
  constant_learning_rate { learning_rate: 0.01 } } } } }"""
LOOP = LoopOptions()


@pytest.fixture(autouse=True)
def _fake_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch)


def _install(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)
    monkeypatch.setattr(input_pipeline, "build_train_input_fn", fake.make_train_input_fn)
    monkeypatch.setattr(input_pipeline, "build_eval_input_fn", lambda *_, **__: fake.eval_input_fn)


def _train(folder: pathlib.Path, config: Any, num_steps: int, loop: Any = LOOP, **how: Any) -> Any:
    fake.train(folder, num_steps, config, seed=3, loop=loop, **how)
    return stored(tf1.train.latest_checkpoint(str(folder)))


def _reports(folder: pathlib.Path) -> List[Dict[str, Any]]:
    lines = map(json.loads, (folder / PROGRESS_FILE).read_text().splitlines())
    return [line for line in lines if training_end.ENDED not in line]


@pytest.mark.parametrize(
    "optimizer",
    [
        ADAM + AVERAGED,
        pytest.param(MOMENTUM + AVERAGED, marks=pytest.mark.exhaustive),
        pytest.param(RMS, marks=pytest.mark.exhaustive),
    ],
)
def test_the_loop_and_an_estimator_take_the_same_steps(tmp_path, optimizer):
    clipped = "train_config { gradient_clipping_by_norm: 0.1 summarize_gradients: true }"
    config = fake.pipeline_config(clipped + optimizer)
    folder = tmp_path / "both"
    _train(tmp_path / "estimator", config, 1, loop=None)
    shutil.copytree(tmp_path / "estimator", folder, ignore=shutil.ignore_patterns("events.*"))
    tags = set(fake.figures(tmp_path / "estimator"))
    expected = _train(tmp_path / "estimator", config, 7, loop=None)
    # By turns: slots, averages and the step are the same, and so are the tags of TensorBoard.
    _train(folder, config, 2)
    assert "Loss/total_loss" in tags and tags == set(fake.figures(folder))
    _train(folder, config, 3, loop=None)
    found = _train(folder, config, 7, LoopOptions(steps_per_call=3), progress_steps=3)
    assert_same(found, expected)
    # Calls end at multiples of 3 steps; the position in the data counts all their steps.
    assert [entry["step"] for entry in _reports(folder)] == [1, 2, 3, 6, 7]
    position = positions.read(str(folder / positions.POSITION_FILE), 7)
    assert position is not None and position.count == 14


def test_data_are_shuffled_with_seed_0(tmp_path):
    context = RunContext(fake.pipeline_config(), str(tmp_path), TrainOptions(seed=0, loop=LOOP))
    with LoopBackend(context).running():
        seeds = tf.data.Dataset.range(3)
        orders = seeds.flat_map(lambda seed: tf.data.Dataset.range(9).shuffle(9, seed))
        numbers = np.reshape(list(orders.as_numpy_iterator()), [3, 9])
    assert {tuple(sorted(order)) for order in numbers} == {tuple(range(9))}


def test_the_loop_starts_at_random_values(tmp_path):
    _train(tmp_path, fake.pipeline_config(AVERAGED), 1)
    start = stored(str(tmp_path / "model.ckpt-0"))
    weights = start["BoxPredictor/All/weights"]
    assert len(np.unique(weights)) == weights.size
    np.testing.assert_array_equal(
        start["BoxPredictor/All/weights/ExponentialMovingAverage"], weights
    )
    assert (start["FeatureExtractor/BatchNorm/moving_variance"] == 1).all()


def test_the_loop_fine_tunes_what_an_estimator_trained(tmp_path):
    source = _train(tmp_path / "source", fake.pipeline_config(), 1, loop=None)
    text = (
        f"train_config {{ fine_tune_checkpoint: '{tmp_path / 'source'}'"
        " fine_tune_checkpoint_type: 'detection' }"
    )
    _train(tmp_path / "tuned", fake.pipeline_config(text + AVERAGED), 1)
    start = stored(str(tmp_path / "tuned" / "model.ckpt-0"))
    for name in ("BoxPredictor/All/weights", "FeatureExtractor/BatchNorm/moving_mean"):
        np.testing.assert_array_equal(start[name], source[name])
    averages = start["BoxPredictor/All/weights/ExponentialMovingAverage"]
    np.testing.assert_array_equal(averages, source["BoxPredictor/All/weights"])
    assert start["global_step"] == 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, np.ndarray]:
    """What three steps with frozen batch norm end at."""
    with pytest.MonkeyPatch.context() as patch:
        _install(patch)
        return _train(tmp_path_factory.mktemp("plain"), _frozen(), 3)


def _frozen() -> Any:
    config = fake.pipeline_config()
    config.model.ssd.freeze_batchnorm = True
    return config


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


def test_a_step_that_is_not_finite_changes_nothing(tmp_path, plain, monkeypatch):
    monkeypatch.setattr(
        input_pipeline, "build_train_input_fn", lambda *_, **__: _poisoned(number=3)
    )
    monkeypatch.setattr(training_run.DataCursorHook, "after_step", lambda *_: None)
    with pytest.raises(NotFiniteLossError, match="step 4: not finite: Loss/localization_loss"):
        _train(tmp_path, _frozen(), 6, LoopOptions(steps_per_call=6))
    folder = tmp_path / "faults" / "bad_step-4"
    assert_same(stored(str(folder / CHECKPOINT)), plain)
    with np.load(folder / BATCH_FILE) as batch:
        assert np.isnan(batch["features/image"]).all()
    assert _reports(tmp_path)[-1]["step"] == 4


def test_data_that_end_within_a_call(tmp_path, monkeypatch, caplog):
    def make_input_fn(*_: Any, cursor: Any = None, **__: Any) -> Any:
        make = fake.make_train_input_fn(cursor=cursor)
        return lambda *_, **__: make().take(6)

    monkeypatch.setattr(input_pipeline, "build_train_input_fn", make_input_fn)
    config = fake.pipeline_config("train_input_reader { num_epochs: 3 }")
    found = _train(tmp_path, config, 9, LoopOptions(steps_per_call=4))
    assert found["global_step"] == 6 and (tmp_path / "model.ckpt-6.index").exists()
    position = positions.read(str(tmp_path / positions.POSITION_FILE), 6)
    assert position is not None and position.count == 12
    assert "steps_per_call is 1 instead of 4" in caplog.text


def test_evaluations_and_signals(tmp_path):
    with pytest.raises(Stopped, match="at step 3, which is saved"):
        evaluation = EvaluationOptions(every_steps=2, export_final=False)
        options = {"checkpoints": CheckpointOptions(steps=100), "hooks": [fake.SignalAt(step=3)]}
        fake.train_and_evaluate(tmp_path, 9, evaluation=evaluation, loop=LOOP, **options)
    assert [each.step for each in history.read(str(tmp_path), "0")] == [2]
    steps = [int(path.stem.split("-")[1]) for path in tmp_path.glob("model.ckpt-*.index")]
    assert sorted(steps) == [0, 2, 3]


class _ConfirmedSignal(fake.SignalAt):
    """Sends SIGTERM before a call and waits until the process confirms it."""

    def __init__(self, call: int, capfd: pytest.CaptureFixture[str]) -> None:
        super().__init__(call)
        self._capfd = capfd

    def before_step(self, step: int) -> None:
        super().before_step(step)
        end = time.monotonic() + 60
        while self._steps_left == 0 and "finishing this step" not in self._capfd.readouterr().err:
            assert time.monotonic() < end, "the signal is not confirmed"
            time.sleep(0.01)


def test_a_signal_ends_a_call_of_several_steps(tmp_path, capfd):
    hook = _ConfirmedSignal(2, capfd)
    # The second call would take steps 5 to 8.
    with pytest.raises(Stopped, match="at step 5, which is saved"):
        _train(tmp_path, fake.pipeline_config(), 9, LoopOptions(steps_per_call=4), hooks=[hook])


@pytest.mark.parametrize(
    "loop",
    [
        LoopOptions(accumulate_steps=2),
        pytest.param(LoopOptions(jit_compile=True), marks=pytest.mark.exhaustive),
        pytest.param(LoopOptions("mirrored"), marks=pytest.mark.exhaustive),
    ],
)
def test_other_ways_to_the_same_steps(tmp_path, plain, loop):
    assert_same(_train(tmp_path, _frozen(), 3, loop), plain)
    # Counts are means over parts: of two images with a box each.
    counts = fake.figures(tmp_path)["Counted/boxes"]
    assert {count for _, count in counts} == {2.0 / loop.accumulate_steps}


def test_checkpoints_end_calls_whose_steps_and_waits_count(tmp_path, monkeypatch):
    # A step waits for 10 s, and a call takes 80 s.
    monkeypatch.setattr(step, "measure_input_wait", lambda batch: tf.constant(10.0, tf.float64))
    clock = itertools.count(0.0, 80.0)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    second = int(first_stream_index(1, tf.constant(0, tf.int64)))

    def make_input_fn(*_: Any, cursor: Any = None, **__: Any) -> Any:
        def of_two_streams(number: tf.Tensor, inputs: Any) -> Any:
            features, labels = inputs
            places = features[schema.STREAM_INDEX] + second * (number % 2)
            return {**features, schema.STREAM_INDEX: places}, labels

        make = fake.make_train_input_fn(cursor=cursor)
        return lambda *_, **__: make().enumerate().map(of_two_streams)

    monkeypatch.setattr(input_pipeline, "build_train_input_fn", make_input_fn)
    loop = LoopOptions(steps_per_call=4)
    saving = CheckpointOptions(steps=3)
    _train(tmp_path, fake.pipeline_config(), 7, loop, checkpoints=saving, progress_steps=1)
    steps = [int(path.stem.split("-")[1]) for path in tmp_path.glob("model.ckpt-*.index")]
    assert sorted(steps) == [0, 3, 6, 7]
    reports = [(each["step"], each.get("input_wait_share")) for each in _reports(tmp_path)]
    assert reports == [(3, None), (4, 1 / 8), (6, 2 / 8), (7, 1 / 8)]
    # Even batches come from the first stream, odd batches from the second.
    position = positions.read(str(tmp_path / positions.POSITION_FILE), 6)
    assert position is not None
    assert {stream: at.number for stream, at in position.streams.items()} == {0: 10, 1: 12}


@pytest.mark.parametrize(
    ("precision", "loop"),
    [
        ("mixed_float16", LOOP),
        pytest.param("mixed_bfloat16", LOOP, marks=pytest.mark.exhaustive),
        ("mixed_bfloat16", None),  # an Estimator
    ],
)
def test_mixed_precision_stays_near_float32(tmp_path, plain, precision, loop):
    found = _train(tmp_path, _frozen(), 3, loop, precision=precision)
    if loop is None:  # An Estimator starts from values of its own.
        plain = _train(tmp_path / "float32", _frozen(), 3, loop)
    scale = {"loss_scale", "loss_scale_steps"} if precision == "mixed_float16" else set()
    assert set(found) == {*plain, *scale}
    differences = []
    for name, value in plain.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=0.05, atol=0.02, err_msg=name)
        differences.append(float(np.abs(found[name] - value).max()))
    assert max(differences) > 0.0  # it did compute in the narrow type


def test_what_the_loop_refuses(tmp_path, monkeypatch):
    config = fake.pipeline_config()
    for options, message in (
        ({"strategy": "parameter_server", "jit_compile": True}, "functions of XLA cannot read"),
        ({"strategy": "parameter_server", "num_replicas": 2}, "CUDA_VISIBLE_DEVICES allows"),
        ({"strategy": "quick"}, "one of none, mirrored"),
        ({"accumulate_steps": 0}, "accumulate_steps is 0; give 1 or more"),
        ({"num_replicas": 2}, "give strategy 'mirrored'"),
        ({"strategy": "multi_worker_mirrored", "num_replicas": 2}, "CUDA_VISIBLE_DEVICES allows"),
    ):
        with pytest.raises(UsageError, match=message):
            LoopOptions(**options)
    for kind, message in (("float64", "one of float32"), ("mixed_float16", "scale of the loss")):
        with pytest.raises(UsageError, match=message):
            TrainOptions(precision=kind)
    with pytest.raises(ConfigError, match="must be divisible by 1 replicas x 4"):
        _train(tmp_path, config, 1, LoopOptions(accumulate_steps=4))
    synchronized = fake.pipeline_config(
        "model { ssd { feature_extractor { conv_hyperparams { sync_batch_norm {} } } } }"
    )
    with pytest.raises(UsageError, match="sync_batch_norm averages over"):
        _train(tmp_path, synchronized, 1, LoopOptions(accumulate_steps=2))
    with pytest.raises(RunError, match="logical CPUs, and num_replicas is 64"):
        _train(tmp_path, config, 1, LoopOptions("mirrored", num_replicas=64))
    with pytest.raises(UsageError, match="steps_per_call is 2, and TensorFlow never ends"):
        _train(tmp_path, config, 1, LoopOptions("mirrored", num_replicas=2, steps_per_call=2))
    workers = LoopOptions("multi_worker_mirrored")
    with pytest.raises(UsageError, match="TF_CONFIG lists, and it lists no others"):
        _train(tmp_path, config, 1, workers)
    cluster = {"chief": ["h:1"], "worker": ["h:2"]}
    fake.set_cluster(monkeypatch, cluster, "chief")
    with pytest.raises(UsageError, match="use strategy 'multi_worker_mirrored'"):
        _train(tmp_path, config, 1)
    fake.set_cluster(monkeypatch, {**cluster, "ps": ["h:3"]}, "chief")
    with pytest.raises(UsageError, match=r"cluster\.ps has 1 tasks, and strategy"):
        _train(tmp_path, config, 1, workers)

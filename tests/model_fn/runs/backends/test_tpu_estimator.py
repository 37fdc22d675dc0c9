"""Training for TPU, rehearsed on CPU, and the graph of a real one, built without a TPU."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import json
import pathlib
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from estimator_det.compat import estimator, tf, tf1
from estimator_det.errors import ConfigError, NotFiniteLossError, NoTpuError, UsageError
from inputs import pipeline as input_pipeline
from inputs import schema
from inputs import tpu as tpu_input
from model_fn import model_fn
from model_fn.evaluation.readers import evaluation_readers
from model_fn.evaluation.report import scalars
from model_fn.runs import evaluator, progress
from model_fn.runs.backends import tpu_estimator as tpu
from model_fn.runs.options import TpuOptions
from model_fn.training import optimizers, tpu_step
from tests.model_fn import fake

FIT = """
model { ssd {
  image_resizer { fixed_shape_resizer { height: 8 width: 8 } } inplace_batchnorm_update: true } }
train_config { unpad_groundtruth_tensors: false }
"""
AVERAGED = "train_config { optimizer { use_moving_average: true moving_average_decay: 0.5 } }"
REHEARSAL = TpuOptions(num_shards=2, iterations_per_loop=2, rehearses=True)
WEIGHTS = "BoxPredictor/All/weights"


@pytest.fixture(autouse=True)
def _fake_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)


def _config(text: str = "") -> Any:
    return fake.pipeline_config(FIT + text)


def _input_fn(params: Dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    del input_context
    features, labels = fake.arrays(params["batch_size"])
    return tf.data.Dataset.from_tensors((features, labels)).repeat()


def _train(model_dir: pathlib.Path, config: Any, steps: int, **reporting: Any) -> Any:
    """Trains, and returns the TPUEstimator; `reporting` are options of a `TrainingReport`."""
    context = fake.run_context(model_dir, config, num_train_steps=steps, seed=1, tpu=REHEARSAL)
    backend = tpu.TpuBackend(context)

    def make_hooks(training: Any) -> List[Any]:
        saver = fake.SaveAtTheEnd(training, model_dir)
        if not reporting:
            return [saver]
        report = progress.TrainingReport(
            2, every_steps=2, on_bad_step=progress.describe_bad_loop, **reporting
        )
        return [report, saver]

    with backend.running():
        backend.train(tpu_input.make_tpu_input_fn(_input_fn), make_hooks)
    return _estimator(model_dir, config)


def _estimator(model_dir: pathlib.Path, config: Any, on_tpu: TpuOptions = REHEARSAL) -> Any:
    made = model_fn.create_model_fn(config, use_tpu=True)
    return tpu.make_estimator(made, config, str(model_dir), tpu=on_tpu)


def _scalars(model_dir: pathlib.Path) -> Dict[str, List[Tuple[int, float]]]:
    """Of the event files that the host call writes, by tag."""
    return fake.figures(model_dir, f"*{tpu_step.FILE_SUFFIX}")


def test_rehearsal_writes_what_a_tpu_would(tmp_path, capsys):
    runner = _train(tmp_path, _config(), 6, silent=False)
    assert int(runner.get_variable_value("global_step")) == 6
    scalars = _scalars(tmp_path)
    terms = ("localization", "classification", "regularization", "total")
    assert set(scalars) == {*(f"Loss/{t}_loss" for t in terms), "learning_rate", "gradient_norm"}
    assert all([step for step, _ in values] == [2, 4, 6] for values in scalars.values())
    assert scalars["learning_rate"][0][1] == 0.5
    losses = [value for _, value in scalars["Loss/total_loss"]]
    assert losses == sorted(losses, reverse=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" | ")[0] for line in lines] == [f"step {n}/6" for n in (1, 2, 4, 6)]
    assert f"total {losses[-1]:.4g}" in lines[-1] and "gradient_norm" not in lines[-1]


def test_warm_start_reaches_variables_and_averages(tmp_path):
    source = _train(tmp_path / "source", _config(), 3)
    prefix = tf1.train.latest_checkpoint(str(tmp_path / "source"))
    text = (
        f"train_config {{ fine_tune_checkpoint: '{prefix}' fine_tune_checkpoint_type: 'detection'"
        " optimizer { momentum_optimizer { learning_rate { constant_learning_rate {"
        " learning_rate: 0.0 } } } } }"
    )
    runner = _train(tmp_path / "run", _config(text + AVERAGED), 1)
    assert int(runner.get_variable_value("global_step")) == 1
    expected = source.get_variable_value(WEIGHTS)
    np.testing.assert_array_equal(runner.get_variable_value(WEIGHTS), expected)
    averages = runner.get_variable_value(f"{WEIGHTS}/ExponentialMovingAverage")
    np.testing.assert_array_equal(averages, expected)


def test_evaluation_and_export_by_the_same_estimator(tmp_path, monkeypatch):
    config = _config("eval_config { batch_size: 2 num_examples: 5 }" + AVERAGED)
    _train(tmp_path, config, 2)
    monkeypatch.setattr(input_pipeline, "build_eval_input_fn", lambda *_: _input_fn)
    on_tpu = dataclasses.replace(REHEARSAL, evaluates=True)
    context = fake.run_context(tmp_path, config, tpu=on_tpu)
    run = evaluator.EvaluationRun(context, evaluation_readers(config))
    (evaluation,) = run.evaluate(tf1.train.latest_checkpoint(str(tmp_path)))
    metrics = evaluation.metrics
    counts = json.loads((tmp_path / "eval_0" / "details-2.json").read_text())["counts"]
    assert counts["images"] == 4  # whole batches
    plain = estimator.Estimator(
        model_fn.create_model_fn(config), str(tmp_path), params={"batch_size": 2}
    ).evaluate(_input_fn, steps=2)
    assert metrics.keys() == scalars(plain).keys()  # without pictures
    for name in ("Loss/total_loss", "learning_rate", "DetectionBoxes_Precision/mAP", "loss"):
        assert metrics[name] == pytest.approx(plain[name], rel=1e-6), name

    def receiver() -> Any:
        features = fake.arrays()[0]
        given = {key: tf1.placeholder(value.dtype, value.shape) for key, value in features.items()}
        return estimator.export.ServingInputReceiver(given, given)

    exported = _estimator(tmp_path, config).export_saved_model(str(tmp_path / "export"), receiver)
    loaded = tf.saved_model.load(tf.compat.as_str(exported))
    assert "detection_boxes" in loaded.signatures["serving_default"].structured_outputs
    with pytest.raises(ConfigError, match="num_examples: is 1"):
        tpu.evaluation_steps(_config("eval_config { batch_size: 2 num_examples: 1 }"))


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(optimizers, "make_learning_rate", lambda *_: tf.constant(1e38))
    with pytest.raises(NotFiniteLossError, match="not finite in the steps up to 2"):
        _train(tmp_path, _config(), 6, silent=True)


def test_reported_scalars_are_means_over_cores(tmp_path):
    make_spec = model_fn.create_model_fn(_config(), use_tpu=True)
    run_config = _estimator(tmp_path, _config()).config
    with tf.Graph().as_default(), tf1.Session() as session:
        batch = tf.nest.map_structure(tf.constant, fake.arrays())
        spec = make_spec(*batch, estimator.ModeKeys.TRAIN, {"use_tpu": False}, run_config)
        write, of_core = spec.host_call
        sent: Dict[str, Any] = {name: tf.constant([1.0, 4.0]) for name in of_core}
        written = write(**{**sent, tpu_step.STEP: tf.constant([2, 2], tf.int64)})
        spec.scaffold_fn()
        last = make_spec.built.step
        session.run([tf1.local_variables_initializer(), tf1.global_variables_initializer()])
        operations = session.graph.get_operations()
        session.run([each for each in operations if each.type == "CreateSummaryFileWriter"])
        session.run(written)
        values = last.scalars(session.run(last.variable().read_value()))
    assert set(values) == set(of_core) - {tpu_step.STEP}
    assert set(values.values()) == {2.5}
    assert _scalars(tmp_path) == {name: [(2, 2.5)] for name in values}


def _step_of_core(config: Any) -> Dict[str, np.ndarray]:
    """What a core's step subtracts from each trained variable; the learning rate is 0.5."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        batch = tf.nest.map_structure(tf.constant, fake.arrays())
        make_spec = model_fn.create_model_fn(config, use_tpu=True)
        spec = make_spec(*batch, estimator.ModeKeys.TRAIN, {"use_tpu": True})
        variables = {each.op.name: each for each in tf1.trainable_variables()}
        session.run(tf1.global_variables_initializer())
        before = session.run(variables)
        session.run(spec.train_op)
        after = session.run(variables)
    return {name: before[name] - after[name] for name in variables}


def test_the_gradient_of_all_cores_is_clipped(monkeypatch):
    # The gradient of another core has 0.05 for each weight.
    monkeypatch.setattr(tf1.tpu, "cross_replica_sum", lambda value: value + 0.05)
    whole = _step_of_core(_config())
    norm = float(np.sqrt(sum(np.sum(np.square(each / 0.5)) for each in whole.values())))
    assert norm > 0.2
    clipped = _step_of_core(_config("train_config { gradient_clipping_by_norm: 0.1 }"))
    for name, value in whole.items():
        np.testing.assert_allclose(clipped[name], value * 0.1 / norm, rtol=1e-4, atol=1e-7)


def test_batches_for_cores_are_static_and_hold_no_strings():
    specs = tpu_input.make_tpu_input_fn(_input_fn)({"batch_size": 4}).element_spec
    assert set(specs[0]) == {schema.IMAGE, schema.TRUE_IMAGE_SHAPE} <= set(tpu_input.FEATURES)
    for spec in tf.nest.flatten(specs):
        assert spec.dtype != tf.string and spec.shape.is_fully_defined() and spec.shape[0] == 4

    def open_shape(params: Dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
        return _input_fn(params, input_context).unbatch().batch(2)

    with pytest.raises(UsageError, match=r"image has shape \(None, 8, 8, 3\)"):
        tpu_input.make_tpu_input_fn(open_shape)({"batch_size": 4})


def test_each_host_reads_its_part():
    class Context:
        def current_input_fn_deployment(self) -> Tuple[str, int, int, int]:
            return "/job:worker", 1, 4, 8

    seen = []

    def input_fn(params: Dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
        seen.append(input_context)
        return _input_fn(params)

    tpu_input.make_tpu_input_fn(input_fn)({"batch_size": 4, "context": Context()})
    assert (seen[0].num_input_pipelines, seen[0].input_pipeline_id) == (4, 1)
    assert seen[0].get_per_replica_batch_size(4) == 4


def test_unfit_configurations_are_refused_with_the_edit(tmp_path):
    config = _config("model { ssd { inplace_batchnorm_update: false } }")
    with pytest.raises(ConfigError, match=r"--set model\.ssd\.inplace_batchnorm_update=true"):
        _estimator(tmp_path, config)
    with pytest.raises(ConfigError, match=r"--model_dir: .* is not in Cloud Storage"):
        _estimator(tmp_path, _config(), TpuOptions(name="mine", num_shards=2))
    with pytest.raises(ConfigError, match="do not divide by 8 cores"):
        _estimator(tmp_path, _config(), dataclasses.replace(REHEARSAL, num_shards=8))
    with pytest.raises(ValueError, match="needs the TPU's name"):
        TpuOptions()


def test_a_missing_tpu_is_told(tmp_path):
    on_tpu = TpuOptions(name="local", num_shards=2)
    runner = _estimator(tmp_path, _config(), on_tpu)
    refused = pytest.raises(NoTpuError, match="no cores that this machine can reach")
    with refused, tpu.explained(on_tpu):
        runner.train(tpu_input.make_tpu_input_fn(_input_fn), max_steps=1)
    diverged = pytest.raises(NotFiniteLossError, match=r"loop of 100 steps: Box/weights\. If")
    with diverged, tpu.explained(on_tpu):
        raise tf.errors.InvalidArgumentError(
            None, None, "Gradient for Box/weights:0 is NaN : Tensor had NaN values"
        )


class _Built(Exception):
    """The graph is whole; there is no TPU to run it."""


class _TakeGraph(tf1.train.SessionRunHook):
    def begin(self) -> None:
        self.graph = tf1.get_default_graph()
        raise _Built


def _graph_of_tpu(model_dir: pathlib.Path, config: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a TPUEstimator builds for a TPU of eight cores on one host."""

    def query(*_: Any, **__: Any) -> Any:
        devices = [f"/job:worker/task:0/device:{kind}:0" for kind in ("CPU", "TPU_SYSTEM")]
        devices += [f"/job:worker/task:0/device:TPU:{core}" for core in range(8)]
        attributes = collections.namedtuple("attributes", "name device_type")
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=8,
            num_hosts=1,
            num_of_cores_per_host=8,
            topology=None,
            devices=[attributes(name, name.split(":")[-2]) for name in devices],
        )

    module = importlib.import_module("tensorflow.python.tpu.tpu_system_metadata")
    monkeypatch.setattr(module, "_query_tpu_system_metadata", query)
    on_tpu = TpuOptions(name="local", num_shards=8, iterations_per_loop=50)
    hook = _TakeGraph()
    backend = tpu.TpuBackend(fake.run_context(model_dir, config, tpu=on_tpu))
    with pytest.raises(_Built), backend.running():
        _estimator(model_dir, config, on_tpu).train(
            tpu_input.make_tpu_input_fn(_input_fn), hooks=[hook], max_steps=100
        )
    return hook.graph


def test_graph_of_a_real_tpu(tmp_path, monkeypatch):
    _train(tmp_path / "source", _config(), 1)
    text = (
        f"train_config {{ batch_size: 16 fine_tune_checkpoint: '{tmp_path / 'source'}'"
        " fine_tune_checkpoint_type: 'detection' use_bfloat16: true gradient_clipping_by_norm: 1 }"
    )
    graph = _graph_of_tpu(tmp_path / "run", _config(text + AVERAGED), monkeypatch)
    operations = graph.get_operations()
    kinds = collections.Counter(op.type for op in operations)
    # One sum over cores for each gradient: weights and biases of the head, beta.
    assert kinds["CrossReplicaSum"] == 3
    assert kinds["InfeedDequeueTuple"] == 1 and kinds["InfeedEnqueueTuple"] == 8
    assert kinds["OutfeedEnqueueTuple"] == 1 and kinds["OutfeedDequeueTuple"] == 8
    (infeed,) = (op for op in operations if op.type == "InfeedDequeueTuple")
    assert {str(dtype.name) for dtype in infeed.get_attr("dtypes")} <= {"float32", "int32"}
    assert all(shape.dim[0].size == 2 for shape in infeed.get_attr("shapes"))
    # The host writes, the core does not.
    on_core = [op for op in operations if "_tpu_replicate" in op.node_def.attr]
    assert not [op.name for op in on_core if "Summary" in op.type or "Restore" in op.type]
    assert kinds["WriteSummary"] == 6
    assert {op.name for op in operations if op.type == "RestoreV2"}
    rehearsed = tf1.train.list_variables(str(tmp_path / "source"))
    with graph.as_default():
        names = {variable.op.name for variable in tf1.global_variables()}
    assert {name for name, _ in rehearsed} <= names

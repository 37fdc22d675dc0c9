from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import pytest

from estimator_det.compat import estimator, tf, tf1, tpu_estimator
from estimator_det.errors import RunError
from inputs import schema
from inputs.label_map import read_label_map
from model_fn import model_fn as create
from model_fn.checkpoints import savers
from model_fn.training.step import groundtruth_from_labels
from tests.checkpoints import save
from tests.model_fn import fake

ModeKeys = estimator.ModeKeys
STATISTICS = [
    "FeatureExtractor/BatchNorm/moving_mean",
    "FeatureExtractor/BatchNorm/moving_variance",
]
WEIGHTS = "BoxPredictor/All/weights"


@pytest.fixture(autouse=True)
def _fake_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)


def _tensors() -> Any:
    return tf.nest.map_structure(tf.constant, fake.arrays())


def _train(text: str, steps: int = 1) -> Dict[str, Any]:
    return fake.steps_of_model_fn(fake.pipeline_config(text), fake.arrays(), steps)


def _moved(run: Dict[str, Any]) -> List[str]:
    return [n for n in run["end"] if not np.array_equal(run["end"][n], run["start"][n])]


def test_tpu_spec_is_always_built_and_left_alone_on_tpu():
    with tf.Graph().as_default():
        model_fn = create.create_model_fn(fake.pipeline_config(), use_tpu=True)
        spec = model_fn(*_tensors(), ModeKeys.EVAL, {})
        assert isinstance(spec, estimator.EstimatorSpec)
    with tf.Graph().as_default():
        spec = model_fn(_tensors()[0], None, ModeKeys.PREDICT, {})
        assert isinstance(spec, tpu_estimator.TPUEstimatorSpec)


@pytest.mark.parametrize("inplace", [pytest.param("true", marks=pytest.mark.exhaustive), "false"])
def test_statistics_of_batch_norm_move_in_both_modes(inplace):
    run = _train(f"model {{ ssd {{ inplace_batchnorm_update: {inplace} }} }}")
    assert set(STATISTICS) <= set(_moved(run))
    frozen = _train(
        f"model {{ ssd {{ inplace_batchnorm_update: {inplace} freeze_batchnorm: true }} }}"
    )
    assert not set(STATISTICS) & set(_moved(frozen))
    assert WEIGHTS in _moved(frozen)


def test_loss_falls_and_freezing_holds():
    run = _train("train_config { freeze_variables: 'FeatureExtractor/' }", steps=8)
    assert run["losses"][-1] < run["losses"][0]
    assert "FeatureExtractor/BatchNorm/beta" not in _moved(run)
    assert run["end"]["global_step"] == 8


def test_training_spec():
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        config = fake.pipeline_config("train_config { keep_checkpoint_every_n_hours: 2 }")
        model_fn = create.create_model_fn(config)
        spec = model_fn(*_tensors(), ModeKeys.TRAIN, {})
        assert isinstance(spec, estimator.EstimatorSpec)
        saver = spec.scaffold.saver.as_saver_def()
        assert saver.sharded and saver.keep_checkpoint_every_n_hours == 2
        assert model_fn.built.saver is spec.scaffold.saver
        # Nothing travels by collections.
        for key in (tf1.GraphKeys.SAVERS, tf1.GraphKeys.SUMMARIES):
            assert not graph.get_collection(key)
        session.run(tf1.global_variables_initializer())
        written = tf1.Summary.FromString(session.run(spec.scaffold.summary_op))
        scalars = session.run(model_fn.built.step.scalars)
    terms = {f"Loss/{t}_loss" for t in ("localization", "classification", "regularization")}
    assert set(scalars) == {*terms, "Loss/total_loss", "learning_rate", "gradient_norm"}
    by_tag = {value.tag: value.simple_value for value in written.value}
    others = {"loss", "Counted/boxes", "Training_Inputs/0", "Training_Inputs/1"}
    assert set(by_tag) == {*scalars, *others}
    assert by_tag["loss"] == by_tag["Loss/total_loss"] > 0 and by_tag["Counted/boxes"] == 2
    assert set(model_fn.built.step.applied.gradients) == {
        WEIGHTS,
        "BoxPredictor/All/biases",
        "FeatureExtractor/BatchNorm/beta",
    }


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT])
def test_every_mode_hands_the_rewriter_to_the_detector(mode, monkeypatch):
    given = []

    def build_detector(model: Any, is_training: bool, graph_rewriter: Any) -> Any:
        given.append(graph_rewriter.quantization.delay)
        return fake.FakeDetector(model, is_training)

    monkeypatch.setattr(create, "build_detector", build_detector)
    config = fake.pipeline_config("graph_rewriter { quantization { delay: 7 } }")
    with tf.Graph().as_default():
        create.create_model_fn(config)(*_tensors(), mode, {})
    assert given == [7]


def test_regularization_can_be_left_out():
    with tf.Graph().as_default():
        config = fake.pipeline_config("train_config { add_regularization_loss: false }")
        spec = create.create_model_fn(config)(*_tensors(), ModeKeys.EVAL, {})
        assert "Loss/regularization_loss" not in spec.eval_metric_ops
    model_fn = create.create_model_fn(config)
    with tf.Graph().as_default():
        model_fn(*_tensors(), ModeKeys.TRAIN, {})
    assert "Loss/regularization_loss" not in model_fn.built.step.scalars


def _evaluate(
    config: Any, params: Any = None, checkpoint: Optional[str] = None, **arguments: Any
) -> Dict[str, Any]:
    with tf.Graph().as_default(), tf1.Session() as session:
        model_fn, feeds = create.create_model_fn(config, **arguments), {}
        spec = model_fn(*_tensors(), ModeKeys.EVAL, params)
        session.run(tf1.global_variables_initializer())
        if checkpoint is not None:
            spec.scaffold.saver.restore(session, checkpoint)
        session.run([tf1.local_variables_initializer(), tf1.tables_initializer()])
        for hook in spec.evaluation_hooks:
            feeds = hook.before_run(None).feed_dict
        session.run([update for _, update in spec.eval_metric_ops.values()], feeds)
        values = session.run({name: value for name, (value, _) in spec.eval_metric_ops.items()})
        values["spec.loss"] = session.run(spec.loss, feeds)
        values["penalties"] = session.run(tf1.losses.get_regularization_loss(), feeds)
        values["variables"] = [variable.op.name for variable in tf1.global_variables()]
        return values


def test_evaluation_gives_losses_metrics_and_pictures(tmp_path):
    names = tmp_path / "labels.pbtxt"
    names.write_text("".join(f"item {{ id: {k} name: 'name{k}' }}\n" for k in (1, 2, 3)))
    text = "eval_config { include_metrics_per_category: true num_visualizations: 1 }"
    values = _evaluate(fake.pipeline_config(text), label_map=read_label_map(str(names)))
    terms = ("localization", "classification", "regularization")
    assert values["Loss/total_loss"] == pytest.approx(
        sum(values[f"Loss/{term}_loss"] for term in terms), rel=1e-6
    )
    assert values["Loss/regularization_loss"] == pytest.approx(values["penalties"], rel=1e-6)
    assert values["spec.loss"] == pytest.approx(values["Loss/total_loss"])
    assert values["learning_rate"] == 0.5
    assert "DetectionBoxes_PerformanceByCategory/mAP/name3" in values
    summary = tf1.Summary.FromString(values["Detections_Left_Groundtruth_Right"])
    (image,) = summary.value
    assert (image.image.height, image.image.width) == (fake.SIZE, 2 * fake.SIZE)


@pytest.mark.parametrize("averages", ["true", pytest.param("false", marks=pytest.mark.exhaustive)])
def test_weights_come_from_a_checkpoint(tmp_path, monkeypatch, averages):
    text = f"eval_config {{ use_moving_averages: {averages} }} train_config {{ optimizer {{"
    config = fake.pipeline_config(text + " use_moving_average: true moving_average_decay: 0.9 } }")
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = create.create_model_fn(config)(*_tensors(), ModeKeys.TRAIN, {})
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(spec.train_op)
        checkpoint = spec.scaffold.saver.save(session, str(tmp_path / "model.ckpt"))
    expected = _evaluate(config, checkpoint=checkpoint)
    assert len(expected.pop("variables")) > 1
    for is_short in (False, True):
        values = _evaluate(config, {"checkpoint": checkpoint, "is_short": is_short}, checkpoint)
        assert values.pop("variables") == ["global_step"]
        assert values.keys() == expected.keys()
        for name in expected.keys() - {"Eval_Diagnostics"}:
            if not isinstance(expected[name], bytes):
                assert values[name] == pytest.approx(expected[name], rel=1e-5, nan_ok=True), name
    # Weights of a large model remain variables.
    with monkeypatch.context() as patch:
        patch.setattr(savers, "_MOST_CONSTANT_BYTES", 0)
        large = _evaluate(config, {"checkpoint": checkpoint}, checkpoint)
    assert len(large["variables"]) > 1 and large["spec.loss"] == expected["spec.loss"]
    # What does not fit remains a variable, whose name the saver then names.
    other = save(tmp_path, {WEIGHTS: 1.0})
    with pytest.raises(RunError, match=r"FeatureExtractor/BatchNorm/beta\S* is missing"):
        _evaluate(config, {"checkpoint": other}, other)


def test_dummy_loss():
    values = _evaluate(fake.pipeline_config("eval_config { use_dummy_loss_in_eval: true }"))
    assert values["Loss/total_loss"] == 1.0 and "Loss/localization_loss" not in values


def test_prediction_names_its_outputs():
    with tf.Graph().as_default():
        spec = create.create_model_fn(fake.pipeline_config())(
            _tensors()[0], None, ModeKeys.PREDICT, {}
        )
        outputs = spec.export_outputs["serving_default"].outputs
        assert outputs["detection_classes"].op.name == "detection_classes"
        assert set(spec.export_outputs) == {"serving_default", "tensorflow/serving/predict"}
        assert spec.export_outputs["tensorflow/serving/predict"].outputs == outputs


def test_a_detection_checkpoint_gives_weights_and_no_step(tmp_path):
    with tf.Graph().as_default(), tf1.Session() as session:
        create.create_model_fn(fake.pipeline_config())(*_tensors(), ModeKeys.TRAIN, {})
        session.run(tf1.global_variables_initializer())
        session.run(tf1.assign(tf1.train.get_global_step(), 77))
        weights = session.run(f"{WEIGHTS}/Read/ReadVariableOp:0")
        prefix = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    text = (
        f"train_config {{ fine_tune_checkpoint: '{prefix}'"
        " fine_tune_checkpoint_type: 'detection' }"
    )
    run = _train(text)
    assert run["start"]["global_step"] == 0
    np.testing.assert_array_equal(run["start"][WEIGHTS], weights)


def test_groundtruth_from_labels():
    labels = fake.arrays()[1]
    labels[schema.NUM_BOXES] = np.int32([2, 0])
    labels[schema.IS_CROWD] = np.zeros((2, 2), bool)
    del labels[schema.WEIGHTS]
    groundtruth = groundtruth_from_labels(tf.nest.map_structure(tf.constant, labels))
    assert groundtruth.valid.numpy().tolist() == [[True, True], [False, False]]
    assert groundtruth.weights.numpy().tolist() == [[1, 1], [0, 0]]
    assert groundtruth.is_crowd is not None and groundtruth.masks is None

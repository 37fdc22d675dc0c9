from __future__ import annotations

import types
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import layers, normalization
from estimator_det.protos import model_pb2, train_pb2
from inputs import schema
from model_fn.checkpoints.savers import EvaluationSaver, Saver
from model_fn.checkpoints.variables import inference_variables
from model_fn.training import optimizers, recompute, step
from model_fn.training import train_op as train
from model_fn.training.finite_gate import RejectedBatch
from tests.checkpoints import save

pytestmark = pytest.mark.optimized

NAMES = ["FeatureExtractor/conv/weights", "FeatureExtractor/conv/biases", "BoxPredictor/weights"]


def _step(config: train_pb2.TrainConfig, updates: bool = False) -> Dict[str, Any]:
    """One step of rate 1 on `sum(c * w)` with c = 3, 4, 12, all variables starting at 0."""
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = [tf1.get_variable(name, initializer=0.0) for name in NAMES]
        unreached = tf1.get_variable("unreached", initializer=7.0)
        moved = tf1.get_variable("moving_mean", initializer=0.0, trainable=False)
        ops = [moved.assign_add(1.0)] if updates else []
        loss = tf.add_n([c * v for c, v in zip((3.0, 4.0, 12.0), variables)])
        step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.GradientDescentOptimizer(1.0)
        rest = {"learning_rate": tf.constant(1.0), "batch": RejectedBatch({"loss": loss})}
        train_op = train.make_train_op(loss, optimizer, step, config, ops, **rest).op
        session.run(tf1.global_variables_initializer())
        assert session.run(train_op) == 0.0
        values = dict(zip(NAMES, session.run(variables)))
        values.update(step=session.run(step), moved=session.run(moved))
        assert session.run(unreached) == 7.0
        return values


def _moves(**fields: Any) -> List[float]:
    values = _step(train_pb2.TrainConfig(**fields))
    return [-float(values[name]) for name in NAMES]


def test_a_step_moves_what_the_loss_reaches():
    assert _moves() == [3.0, 4.0, 12.0]
    values = _step(train_pb2.TrainConfig(), updates=True)
    assert values["step"] == values["moved"] == 1


@pytest.mark.parametrize(
    "bad", ["loss", "gradient", "learning rate", "applied norm", "moving average"]
)
def test_a_step_that_is_not_finite_is_not_taken(bad):
    with tf.Graph().as_default(), tf1.Session() as session:
        weight = tf1.get_variable("w", initializer=1.0)
        other = tf1.get_variable("v", initializer=1.0)
        mean = tf1.get_variable("moving_mean", initializer=0.0, trainable=False)
        scale = tf1.placeholder(tf.float32, [])
        # The square root of 0 is 0, its slope there infinite.
        loss = other + (tf.sqrt(weight * scale) if bad == "gradient" else weight * scale)
        rate = tf.constant(0.25)
        if bad == "learning rate":
            rate = 0.25 / scale
        elif bad == "applied norm":  # All are finite, but not what is subtracted.
            rate = tf.where(scale > 0, 0.25, 1e38)
            loss *= tf.where(scale > 0, 1.0, 1e10)
        moved = 1.0 / scale if bad == "moving average" else tf.ones([])
        step = tf1.train.get_or_create_global_step()
        optimizer = optimizers.MovingAverageOptimizer(tf1.train.AdamOptimizer(rate), 0.5)
        rejected = RejectedBatch({"scale": scale})
        config, updates = train_pb2.TrainConfig(), [mean.assign_add(moved)]
        made = train.make_train_op(
            loss, optimizer, step, config, updates, learning_rate=rate, batch=rejected
        )
        session.run(tf1.global_variables_initializer())
        session.run(made.op, {scale: 1.0})
        assert not rejected.arrays
        before = session.run({v.op.name: v for v in tf1.global_variables()})
        assert before["global_step"] == before["moving_mean"] == 1 and before["w"] < 1
        poison = float("inf") if bad == "loss" else 0.0
        reported = session.run(made.op, {scale: poison})
        assert np.isfinite(reported) == (bad != "loss")
        after = session.run({v.op.name: v for v in tf1.global_variables()})
        assert after == before
        # The batch is there, and training continues with a good one.
        assert rejected.arrays["scale"] == poison
        session.run(made.op, {scale: 1.0})
        assert session.run([step, mean]) == [2, 2.0]


def test_patterns_are_found_anywhere_in_the_name():
    assert _moves(freeze_variables=["conv"]) == [0.0, 0.0, 12.0]
    assert _moves(update_trainable_variables=["^FeatureExtractor"]) == [3.0, 4.0, 0.0]
    assert _moves(freeze_variables=["biases$"]) == [3.0, 0.0, 12.0]
    both: Dict[str, List[str]] = {
        "update_trainable_variables": ["FeatureExtractor", "BoxPredictor"],
        "freeze_variables": ["FeatureExtractor/conv/biases:0"],
    }
    assert _moves(**both) == [3.0, 0.0, 12.0]


def test_patterns_that_find_nothing(caplog):
    assert _moves(freeze_variables=["FeatureExtractr"]) == [3.0, 4.0, 12.0]
    assert "freeze_variables: 'FeatureExtractr' matches no variable" in caplog.text
    with pytest.raises(ValueError, match="leave no variable to train"):
        _moves(update_trainable_variables=["nothing"])
    with pytest.raises(ValueError, match="depends on none"):
        _moves(update_trainable_variables=["unreached"])


def test_bias_multiplier_then_global_norm():
    assert _moves(bias_grad_multiplier=2.0) == [3.0, 8.0, 12.0]
    # The norm of (3, 4, 12) is 13.
    np.testing.assert_allclose(_moves(gradient_clipping_by_norm=6.5), [1.5, 2.0, 6.0], rtol=1e-6)
    assert _moves(gradient_clipping_by_norm=14.0) == [3.0, 4.0, 12.0]
    both = _moves(bias_grad_multiplier=2.0, gradient_clipping_by_norm=1.0)
    np.testing.assert_allclose(both, np.array([3, 8, 12]) / np.sqrt(9 + 64 + 144), rtol=1e-6)


def test_gradients_of_penalties_wait_for_those_of_the_loss():
    with tf.Graph().as_default():
        images = tf.ones([1, 2, 2, 3])
        maps = slim.conv2d(images, 4, 1, weights_regularizer=slim.l2_regularizer(0.1))
        loss = tf.nn.l2_loss(maps) + tf.add_n(tf1.losses.get_regularization_losses())
        optimizer = tf1.train.GradientDescentOptimizer(1.0)
        pairs = train.compute_gradients(loss, optimizer, train_pb2.TrainConfig())
        (sum_of_both,) = (gradient.op for gradient, _ in pairs if gradient.op.type == "AddN")
        of_loss, of_penalty = sorted((x.op for x in sum_of_both.inputs), key=lambda op: op.type)
        assert (of_loss.type, of_penalty.type) == ("Conv2DBackpropFilter", "Mul")
        assert of_penalty.control_inputs == [of_loss]


def test_gradients_are_reported_before_clipping():
    config = train_pb2.TrainConfig(bias_grad_multiplier=2.0, gradient_clipping_by_norm=5.0)
    with tf.Graph().as_default(), tf1.Session() as session:
        bias = tf1.get_variable("layer/biases", initializer=0.0)
        weight = tf1.get_variable("layer/weights", initializer=0.0)
        loss, step = 3.0 * bias + 8.0 * weight, tf1.train.get_or_create_global_step()
        optimizer = tf1.train.GradientDescentOptimizer(1.0)
        rest = {"learning_rate": tf.constant(1.0), "batch": RejectedBatch({"loss": loss})}
        made = train.make_train_op(loss, optimizer, step, config, [], **rest)
        session.run(tf1.global_variables_initializer())
        assert session.run(made.gradients) == {"layer/biases": 6.0, "layer/weights": 8.0}
        assert session.run(made.gradient_norm) == 10.0


def test_moving_averages_take_the_place_of_variables(tmp_path):
    values = {"w": 1.0, "w/ExponentialMovingAverage": 2.0, "bn/moving_mean": 3.0}
    prefix = save(tmp_path, values)
    with tf.Graph().as_default(), tf1.Session() as session:
        weight = tf1.get_variable("w", initializer=0.0)
        mean = tf1.get_variable("bn/moving_mean", initializer=0.0, trainable=False)
        step = tf1.train.get_or_create_global_step()
        evaluating = EvaluationSaver(inference_variables(True), model_pb2.DetectionModel(), {})
        evaluating.restore(session, prefix)
        # Checkpoints of exports have no step.
        assert session.run([weight, mean, step]) == [2.0, 3.0, 0]
    with tf.Graph().as_default(), tf1.Session() as session:
        weight = tf1.get_variable("w", initializer=0.0)
        Saver(inference_variables(True), sharded=True).restore(session, prefix)
        assert session.run(weight) == 2.0


def test_gradient_summaries():
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        summaries = train.gradient_summaries({"w": tf.constant([3.0, 4.0])})
        assert not graph.get_collection(tf1.GraphKeys.SUMMARIES)
        merged = session.run(tf1.summary.merge(summaries, collections=[]))
    values = {value.tag: value for value in tf1.Summary.FromString(merged).value}
    assert set(values) == {"gradients/w", "gradient_norm/w", "global_norm/gradient_norm"}
    assert values["global_norm/gradient_norm"].simple_value == 5.0


def test_gradients_of_biases_in_bfloat16_count_all_rows():
    detector: Any = types.SimpleNamespace(
        predict=lambda images, *_: slim.conv2d(images, 1, 1, activation_fn=None)
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        shape = [1, 256, 256, 1]
        features = {schema.IMAGE: tf.ones(shape), schema.TRUE_IMAGE_SHAPE: tf.constant([shape[1:]])}
        predictions = step.predict(detector, features, types=step.NetworkTypes(tf.bfloat16))
        (biases,) = (v for v in tf1.trainable_variables() if "biases" in v.name)
        (gradient,) = tf1.gradients(tf.reduce_sum(predictions), [biases])
        session.run(tf1.global_variables_initializer())
        assert session.run(gradient) == pytest.approx(256 * 256, rel=0.01)


# Gradients of kernels before batch norm by the batch are sums that nearly cancel.
@pytest.mark.parametrize(("is_training", "tolerance"), [(True, 0.1), (False, 0.05)])
def test_convolutions_alone_in_bfloat16(is_training, tolerance):
    def network(images: tf.Tensor, *_: Any) -> tf.Tensor:
        norm = {"is_training": is_training, "scale": True, "folds": True}
        plain, separable = layers.conv2d, layers.separable_conv2d
        with slim.arg_scope(
            [slim.conv2d, slim.separable_conv2d],
            normalizer_fn=normalization.batch_norm,
            normalizer_params=norm,
        ):
            net = separable(plain(images, 8, 3, scope="a"), None, 3, scope="b")
            net += plain(plain(net, 4, 1, scope="c"), 8, 3, padding=layers.EXPLICIT, scope="d")
            net = separable(net, 8, 3, scope="e")
        return plain(net, 2, 1, activation_fn=None, normalizer_fn=None, scope="f")

    def one_step(convolutions: Any) -> Tuple[List[np.ndarray], List[tf.Operation]]:
        detector: Any = types.SimpleNamespace(predict=network)
        images = np.random.default_rng(0).normal(size=[2, 9, 9, 3]).astype(np.float32)
        features = {schema.IMAGE: tf.constant(images), schema.TRUE_IMAGE_SHAPE: None}
        with recompute.recomputable():
            kinds = step.NetworkTypes(convolutions=convolutions)
            predictions = step.predict(detector, features, types=kinds)
        variables = tf1.trainable_variables()
        assert {v.dtype.base_dtype for v in variables} == {predictions.dtype} == {tf.float32}
        with recompute.recomputing(train_pb2.TrainConfig.OFF):
            gradients = tf1.gradients(tf.reduce_sum(predictions**2), variables)
        with tf1.Session() as session:
            for number, variable in enumerate(tf1.global_variables()):
                least = 0.5 if variable.shape.rank == 1 else -1.0  # variances are positive
                value = np.random.default_rng(number).uniform(least, 1, variable.shape)
                variable.load(value, session)
            return session.run([predictions, *gradients]), graph.get_operations()

    with tf.Graph().as_default() as graph:
        exact, _ = one_step(None)
    with tf.Graph().as_default() as graph:
        rounded, operations = one_step(tf.bfloat16)
    assert len(exact) == 19
    for values, wanted in zip(rounded, exact):
        assert np.linalg.norm(values - wanted) < tolerance * np.linalg.norm(wanted)
    kinds = ("Conv2D", "DepthwiseConv2dNative", "AddV2")
    found = {op.type: op.get_attr("T") for op in operations if op.type in kinds}
    assert found == dict(zip(kinds, (tf.bfloat16, tf.bfloat16, tf.float32)))

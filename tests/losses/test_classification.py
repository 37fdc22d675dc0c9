from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.losses import classification
from estimator_det.protos import losses_pb2
from tests.conftest import golden_component
from tests.faults import faults

_, ARRAYS = golden_component("losses")


def make(text: str) -> classification.ClassificationLoss:
    return classification.make_classification_loss(
        text_format.Parse(text, losses_pb2.ClassificationLoss())
    )


def test_absent_alpha_is_not_zero_alpha():
    arguments = (tf.zeros([1, 1, 2]), tf.constant([[[1.0, 0.0]]]), tf.ones([1, 1, 2]))
    without = make("weighted_sigmoid_focal {}")(*arguments)
    with_zero = make("weighted_sigmoid_focal { alpha: 0 }")(*arguments)
    np.testing.assert_allclose(without[0, 0], [0.25 * np.log(2)] * 2, rtol=1e-6)
    np.testing.assert_allclose(with_zero[0, 0], [0.0, 0.25 * np.log(2)], rtol=1e-6)


def test_hand_worked_dice():
    predictions = tf.constant([[[0.5], [1.0], [0.0]]])
    targets = tf.constant([[[1.0], [1.0], [0.0]]])
    options = "is_prediction_probability: true squared_normalization: true"
    loss = make(f"weighted_dice_classification_loss {{ {options} }}")
    got = loss(predictions, targets, tf.ones([1, 3, 1]))
    np.testing.assert_allclose(got, [[1 - 2 * 1.5 / 3.25]], rtol=1e-6)


VARIANTS = [f"{kind} {{}}" for kind in sorted(classification.CLASSIFICATION_LOSSES)] + [
    "weighted_sigmoid_focal { gamma: 0.5 alpha: 0.25 }",
    "weighted_sigmoid_focal { gamma: 1.5 }",
    "bootstrapped_sigmoid { alpha: 0.5 hard_bootstrap: true }",
    "penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 }",
    "penalty_reduced_logistic_focal_loss { alpha: 0.5 beta: 0.5 }",
    "weighted_dice_classification_loss { squared_normalization: true }",
]


@pytest.mark.parametrize("text", VARIANTS)
@pytest.mark.parametrize("size", [100.0, 1e4])
def test_finite_for_extreme_logits_and_masked_images(text, size):
    rows = [[size, -size, 0.0], [-size, size, size], [-size, -size, -size]]
    logits = tf.constant([rows, [[np.nan, np.inf, -np.inf]] * 3])
    targets = tf.constant([[[1.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]] * 2)
    weights = tf.constant([[[1.0], [1.0], [0.0]]] * 2)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        got = make(text)(logits, targets, weights, losses_mask=tf.constant([True, False]))
    gradient = tape.gradient(got, logits).numpy()
    assert np.isfinite(got).all() and np.isfinite(gradient).all()
    assert not got[1].numpy().any() and not gradient[1].any()


def test_gradients_of_the_cross_entropy():
    logits = tf.constant([[[-90.0, -2.0, -0.0], [0.0, 3.0, 90.0]]])
    targets = tf.constant([[[1.0, 0.3, 0.3], [0.0, 1.0, 0.0]]])
    gradients = []
    for entropy in (
        make("weighted_sigmoid {}"),
        lambda x, z, weights: weights * tf.nn.sigmoid_cross_entropy_with_logits(z, x),
    ):
        with tf.GradientTape() as tape:
            tape.watch([logits, targets])
            loss = entropy(logits, targets, tf.constant([[[2.0], [0.5]]]))
        gradients.append(tape.gradient(loss, [logits, targets]))
    for found, expected in zip(*gradients):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_gradients_of_the_focal_loss(gamma):
    logits = tf.constant([[[-90.0, -2.0, -0.0], [0.1, 3.0, 9.0]]])
    targets = tf.constant([[[1.0, 0.3, 0.0], [0.0, 1.0, 1.0]]])

    def plainly(logits, targets, weights):
        wrong = targets * tf.sigmoid(-logits) + (1.0 - targets) * tf.sigmoid(logits)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return weights * (0.25 + 0.5 * (1.0 - targets)) * wrong**gamma * entropy

    results = []
    for loss in (make(f"weighted_sigmoid_focal {{ gamma: {gamma} alpha: 0.25 }}"), plainly):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = loss(logits, targets, tf.constant([[[2.0], [0.5]]]))
        results.append((losses, tape.gradient(losses, logits)))
    for found, expected in zip(*results):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_focal_loss_of_efficientdet_is_cheap():
    with tf.Graph().as_default() as graph:
        logits = tf.constant(ARRAYS["logits"])
        arguments = (tf.constant(ARRAYS["onehot"]), tf.constant(ARRAYS["weights2"]))
        loss = make("weighted_sigmoid_focal { gamma: 1.5 alpha: 0.25 }")(logits, *arguments)
        tf.gradients(loss, logits)
        wide = [op.type for op in graph.get_operations() if op.outputs[0].shape == logits.shape]
        # Without logarithms of a power, and with half as many as TensorFlow's gradient has.
        assert "Pow" not in wide
        assert len(wide) <= 32


def test_errors():
    for kind in ("weighted_softmax", "weighted_logits_softmax"):
        text = f"{kind} {{ logit_scale: 0 }}"
        assert f"{kind}.logit_scale: divides" in faults(losses_pb2.ClassificationLoss(), text)


def test_heat_maps_limit_probabilities():
    """The Object Detection API cuts them to 0.0001 … 0.9999, without a gradient beyond."""
    loss = make("penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 }")
    logits = tf.constant([[[-20.0, 20.0]]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        found = loss(logits, tf.constant([[[1.0, 0.0]]]), tf.ones([1, 1]))
    expected = -(0.9999**2) * np.log(1e-4)
    np.testing.assert_allclose(found, [[[expected, expected]]], rtol=1e-4)
    np.testing.assert_array_equal(tape.gradient(found, logits), np.zeros([1, 1, 2]))

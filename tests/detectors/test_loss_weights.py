from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.detectors import equalization, loss_weights
from estimator_det.protos import losses_pb2
from tests.faults import faults

# Image 0: one positive and a half of 4; image 1: no positive.
FOREGROUND = [[1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def weights(text: str) -> loss_weights.LossWeights:
    config = text_format.Parse(text, losses_pb2.Loss())
    return loss_weights.make_expected_weights(config)(tf.constant(FOREGROUND))


def test_negative_rate():
    rate = loss_weights.negative_rate(tf.constant(FOREGROUND), 2.0, 3.0)
    np.testing.assert_allclose(rate, [[3 * 1.5 / 2.5], [2 / 4]])
    everything = loss_weights.negative_rate(tf.ones([1, 3]), 1.0, 3.0)
    np.testing.assert_allclose(everything, [[0.0]])


def test_expected_sampling():
    found = weights("expected_loss_weights: EXPECTED_SAMPLING min_num_negative_samples: 1")
    np.testing.assert_allclose(found.assigned, FOREGROUND)
    np.testing.assert_allclose(found.background, [[0, 0.9, 1.8, 1.8], [0.25] * 4])


def test_reweighted_unmatched():
    found = weights(
        "expected_loss_weights: REWEIGHTING_UNMATCHED_ANCHORS desired_negative_sampling_ratio: 1"
    )
    np.testing.assert_allclose(found.assigned, [[1, 0.8, 0.6, 0.6], [0] * 4], rtol=1e-6)
    np.testing.assert_allclose(found.background, np.zeros((2, 4)))


def test_no_weights_by_default():
    assert loss_weights.make_expected_weights(losses_pb2.Loss()) is None


def penalty(text: str) -> tf.Tensor:
    loss = text_format.Parse(f"equalization_loss {{ {text} }}", losses_pb2.Loss())
    return equalization.make_equalization(loss)()


def test_equalization():
    assert equalization.make_equalization(losses_pb2.Loss()) is None
    kernel = np.zeros([1, 1, 2, 3], np.float32)
    kernel[0, 0] = [[1, -np.e, 0.5], [0.1, 1, -(np.e**2)]]  # ranges 1, e, e^2
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("weights", initializer=kernel)
        two_rows = np.concatenate([kernel, 0.5 * kernel])[:, :, :, :2]
        tf1.get_variable("depthwise_weights", initializer=two_rows)
        tf1.get_variable("biases", initializer=np.ones(3, np.float32))
        total, partial = penalty("weight: 0.5"), penalty("weight: 0.5 exclude_prefixes: 'depth'")
        one_channel = tf1.get_variable(
            "weights_of_one_channel", initializer=np.float32([[[[1.0, 0.0]]]])
        )
        spread = equalization.range_spread(one_channel)
        session.run(tf1.global_variables_initializer())
        assert session.run(spread) == pytest.approx((np.log(1e-6) / 2) ** 2)
        logs = np.log(np.abs(kernel[0, 0, :, :2]).reshape(-1))
        assert session.run(partial) == pytest.approx(0.5 * 2 / 3)
        assert session.run(total) == pytest.approx(0.5 * (2 / 3 + logs.var()), rel=1e-5)
        with pytest.raises(ValueError, match="cover every kernel"):
            penalty("weight: 1 exclude_prefixes: ['weights', 'depth']")
    text = "equalization_loss { weight: -1 }"
    assert "weight: is -1; allowed are 0 to" in faults(losses_pb2.Loss(), text)

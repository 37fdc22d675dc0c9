from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.nets import quantization
from estimator_det.nets.quantization import Quantization, Quantizer, make_quantization
from estimator_det.protos import graph_rewriter_pb2


def _updates() -> List[Any]:
    return tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)


def _values(session: Any) -> Dict[str, Any]:
    return session.run({v.op.name: v for v in tf1.global_variables()})


def _rounded(values: np.ndarray, least: float, most: float, lowest: int = 0) -> np.ndarray:
    """The affine grid of 255 - lowest steps, moved so that zero is on it."""
    step = (most - least) / (255 - lowest)
    zero = np.clip(np.round(lowest - least / step), lowest, 255)
    start, end = (lowest - zero) * step, (255 - zero) * step
    return np.floor((np.clip(values, start, end) - start) / step + 0.5) * step + start


def test_an_inference_rounds_to_the_stored_range():
    values = np.array([-2.0, -0.5, 0.0, 0.013, 1.0, 3.0], np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        quantizer = Quantizer(Quantization(delay=7), is_training=False)
        outputs = quantizer.activation("net/act_quant", tf.constant(values), least=0.0)
        kernel = quantizer.weights("net", tf.constant(values))
        session.run(tf1.global_variables_initializer())
        assert _values(session) == {
            "net/act_quant/min": 0,
            "net/act_quant/max": 6,
            "net/weights_quant/min": -6,
            "net/weights_quant/max": 6,
        }
        assert outputs.op.name == "net/act_quant/FakeQuantWithMinMaxVars"
        np.testing.assert_allclose(session.run(outputs), _rounded(values, 0, 6), atol=1e-6)
        np.testing.assert_allclose(session.run(kernel), _rounded(values, -6, 6, 1), atol=1e-6)
        for variable in tf1.global_variables():
            variable.load({"min": -1.0, "max": 2.0}[variable.op.name[-3:]], session)
        np.testing.assert_allclose(session.run(outputs), _rounded(values, -1, 2), atol=1e-6)
        assert not _updates() and not tf1.trainable_variables()
        assert not tf1.get_collection(tf1.GraphKeys.MODEL_VARIABLES)


def test_ranges_of_activations_are_averages_without_a_bias_to_their_start():
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tf1.placeholder(tf.float32, [2])
        quantizer = Quantizer(Quantization(delay=0), is_training=True)
        outputs = quantizer.activation("act_quant", values)
        session.run(tf1.global_variables_initializer())
        # A step rounds with the range that it leaves.
        feed = np.array([-3.0, 1.0], np.float32)
        rounded, _ = session.run([outputs, _updates()], {values: feed})
        np.testing.assert_allclose(rounded, _rounded(feed, -3, 1), atol=1e-4)
        found = _values(session)
        assert found["act_quant/min"] == pytest.approx(-3, rel=2e-5)
        assert found["act_quant/max"] == pytest.approx(1, rel=2e-5)
        assert found["act_quant/act_quant/min/biased"] == pytest.approx(-3 * 0.001)
        assert found["act_quant/act_quant/max/local_step"] == 1
        # Zero belongs to every range.
        session.run(_updates(), {values: [2.0, 5.0]})
        found = _values(session)
        assert found["act_quant/min"] == pytest.approx(-3 * 0.999 / 1.999, rel=1e-4)
        assert found["act_quant/max"] == pytest.approx((1 * 0.999 + 5) / 1.999, rel=1e-4)
        assert quantization.STEP_VARIABLE not in found


def test_bits_of_weights_and_of_activations():
    with tf.Graph().as_default(), tf1.Session() as session:
        quantizer = Quantizer(Quantization(weight_bits=3, activation_bits=2), is_training=False)
        values = tf.linspace(-6.0, 6.0, 49)
        rounded = quantizer.activation("act_quant", values, least=0.0)
        kernel = quantizer.weights("net", values)
        session.run(tf1.global_variables_initializer())
        levels = [np.unique(found).tolist() for found in session.run([rounded, kernel])]
    # The most negative level of weights is unused.
    assert levels == [[0, 2, 4, 6], [-6, -4, -2, 0, 2, 4, 6]]


def test_the_delay_counts_steps_from_one():
    with tf.Graph().as_default(), tf1.Session() as session:
        quantizer = Quantizer(Quantization(delay=3), is_training=True)
        outputs = quantizer.activation("one/act_quant", tf.constant([0.0, 0.1234, 1.0]))
        quantizer.activation("two/act_quant", outputs)
        session.run(tf1.global_variables_initializer())
        steps = [session.run([outputs, _updates()])[0][1] for _ in range(4)]
        exact, rounded = np.float32(0.1234), np.float32(31 / 255)
        np.testing.assert_allclose(steps, [exact, exact, rounded, rounded], rtol=1e-4)
        found = _values(session)
        assert found[quantization.STEP_VARIABLE] == 4
        assert found["one/act_quant/max"] == pytest.approx(1, rel=2e-5)  # learned from the first


@pytest.mark.parametrize("step", [0, 9])
def test_gradients_pass_inside_the_range(step):
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tf.constant([-7.0, -1.0, 0.5, 7.0])
        quantizer = Quantizer(Quantization(delay=5), is_training=True)
        outputs = quantizer.activation("act_quant", values)
        (gradient,) = tf1.gradients(outputs * [1.0, 2.0, 3.0, 4.0], values)
        session.run(tf1.global_variables_initializer())
        for variable in tf1.global_variables():
            start = {"biased": 1.0, "local_step": 1e6, quantization.STEP_VARIABLE: step}
            value = start.get(variable.op.name.rpartition("/")[2], 0)
            sign = -1 if "/min/" in variable.op.name and value == 1.0 else 1
            variable.load(sign * value, session)
        inside = [0, 2, 3, 0] if step else [1, 2, 3, 4]
        np.testing.assert_allclose(session.run(gradient), inside)


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [([-0.5, 0.25], -0.5, 0.5 * 254 / 256), ([-0.25, 0.5], -0.5 * 256 / 254, 0.5)],
)
def test_symmetric_ranges(values, least, most):
    with tf.Graph().as_default(), tf1.Session() as session:
        options = Quantization(delay=0, symmetric=True, weight_bits=4)
        quantizer = Quantizer(options, is_training=True)
        quantizer.weights("net", tf.constant(values))
        quantizer.activation("net/act_quant", tf.constant(values))
        session.run(tf1.global_variables_initializer())
        session.run(_updates())
        found = _values(session)
        assert found["net/weights_quant/min"] == -found["net/weights_quant/max"] == -0.5
        assert found["net/act_quant/min"] == pytest.approx(least, rel=2e-5)
        assert found["net/act_quant/max"] == pytest.approx(most, rel=2e-5)


def test_names_follow_the_variable_scope_within_that_of_the_network():
    with tf.Graph().as_default(), tf1.variable_scope("whole"):
        quantizer = Quantizer(Quantization(), is_training=False)
        with tf1.variable_scope("net"):
            assert quantizer.scope() == "net"
            with quantizer.renamed("whole/other"), tf1.variable_scope("conv"):
                assert quantizer.scope() == "other/conv"
                with quantizer.renamed("whole/inner"):
                    assert quantizer.scope() == "inner"
                quantizer.weights(quantizer.scope(), tf.zeros([2]))
            with tf1.variable_scope("conv"):
                assert quantizer.scope() == "net/conv"
        assert [v.op.name for v in tf1.global_variables()] == [
            "whole/other/conv/weights_quant/min",
            "whole/other/conv/weights_quant/max",
        ]
        with pytest.raises(ValueError, match="two tensors have the quantization scope"):
            quantizer.weights("other/conv", tf.zeros([2]))


def test_options_from_the_message():
    message = graph_rewriter_pb2.GraphRewriter()
    assert make_quantization(message) is None
    message.quantization.SetInParent()
    assert make_quantization(message) == Quantization(500000, 8, 8, False)
    text = "quantization { delay: 5 weight_bits: 4 symmetric: true }"
    message = text_format.Parse(text, graph_rewriter_pb2.GraphRewriter())
    assert make_quantization(message) == Quantization(5, 4, 8, True)

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.boxes import score_conversion
from estimator_det.compat import tf
from estimator_det.protos import post_processing_pb2
from tests.faults import faults

LOGITS = np.float32([[[-2.0, 0.5, 3.0], [0.0, -1.0, 1.0]]])
TEMPERATURE = "calibration_config { temperature_scaling_calibration { scaler: %s } }"
SIGMOIDS = "calibration_config { sigmoid_calibration { %s } }"
POINTS = "calibration_config { function_approximation { x_y_pairs { %s } } }"


def convert(text: str, logits: np.ndarray = LOGITS) -> np.ndarray:
    config = text_format.Parse(text, post_processing_pb2.PostProcessing())
    result = score_conversion.make_score_converter(config)(tf.constant(logits))
    assert result.shape == logits.shape
    return result.numpy()


def sigmoid(values: Any) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.asarray(values)))


def softmax(values: Any) -> np.ndarray:
    powers = np.exp(values)
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", LOGITS),
        ("score_converter: SIGMOID", sigmoid(LOGITS)),
        ("score_converter: SOFTMAX", softmax(LOGITS)),
        ("logit_scale: 2", LOGITS / 2),
        ("score_converter: SIGMOID logit_scale: 2", sigmoid(LOGITS / 2)),
        ("score_converter: SOFTMAX logit_scale: 0.5", softmax(LOGITS * 2)),
        (f"score_converter: SOFTMAX {TEMPERATURE % 4}", softmax(LOGITS / 4)),
        (f"score_converter: SIGMOID {SIGMOIDS % ''}", sigmoid(sigmoid(LOGITS))),
        (SIGMOIDS % "sigmoid_parameters { a: 2 b: -1 }", 1.0 / (1.0 + np.exp(2 * LOGITS - 1))),
        (  # parameters of the middle class alone
            """calibration_config { class_id_sigmoid_calibrations {
            class_id_sigmoid_parameters_map { key: 1 value { a: -3 b: 1 } } } }""",
            np.where([False, True, False], sigmoid(3 * LOGITS - 1), LOGITS),
        ),
        ("calibration_config { class_id_function_approximations {} }", LOGITS),
        (POINTS % "x_y_pair { x: 1 y: 3 }", np.full_like(LOGITS, 3.0)),  # a constant
    ],
)
def test_conversion(text, wanted):
    np.testing.assert_allclose(convert(text), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("functions", "scores", "wanted"),
    [
        (  # linear between points, level beyond them
            """function_approximation { x_y_pairs { x_y_pair { x: 0.0 y: 0.1 }
            x_y_pair { x: 0.5 y: 0.2 } x_y_pair { x: 1.0 y: 1.0 } } }""",
            [[[-0.5, 0.0, 0.25], [0.5, 0.75, 1.5]]],
            [[[0.1, 0.1, 0.15], [0.2, 0.6, 1.0]]],
        ),
        (  # of the first and last class
            """class_id_function_approximations {
            class_id_xy_pairs_map { key: 0 value {
                x_y_pair { x: 0 y: 0.5 } x_y_pair { x: 1 y: 1 } } }
            class_id_xy_pairs_map { key: 2 value {
                x_y_pair { x: 0 y: 0 } x_y_pair { x: 0.5 y: 0.1 } x_y_pair { x: 1 y: 0.3 } } } }""",
            [[[0.5, 0.7, 0.25], [2.0, 0.1, 0.75]]],
            [[[0.75, 0.7, 0.05], [1.0, 0.1, 0.2]]],
        ),
    ],
)
def test_function_approximations(functions, scores, wanted):
    found = convert(f"calibration_config {{ {functions} }}", np.float32(scores))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("logit_scale: 0", "logit_scale: divides"),
        ("calibration_config {}", "calibration_config: is empty"),
        ("calibration_config { temperature_scaling_calibration {} }", "above 0; given: 0"),
        ("calibration_config { function_approximation {} }", "at least one x_y_pair"),
        (POINTS % "x_y_pair { x: 1 y: 1 } x_y_pair { x: 1 y: 2 }", "is 1 after 1: x must increase"),
    ],
)
def test_errors(text, message):
    assert re.search(message, faults(post_processing_pb2.PostProcessing(), text))


def test_calibrated_classes_have_a_column():
    calibration = "class_id_sigmoid_calibrations { class_id_sigmoid_parameters_map { key: 3 } }"
    config = post_processing_pb2.PostProcessing()
    text_format.Parse(f"calibration_config {{ {calibration} }}", config)
    (problem,) = score_conversion.check_class_ids(config, 3, "at")
    assert problem.field.endswith("class_id_sigmoid_parameters_map[3]")
    assert list(score_conversion.check_class_ids(config, 4, "at")) == []


def test_few_ops_whatever_the_number_of_classes():
    pairs = "x_y_pair { x: 0 y: 0 } x_y_pair { x: 1 y: 1 }"
    sizes = []
    for num_classes in (3, 90):
        entries = "".join(
            f"class_id_xy_pairs_map {{ key: {key} value {{ {pairs} }} }}"
            for key in range(num_classes)
        )
        text = f"calibration_config {{ class_id_function_approximations {{ {entries} }} }}"
        config = text_format.Parse(text, post_processing_pb2.PostProcessing())
        with tf.Graph().as_default() as graph:
            converter = score_conversion.make_score_converter(config)
            converter(tf.compat.v1.placeholder(tf.float32, [None, 7, num_classes]))
            sizes.append(len(graph.get_operations()))
    assert sizes[0] == sizes[1] < 80

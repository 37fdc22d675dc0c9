"""Conversion of class logits to scores, and calibration of scores on held-out data.

Letters: B images, A anchors, C class columns. Calibrations use the predictor's columns: class id 0
is the background if the first column is.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import missing_choice, rules
from estimator_det.errors import Problem, error
from estimator_det.protos import calibration_pb2, post_processing_pb2

ScoreFunction = Callable[[tf.Tensor], tf.Tensor]

CALIBRATIONS: Registry[Callable[[Any, ScoreFunction], ScoreFunction]] = Registry(
    "calibration", chosen_by="CalibrationConfig.calibrator"
)

_CONVERTERS: Dict[str, ScoreFunction] = {
    "IDENTITY": tf.identity,
    "SIGMOID": tf.sigmoid,
    "SOFTMAX": tf.nn.softmax,
}


@rules(post_processing_pb2.PostProcessing)
def _check_scale(config: post_processing_pb2.PostProcessing, at: str) -> Iterator[Problem]:
    if config.logit_scale == 0.0:
        yield error(f"{at}.logit_scale", "divides the logits and must not be 0", "set it to 1")


def make_score_converter(config: post_processing_pb2.PostProcessing) -> ScoreFunction:
    """Builds the function logits [B, A, C] -> scores [B, A, C] of a `PostProcessing` proto.

    Logits are divided by `logit_scale`, converted, then calibrated (temperature scaling calibrates
    before the conversion).
    """
    convert = _CONVERTERS[config.ScoreConverter.Name(config.score_converter)]
    scale = config.logit_scale

    def converter(logits: tf.Tensor) -> tf.Tensor:
        return convert(logits if scale == 1.0 else logits / scale)

    if not config.HasField("calibration_config"):
        return converter
    return CALIBRATIONS.make_chosen(config.calibration_config, converter)


def interpolate(
    scores: tf.Tensor, points_x: np.ndarray[Any, Any], points_y: np.ndarray[Any, Any]
) -> tf.Tensor:
    """Evaluates piecewise linear functions, which are constant beyond their first and last points.

    Function c, with points [C, L] of strictly increasing x, applies to row c of the scores [C, M];
    or one function with points [L] applies to scores [M].
    """
    last = points_x.shape[-1] - 1

    def gather(points: np.ndarray[Any, Any], index: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(points), index, batch_dims=points.ndim - 1)

    # The number of points up to each score, bit by bit; converters do not know `tf.searchsorted`.
    num_bits = (last + 1).bit_length()
    padding = [(0, 0)] * (points_x.ndim - 1) + [(0, 2**num_bits - 2 - last)]
    padded_x = np.pad(points_x, padding, constant_values=np.inf)
    count = tf.zeros_like(scores, tf.int32)
    for bit in reversed(range(num_bits)):
        larger_count = count + 2**bit
        count = tf.where(gather(padded_x, larger_count - 1) <= scores, larger_count, count)
    left = tf.clip_by_value(count - 1, 0, last)
    right = tf.minimum(count, last)
    start, span = gather(points_x, left), gather(points_x, right) - gather(points_x, left)
    weight = tf.math.divide_no_nan(scores - start, span)
    return (1.0 - weight) * gather(points_y, left) + weight * gather(points_y, right)


@rules(calibration_pb2.XYPairs)
def _check_points(config: calibration_pb2.XYPairs, at: str) -> Iterator[Problem]:
    if not config.x_y_pair:
        yield error(f"{at}.x_y_pair", "is empty", "give at least one pair")
    xs = [pair.x for pair in config.x_y_pair]
    for index, (x, next_x) in enumerate(zip(xs, xs[1:]), start=1):
        if not x < next_x:
            message = f"is {next_x:g} after {x:g}: x must increase from pair to pair"
            yield error(f"{at}.x_y_pair[{index}].x", message, "sort the pairs, each x once")


@rules(calibration_pb2.FunctionApproximation)
def _check_function(config: calibration_pb2.FunctionApproximation, at: str) -> Iterator[Problem]:
    if not config.HasField("x_y_pairs"):
        yield error(f"{at}.x_y_pairs", "is missing", "give at least one x_y_pair")


@rules(calibration_pb2.TemperatureScalingCalibration)
def _check_temperature(
    config: calibration_pb2.TemperatureScalingCalibration, at: str
) -> Iterator[Problem]:
    if not config.scaler > 0.0:
        message = f"divides the logits and must be above 0; given: {config.scaler:g}"
        yield error(f"{at}.scaler", message, "set it to a number above 0")


rules(calibration_pb2.CalibrationConfig)(missing_choice)


def _points(pairs: calibration_pb2.XYPairs) -> Tuple[List[float], List[float]]:
    return [pair.x for pair in pairs.x_y_pair], [pair.y for pair in pairs.x_y_pair]


def _compose(convert: ScoreFunction, calibrate: ScoreFunction) -> ScoreFunction:
    return lambda logits: calibrate(convert(logits))


def check_class_ids(
    config: post_processing_pb2.PostProcessing, num_columns: int, at: str
) -> Iterator[Problem]:
    """Errors of calibrations for classes of which a detector has no column of scores."""
    calibration = config.calibration_config
    for kind, field, ids in (
        (
            "class_id_function_approximations",
            "class_id_xy_pairs_map",
            calibration.class_id_function_approximations.class_id_xy_pairs_map,
        ),
        (
            "class_id_sigmoid_calibrations",
            "class_id_sigmoid_parameters_map",
            calibration.class_id_sigmoid_calibrations.class_id_sigmoid_parameters_map,
        ),
    ):
        for class_id in sorted(ids):
            if not 0 <= class_id < num_columns:
                yield error(
                    f"{at}.calibration_config.{kind}.{field}[{class_id}]",
                    f"the class scores have no column {class_id}",
                    f"give ids from 0 to {num_columns - 1}",
                )


@CALIBRATIONS.register("function_approximation")
def _make_function(
    config: calibration_pb2.FunctionApproximation, convert: ScoreFunction
) -> ScoreFunction:
    xs, ys = _points(config.x_y_pairs)
    points_x, points_y = np.array(xs, np.float32), np.array(ys, np.float32)

    def calibrate(scores: tf.Tensor) -> tf.Tensor:
        flat = interpolate(tf.reshape(scores, [-1]), points_x, points_y)
        return tf.reshape(flat, tf.shape(scores))

    return _compose(convert, calibrate)


@CALIBRATIONS.register("class_id_function_approximations")
def _make_function_per_class(
    config: calibration_pb2.ClassIdFunctionApproximations, convert: ScoreFunction
) -> ScoreFunction:
    points = {class_id: _points(pairs) for class_id, pairs in config.class_id_xy_pairs_map.items()}
    max_points = max((len(xs) for xs, _ in points.values()), default=0)

    def calibrate(scores: tf.Tensor) -> tf.Tensor:
        num_classes = scores.shape[-1]
        if not points:
            return scores
        # All functions have the same number of points, so that a single lookup serves every class.
        table_x = np.tile(np.arange(max_points, dtype=np.float32), [num_classes, 1])
        table_y = np.zeros([num_classes, max_points], np.float32)
        for class_id, (xs, ys) in points.items():
            table_x[class_id, : len(xs)] = xs
            table_y[class_id, : len(ys)] = ys
            table_y[class_id, len(ys) :] = ys[-1]
            # The points that fill up a row repeat its last y; their x must increase, too.
            table_x[class_id, len(xs) :] = xs[-1] + 1.0 + np.arange(max_points - len(xs))
        class_scores = tf.transpose(tf.reshape(scores, [-1, num_classes]))
        calibrated = tf.transpose(interpolate(class_scores, table_x, table_y))
        is_calibrated = np.isin(np.arange(num_classes), list(points))
        return tf.where(is_calibrated, tf.reshape(calibrated, tf.shape(scores)), scores)

    return _compose(convert, calibrate)


@CALIBRATIONS.register("sigmoid_calibration")
def _make_sigmoid(
    config: calibration_pb2.SigmoidCalibration, convert: ScoreFunction
) -> ScoreFunction:
    a, b = config.sigmoid_parameters.a, config.sigmoid_parameters.b
    return _compose(convert, lambda scores: tf.sigmoid(-(a * scores + b)))


@CALIBRATIONS.register("class_id_sigmoid_calibrations")
def _make_sigmoid_per_class(
    config: calibration_pb2.ClassIdSigmoidCalibrations, convert: ScoreFunction
) -> ScoreFunction:
    parameters = {
        class_id: (pair.a, pair.b)
        for class_id, pair in config.class_id_sigmoid_parameters_map.items()
    }

    def calibrate(scores: tf.Tensor) -> tf.Tensor:
        num_classes = scores.shape[-1]
        table = np.zeros([2, num_classes], np.float32)
        for class_id, pair in parameters.items():
            table[:, class_id] = pair
        is_calibrated = np.isin(np.arange(num_classes), list(parameters))
        return tf.where(is_calibrated, tf.sigmoid(-(table[0] * scores + table[1])), scores)

    return _compose(convert, calibrate)


@CALIBRATIONS.register("temperature_scaling_calibration")
def _make_temperature(
    config: calibration_pb2.TemperatureScalingCalibration, convert: ScoreFunction
) -> ScoreFunction:
    scaler = config.scaler
    return lambda logits: convert(logits / scaler)

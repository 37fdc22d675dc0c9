"""Fits `CalibrationConfig`s: maps of scores that make them agree with the observed precision.

The fits use the detections of an evaluation, after suppression, as `model_fn.evaluation.matching`
judges them:

- function approximation: isotonic regression by pooling adjacent violators (Ayer et al., "An
  Empirical Distribution Function for Sampling with Incomplete Information", 1955), with a point at
  the mean score of each pool, which keeps the order of scores;
- sigmoid: Platt scaling (Platt, "Probabilistic Outputs for Support Vector Machines", 1999);
- temperature: Guo et al., "On Calibration of Modern Neural Networks", 2017.

An evaluation writes the calibration, for `--config_override`, with a reliability diagram.
Calibrations of each class use the fit of all classes where a class has too few detections, or
where its higher scores are not more precise.
"""

from __future__ import annotations

import operator
import os
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from google.protobuf import text_format

from estimator_det import files
from estimator_det.boxes.score_conversion import CALIBRATIONS
from estimator_det.compat import eagerly, tf
from estimator_det.config.derived_models import FinalScores, final_scores
from estimator_det.config.registry import Registry
from estimator_det.errors import ConfigError, RunError
from estimator_det.protos import calibration_pb2, pipeline_pb2, post_processing_pb2
from model_fn.drawing import charts
from model_fn.evaluation.matching import ClassMatches, Matches
from model_fn.evaluation.reliability import (
    NUM_BINS,
    Reliability,
    precision_by_score,
    reliability_chart,
)

Array = np.ndarray[Any, Any]
Point = Tuple[float, float]

TEMPERATURE = "temperature_scaling_calibration"
MIN_DETECTIONS = 100  # detections for a fit; a class with fewer gets the function of all classes
MIN_CORRECT = 10
DETECTIONS_PER_BIN = 50  # at least, before pooling
MAX_POINTS = 100  # points of one function
MAX_POINTS_OF_CLASSES = 1_500  # points of the functions of all classes together
_MOST_LIKELY = 0.999  # a function's value at its last pool is below 1, so that it still rises
_LOGIT_MARGIN = 1e-7
_ROWS_AT_ONCE = 4096
# A command line takes arguments of 131,072 bytes; the text of a calibration is one argument.
LONGEST_TEXT = 120_000
LONGEST_INDENTED_TEXT = 20_000

# Each sets one calibrator of a `CalibrationConfig`, from matches and the scores' post-processing.
FITS: Registry[Callable[[Any, Matches, FinalScores], None]] = Registry("calibration")


def scores_of(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, kind: str) -> FinalScores:
    """The part of a configuration that gets a calibration of one kind.

    Refuses scores that this kind cannot be fitted for.
    """
    scores = final_scores(pipeline_config.model)
    if scores is None:
        raise ConfigError.at(
            f"model.{pipeline_config.model.WhichOneof('model')}",
            "has no class scores that a calibration_config could change",
            "calibrate an ssd, a faster_rcnn with number_of_stages of 2 or 3, or a center_net "
            "without rescore_instances; thresholds of `detect --threshold auto` need no "
            "calibration",
        )
    FITS.get(kind)
    config, path = scores.post_processing, scores.path
    if config.HasField("calibration_config"):
        raise ConfigError.at(
            f"{path}.calibration_config",
            "is set, so the scores are calibrated already",
            "remove it from the configuration before a calibration is fitted",
        )
    if config.batch_non_max_suppression.soft_nms_sigma > 0:
        raise ConfigError.at(
            f"{path}.batch_non_max_suppression.soft_nms_sigma",
            f"is {config.batch_non_max_suppression.soft_nms_sigma:g}; calibration of "
            "scores that soft suppression lowers is not supported yet",
            "set it to 0",
        )
    if kind == TEMPERATURE and config.score_converter != post_processing_pb2.PostProcessing.SIGMOID:
        others = ", ".join(name for name in sorted(FITS) if name != TEMPERATURE)
        name = config.ScoreConverter.Name(config.score_converter)
        raise ConfigError.at(
            f"{path}.score_converter",
            f"is {name}; {TEMPERATURE} is fitted for SIGMOID only, since the score of "
            "a detection does not give its logits otherwise",
            f"use one of {others}",
        )
    return scores


def fit(kind: str, matches: Matches, scores: FinalScores) -> calibration_pb2.CalibrationConfig:
    """The calibration of one kind for the detections of an evaluation; see `scores_of`.

    Raises RunError if there are too few detections, or higher scores are not more precise.
    """
    every = matches.all_classes_merged()
    if not has_enough(every):
        raise RunError(
            f"a calibration needs {MIN_DETECTIONS} detections and {MIN_CORRECT} correct ones; the "
            f"evaluation has {len(every.scores)} and {every.correct.sum()}; evaluate on more "
            "records, or train longer"
        )
    low, high = float(every.scores.min()), float(every.scores.max())
    if low < 0 or high > 1:
        raise RunError(
            f"a calibration needs scores from 0 to 1; the evaluation has {low:g} to {high:g}; set "
            "score_converter to SIGMOID or SOFTMAX"
        )
    config = calibration_pb2.CalibrationConfig()
    FITS.get(kind)(config, matches, scores)
    return config


def has_enough(matches: ClassMatches) -> bool:
    """True if there are enough detections for a fit."""
    return len(matches.scores) >= MIN_DETECTIONS and int(matches.correct.sum()) >= MIN_CORRECT


def calibrate(config: calibration_pb2.CalibrationConfig, scores: Array, columns: Array) -> Array:
    """Scores [n] in columns [n] as the inference graph calibrates them: float32 [n]."""
    is_temperature = config.WhichOneof("calibrator") == TEMPERATURE
    named = [*config.class_id_function_approximations.class_id_xy_pairs_map]
    named += config.class_id_sigmoid_calibrations.class_id_sigmoid_parameters_map
    num_columns = max([int(columns.max(initial=0)), *named]) + 1
    inputs = _logits(scores) if is_temperature else np.asarray(scores)
    calibrated = np.zeros(len(inputs), np.float32)
    with eagerly():
        convert = tf.sigmoid if is_temperature else tf.identity
        function = CALIBRATIONS.make_chosen(config, convert)
        for start in range(0, len(inputs), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            places = np.arange(len(inputs[part])), columns[part]
            rows = np.zeros([len(inputs[part]), num_columns], np.float32)
            rows[places] = inputs[part]
            calibrated[part] = function(tf.constant(rows)).numpy()[places]
    return calibrated


def _logits(scores: Array) -> Array:
    inside = np.clip(np.asarray(scores, np.float64), _LOGIT_MARGIN, 1 - _LOGIT_MARGIN)
    return np.log(inside) - np.log1p(-inside)


def isotonic(values: Sequence[float], weights: Sequence[float]) -> List[Tuple[int, int]]:
    """Pools of neighbours whose weighted means rise strictly: [(first, last + 1), …]."""
    pools: List[Tuple[int, float, float]] = []  # first, mean, weight
    for i, (value, weight) in enumerate(zip(values, weights)):
        first, mean, total = i, float(value), float(weight)
        while pools and pools[-1][1] >= mean:
            first, previous, mass = pools.pop()
            mean, total = (mean * total + previous * mass) / (total + mass), total + mass
        pools.append((first, mean, total))
    starts = [first for first, _, _ in pools]
    return list(zip(starts, [*starts[1:], len(values)]))


def function_points(matches: ClassMatches, most: int = MAX_POINTS) -> List[Point]:
    """Points (score, precision) of a rising function from (0, 0) to 1, at most `most` + 2."""
    distinct, inverse, counts = np.unique(matches.scores, return_inverse=True, return_counts=True)
    correct = np.bincount(inverse, matches.correct)
    num_bins = int(np.clip(len(matches.scores) // DETECTIONS_PER_BIN, 1, most))
    bins = (np.cumsum(counts) - counts) * num_bins // len(matches.scores)
    _, bins = np.unique(bins, return_inverse=True)
    weights = np.bincount(bins, counts)
    means = np.bincount(bins, distinct.astype(np.float64) * counts) / weights
    rates = np.bincount(bins, correct) / weights
    points: List[Point] = []
    for first, end in isotonic(rates.tolist(), weights.tolist()):
        part = slice(first, end)
        x = np.average(means[part], weights=weights[part])
        y = np.average(rates[part], weights=weights[part])
        points.append((float(x), _MOST_LIKELY * float(y)))
    if points[0][1] == 0.0:
        # Above 0, so that these detections keep their order, and are not suppressed.
        above = points[1][1] if len(points) > 1 else 1.0
        points[0] = (points[0][0], min(above / 2, 0.5 / len(matches.scores)))
    return _distinct([(0.0, 0.0), *points, (1.0, points[-1][1] + 1 - _MOST_LIKELY)])


def _distinct(points: Sequence[Point]) -> List[Point]:
    """Rounded points that still rise; of those with one score the last."""
    kept: List[Point] = []
    for point in points:
        x, y = map(_rounded, point)
        while kept and np.float32(kept[-1][0]) >= np.float32(x):
            kept.pop()
        kept.append((x, y))
    return kept


def _rounded(number: float) -> float:
    """The number as the text of a configuration gives it."""
    return float(f"{number:.6g}")


@FITS.register("function_approximation")
def _fit_function(
    config: calibration_pb2.CalibrationConfig, matches: Matches, scores: FinalScores
) -> None:
    del scores
    for x, y in function_points(matches.all_classes_merged()):
        config.function_approximation.x_y_pairs.x_y_pair.add(x=x, y=y)


@FITS.register("class_id_function_approximations")
def _fit_functions(
    config: calibration_pb2.CalibrationConfig, matches: Matches, scores: FinalScores
) -> None:
    most = int(np.clip(MAX_POINTS_OF_CLASSES // max(len(matches.class_ids), 1), 3, 30))
    table = config.class_id_function_approximations.class_id_xy_pairs_map
    common = function_points(matches.all_classes_merged(), most)
    for class_id, class_matches in zip(matches.class_ids, matches.per_class()):
        pairs = table[scores.column_of(class_id)].x_y_pair
        for x, y in function_points(class_matches, most) if has_enough(class_matches) else common:
            pairs.add(x=x, y=y)


def sigmoid_parameters(matches: ClassMatches) -> Optional[Point]:
    """Slope a < 0 and offset b of the most likely 1 / (1 + exp(a * score + b)).

    None if higher scores are not more precise.
    """
    num_correct = int(matches.correct.sum())
    num_wrong = len(matches.correct) - num_correct
    # Platt's targets: finite parameters also where a score separates correct from wrong.
    high, low = (num_correct + 1) / (num_correct + 2), 1 / (num_wrong + 2)
    targets = np.where(matches.correct, high, low)
    design = np.stack([matches.scores.astype(np.float64), np.ones(len(matches.scores))])
    weights = np.array([0.0, np.log((num_correct + 1) / (num_wrong + 1))])

    def loss(at: Array) -> float:
        logits = at @ design
        return float(np.sum(np.logaddexp(0, logits) - targets * logits))

    for _ in range(100):
        predicted = 1 / (1 + np.exp(-(weights @ design)))
        gradient = design @ (predicted - targets)
        hessian = (design * (predicted * (1 - predicted))) @ design.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        before = loss(weights)
        while loss(weights - step) > before and np.abs(step).max() > 1e-9:
            step /= 2
        weights -= step
        if np.abs(step).max() <= 1e-9:
            break
    return (-float(weights[0]), -float(weights[1])) if weights[0] > 0 else None


def _not_more_precise(kind: str) -> RunError:
    return RunError(
        f"no {kind} calibrates these detections: higher scores are not more often "
        "correct, or a score separates correct from wrong ones; evaluate on more records, or use "
        "function_approximation"
    )


@FITS.register("sigmoid_calibration")
def _fit_sigmoid(
    config: calibration_pb2.CalibrationConfig, matches: Matches, scores: FinalScores
) -> None:
    del scores
    point = sigmoid_parameters(matches.all_classes_merged())
    if point is None:
        raise _not_more_precise("sigmoid")
    parameters = config.sigmoid_calibration.sigmoid_parameters
    parameters.a, parameters.b = map(_rounded, point)


@FITS.register("class_id_sigmoid_calibrations")
def _fit_sigmoids(
    config: calibration_pb2.CalibrationConfig, matches: Matches, scores: FinalScores
) -> None:
    common = calibration_pb2.CalibrationConfig()
    _fit_sigmoid(common, matches, scores)
    table = config.class_id_sigmoid_calibrations.class_id_sigmoid_parameters_map
    for class_id, class_matches in zip(matches.class_ids, matches.per_class()):
        parameters = table[scores.column_of(class_id)]
        parameters.CopyFrom(common.sigmoid_calibration.sigmoid_parameters)
        point = sigmoid_parameters(class_matches) if has_enough(class_matches) else None
        if point is not None:
            parameters.a, parameters.b = map(_rounded, point)


def temperature(matches: ClassMatches) -> float:
    """The most likely divisor of the logits, above 0."""
    logits, correct = _logits(matches.scores), matches.correct.astype(np.float64)

    def slope(log_factor: float) -> float:
        # Derivative of the negative log likelihood, which is convex in the factor.
        with np.errstate(over="ignore"):
            predicted = 1 / (1 + np.exp(-np.exp(log_factor) * logits))
        return float(np.sum(logits * (predicted - correct)))

    low, high = np.log(1e-3), np.log(1e3)
    if slope(low) >= 0 or slope(high) <= 0:
        raise _not_more_precise("temperature")
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


@FITS.register(TEMPERATURE)
def _fit_temperature(
    config: calibration_pb2.CalibrationConfig, matches: Matches, scores: FinalScores
) -> None:
    del scores
    scaler = temperature(matches.all_classes_merged())
    config.temperature_scaling_calibration.scaler = _rounded(scaler)


class Calibrated(NamedTuple):
    """A fitted calibration and its effect on the scores."""

    config: calibration_pb2.CalibrationConfig
    before: Reliability
    after: Reliability  # reliability on the detections that it was fitted to
    # Expected calibration error of detections that it was not fitted to: of each half of the
    # images with a fit to the other half. None if a half has too few detections.
    held_out_error: Optional[float]


def make(kind: str, matches: Matches, scores: FinalScores) -> Calibrated:
    """Fits a calibration, and measures its effect; raises the errors of `fit`."""
    every = matches.all_classes_merged()
    config = fit(kind, matches, scores)
    return Calibrated(
        config,
        before=precision_by_score(every.scores, every.correct),
        after=_reliability_with(config, matches, scores),
        held_out_error=_held_out_error(kind, matches, scores),
    )


def _reliability_with(
    config: calibration_pb2.CalibrationConfig, matches: Matches, scores: FinalScores
) -> Reliability:
    columns = np.array([scores.column_of(k) for k in matches.class_ids])[matches.classes()]
    every = matches.all_classes_merged()
    return precision_by_score(calibrate(config, every.scores, columns), every.correct)


def _held_out_error(kind: str, matches: Matches, scores: FinalScores) -> Optional[float]:
    halves = [matches.every_second_image(start) for start in (0, 1)]
    if not all(has_enough(half.all_classes_merged()) for half in halves):
        return None
    errors, counts = [], []
    for fitted, held_out in (halves, reversed(halves)):
        try:
            config = fit(kind, fitted, scores)
        except RunError:
            return None  # All detections may still determine a calibration.
        after = _reliability_with(config, held_out, scores)
        errors.append(after.expected_error)
        counts.append(int(after.counts.sum()))
    return float(np.average(errors, weights=counts))


def write(calibrated: Calibrated, scores: FinalScores, folder: str, step: int) -> Tuple[str, str]:
    """Writes the text of `override_text` and the diagram, a PNG; returns the paths of both."""
    text = override_text(calibrated.config, scores)
    if len(text) > LONGEST_TEXT:
        raise RunError(
            f"the calibration of {scores.path} has {len(text):,} characters of text, and a command "
            f"line takes {LONGEST_TEXT:,}; use a calibration of all classes together, or "
            "class_id_sigmoid_calibrations"
        )
    stem = os.path.join(folder, f"calibration-{step}")
    files.write_text(f"{stem}.pbtxt", text)
    files.write_text(f"{stem}.png", reliability_diagram(calibrated))
    return f"{stem}.pbtxt", f"{stem}.png"


def override_text(config: calibration_pb2.CalibrationConfig, scores: FinalScores) -> str:
    """Pipeline text proto that sets the calibration and nothing else."""
    pipeline = pipeline_pb2.TrainEvalPipelineConfig()
    operator.attrgetter(scores.path)(pipeline).calibration_config.CopyFrom(config)
    text = str(text_format.MessageToString(pipeline))
    if len(text) <= LONGEST_INDENTED_TEXT:
        return text
    return str(text_format.MessageToString(pipeline, as_one_line=True)) + "\n"


def reliability_diagram(calibrated: Calibrated) -> bytes:
    """PNG: precision by score before and after, and how many detections have each score."""
    curves = {"before": calibrated.before, "after": calibrated.after}
    titles = {f"{name}: error {curve.expected_error:.3f}": curve for name, curve in curves.items()}
    kind = calibrated.config.WhichOneof("calibrator")
    return charts.figure(
        [
            reliability_chart(f"Reliability of {kind}", titles),
            charts.histogram(
                "Detections by score",
                np.linspace(0.0, 1.0, NUM_BINS + 1),
                {name: curve.counts for name, curve in curves.items()},
                x_label="score",
                y_label="detections",
            ),
        ],
        columns=2,
    )

"""Fits a calibration after an evaluation, and writes it with a reliability diagram."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np
from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.config import files
from estimator_det.config.derived_models import FinalScores, final_scores
from estimator_det.config.text import ConfigError
from estimator_det.protos import calibration_pb2, pipeline_pb2
from model_fn.checkpoints.errors import RunError
from model_fn.drawing import charts
from model_fn.evaluation import calibration
from model_fn.evaluation.calibration import NUM_BINS, Reliability
from model_fn.evaluation.matching import Matches

# A command line takes arguments of 131,072 bytes; the text is one argument.
LONGEST_TEXT = 120_000
LONGEST_INDENTED_TEXT = 20_000


class Calibrated(NamedTuple):
    """A fitted calibration and what it changes."""

    kind: str  # field of the `calibrator` in `CalibrationConfig`
    config: Any  # `CalibrationConfig` proto
    before: Reliability
    after: Reliability  # reliability on the detections that it was fitted to
    # Expected calibration error of detections that it was not fitted to: of each half of the
    # images with a fit to the other half. None if a half has too few detections.
    held_out_error: Optional[float]


def scores_of(pipeline_config: Any) -> FinalScores:
    """The part of a configuration that gets the calibration."""
    scores = final_scores(pipeline_config.model)
    if scores is None:
        raise ConfigError(
            "model",
            "has no class scores that a calibration could change",
            "calibrate an ssd, or a faster_rcnn with number_of_stages of 2 or 3",
        )
    return scores


def make(pipeline_config: Any, kind: str, matches: Matches) -> Calibrated:
    """Fits a calibration to the detections of an evaluation; errors are those of `fit`."""
    scores = scores_of(pipeline_config)
    config = calibration.fit(kind, matches, scores)
    every = matches.all_classes_merged()
    return Calibrated(
        kind,
        config,
        before=calibration.reliability(every.scores, every.correct),
        after=_reliability_with(config, matches, scores),
        held_out_error=_held_out_error(kind, matches, scores),
    )


def _reliability_with(
    config: calibration_pb2.CalibrationConfig, matches: Matches, scores: FinalScores
) -> Reliability:
    columns = np.array([scores.column_of(k) for k in matches.class_ids])[matches.classes()]
    every = matches.all_classes_merged()
    calibrated = calibration.calibrate(config, every.scores, columns)
    return calibration.reliability(calibrated, every.correct)


def _held_out_error(kind: str, matches: Matches, scores: FinalScores) -> Optional[float]:
    halves = [matches.every_second_image(start) for start in (0, 1)]
    if not all(calibration.has_enough(half.all_classes_merged()) for half in halves):
        return None
    errors, counts = [], []
    for fitted, held_out in (halves, reversed(halves)):
        try:
            config = calibration.fit(kind, fitted, scores)
        except RunError:
            return None  # This half does not determine it, which all detections may.
        reliability = _reliability_with(config, held_out, scores)
        errors.append(reliability.expected_error)
        counts.append(int(reliability.counts.sum()))
    return float(np.average(errors, weights=counts))


def write(calibrated: Calibrated, scores: FinalScores, folder: str, step: int) -> Tuple[str, str]:
    """Writes to the folder of an evaluation; returns the paths of two files.

    A pipeline text proto with the calibration alone, for --config_override, and the reliability
    diagram, a PNG.
    """
    text = override_text(calibrated.config, scores)
    if len(text) > LONGEST_TEXT:
        raise RunError(
            f"the {calibrated.kind} have {len(text):,} characters of text for "
            f"{scores.path}, and a command line takes {LONGEST_TEXT:,}; use a calibration of all "
            "classes together, or class_id_sigmoid_calibrations"
        )
    tf.io.gfile.makedirs(folder)
    stem = os.path.join(folder, f"calibration-{step}")
    files.write_text(f"{stem}.pbtxt", text)
    with tf.io.gfile.GFile(f"{stem}.png", "wb") as file:
        file.write(reliability_diagram(calibrated))
    return f"{stem}.pbtxt", f"{stem}.png"


def override_text(config: calibration_pb2.CalibrationConfig, scores: FinalScores) -> str:
    """Pipeline text proto that sets the calibration and nothing else."""
    pipeline = pipeline_pb2.TrainEvalPipelineConfig()
    message: Any = pipeline
    for name in scores.path.split("."):
        message = getattr(message, name)
    message.calibration_config.CopyFrom(config)
    text = str(text_format.MessageToString(pipeline))
    if len(text) <= LONGEST_INDENTED_TEXT:
        return text
    return str(text_format.MessageToString(pipeline, as_one_line=True)) + "\n"


def reliability_diagram(calibrated: Calibrated) -> bytes:
    """PNG: precision by score before and after, and how many detections have each score."""
    edges = np.linspace(0.0, 1.0, NUM_BINS + 1)
    curves = {"before": calibrated.before, "after": calibrated.after}
    lines = []
    for name, curve in curves.items():
        used = curve.counts > 0
        title = f"{name}: error {curve.expected_error:.3f}"
        lines.append(charts.Curve(title, curve.mean_scores[used], curve.precisions[used]))
    lines.append(charts.Curve("precision = score", [0.0, 1.0], [0.0, 1.0]))
    return charts.figure(
        [
            charts.curves(
                f"Reliability of {calibrated.kind}",
                lines,
                x_label="score",
                y_label="precision",
                limits=(0, 1, 0, 1.02),
                legend="upper left",
            ),
            charts.histogram(
                "Detections by score",
                edges,
                {name: curve.counts for name, curve in curves.items()},
                x_label="score",
                y_label="detections",
            ),
        ],
        columns=2,
    )

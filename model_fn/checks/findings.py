"""Findings about the evaluations of a run: overfitting, and classes that no anchor fits."""

from __future__ import annotations

import math
import os
import statistics
from typing import List, Mapping

from estimator_det.config.text import entries
from estimator_det.console.printing import quoted
from estimator_det.errors import UsageError
from estimator_det.files import json_lines
from estimator_det.protos import pipeline_pb2
from model_fn.checks import data_check
from model_fn.evaluation import details
from model_fn.evaluation.readers import evaluation_folder
from model_fn.events import PROGRESS_FILE

LOSS = "Loss/total_loss"
OVERFITTING = 2.0  # loss of an evaluation over the loss of training, which augmentation increases
FIRST_VALUES = 0.001  # share of first values above which averages of variances are far too large
NUM_REPORTS = 5  # lines of progress; their median is the loss of training
GOOD_PRECISION = 0.3  # the best class's average precision, below which nothing is learnt yet
MIN_BOXES = 5  # Precision in fewer boxes of a class is mostly chance.
WEAK = 0.2  # share of the best class's average precision
MAX_RECORDS = 1000  # records that are read from each file


def findings(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: str,
    reader: str,
    step: int,
    metrics: Mapping[str, float],
) -> List[str]:
    """Lines about an evaluation of a reader, from its metrics; none if there is nothing to say."""
    values = details.read(evaluation_folder(model_dir, reader), step) or {}
    precisions = values.get("average_precisions", {})
    boxes = values.get("counts", {}).get("boxes", {})
    return [
        *overfitting(config, model_dir, step, metrics.get(LOSS, math.nan)),
        *classes_without_anchors(config, precisions, boxes),
    ]


def overfitting(
    config: pipeline_pb2.TrainEvalPipelineConfig, model_dir: str, step: int, evaluated: float
) -> List[str]:
    """A line if the loss of an evaluation is far above the loss of training before it."""
    reports = json_lines.read(os.path.join(model_dir, PROGRESS_FILE), ("step", "time"))
    # A resumed run repeats steps; the last value of each counts.
    losses = {row["step"]: row[LOSS] for row in reports if row["step"] <= step and LOSS in row}
    last = [losses[each] for each in sorted(losses)][-NUM_REPORTS:]
    # NaN compares false.
    if not last or not evaluated > OVERFITTING * statistics.median(last):
        return []
    losses_at = (
        f"the loss is {statistics.median(last):.2g} in training and {evaluated:.2g} in the "
        f"evaluation at step {step}"
    )
    decays = [each.value.decay for each in entries(config) if each.field.name == "batch_norm"]
    decay = max(decays, default=0.0)
    if decay**step > FIRST_VALUES and not config.train_config.fine_tune_checkpoint:
        shorter = max(1 - 20 / step, 0.9)
        remedy = f", or lower each batch_norm.decay to {shorter:.4g}" if shorter < decay else ""
        return [
            f"short training: {losses_at}. With a decay of {decay:.4g}, {decay**step:.1%} of the "
            f"averages of batch norm are still their first values. Train for more steps{remedy}"
        ]
    return [
        f"overfitting: {losses_at}. Train on more images or with more augmentation, or keep the "
        "best checkpoint and end earlier (--best_metric, --patience)"
    ]


def classes_without_anchors(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    precisions: Mapping[str, float],
    boxes: Mapping[str, int],
) -> List[str]:
    """Lines about anchors if some classes are hardly found though others are found well.

    `precisions` and `boxes` have the average precision and the number of boxes of each class.
    """
    precisions = {name: p for name, p in precisions.items() if boxes.get(name, 0) >= MIN_BOXES}
    best = max(precisions.values(), default=0.0)
    weak = sorted((p, name) for name, p in precisions.items() if p < WEAK * best)
    if best < GOOD_PRECISION or not weak:
        return []
    try:
        problems = data_check.anchor_problems(config, max_records=MAX_RECORDS)
    except (UsageError, OSError):  # Records that are not here cannot explain anything.
        return []
    precision, name = weak[0]
    heading = (
        f"class {quoted(name)} has an average precision of {precision:.3f}, the best class "
        f"{best:.3f}"
    )
    # An error says that there is no model, as in an evaluation of records and detections alone.
    lines = [str(each) for each in problems if each.severity != "error"]
    return [heading, *lines] if lines else []

"""The score threshold that maximises F1, for each class and for all classes with one threshold.

F1 is the harmonic mean of precision and recall: 2 * correct / (detections + boxes), of the
detections with the threshold's score or more. `model_fn.evaluation.matching` says which are
correct. Of thresholds with the same F1 the highest is taken.

Each evaluation writes a file of them beside its metrics; an export holds a copy as
`assets.extra/thresholds.json` of the SavedModel.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.config.derived_models import final_scores
from estimator_det.console.printing import cut, plain
from estimator_det.errors import UsageError
from estimator_det.files import json_lines
from estimator_det.protos import model_pb2, pipeline_pb2
from model_fn.checkpoints.repair import step_of
from model_fn.evaluation.best_checkpoints import BEST_FILE
from model_fn.evaluation.matching import MATCH_IOU, ClassMatches, Matches
from model_fn.evaluation.readers import OTHER_SETTINGS, evaluation_folder, named_readers

_LOG = logging.getLogger(__name__)

IN_EXPORTS = "assets.extra/thresholds.json"  # under the folder of the SavedModel
LONGEST_FILE = 64_000_000  # bytes
MAX_ROWS_PRINTED = 10
_NAME_WIDTH = 24


@dataclasses.dataclass(frozen=True)
class ThresholdRow:
    """A class, or all of them.

    Without `threshold` the other values are None, too: the class has no box, or no correct
    detection.
    """

    name: str
    num_boxes: int
    num_detections: int
    threshold: Optional[float] = None
    precision: Optional[float] = None
    recall: Optional[float] = None
    f1: Optional[float] = None
    class_id: Optional[int] = None  # id in the label map; None for all classes


@dataclasses.dataclass(frozen=True)
class ThresholdTable:
    """The thresholds of one evaluation."""

    all_classes: ThresholdRow
    classes: Tuple[ThresholdRow, ...]
    scores: Optional[str] = None  # `FinalScores.fingerprint` of the evaluated model; None: no model

    def per_class(self) -> Dict[int, float]:
        """Id -> threshold of each class that has one."""
        return {
            row.class_id: row.threshold
            for row in self.classes
            if row.class_id is not None and row.threshold is not None
        }


def make_table(
    matches: Matches, model: Optional[model_pb2.DetectionModel] = None
) -> ThresholdTable:
    """The thresholds of an evaluation; `model` is the `DetectionModel` proto that was evaluated."""
    scores = None if model is None else final_scores(model)
    classes = zip(matches.class_ids, matches.class_names, matches.per_class())
    rows = tuple(best_f1(name, matches, class_id) for class_id, name, matches in classes)
    every = best_f1("all classes", matches.all_classes_merged())
    return ThresholdTable(every, rows, None if scores is None else scores.fingerprint())


def best_f1(name: str, matches: ClassMatches, class_id: Optional[int] = None) -> ThresholdRow:
    """The row of one class."""
    num_boxes, num_detections = matches.num_boxes, len(matches.scores)
    empty = ThresholdRow(name, num_boxes, num_detections, class_id=class_id)
    if not num_boxes or not matches.correct.any():
        return empty
    correct = np.cumsum(matches.correct)
    counts = np.arange(1, num_detections + 1)
    f1 = 2.0 * correct / (counts + num_boxes)
    # A threshold takes all detections of its score, or none.
    is_last = np.append(matches.scores[1:] != matches.scores[:-1], True)
    best = int(np.argmax(np.where(is_last, f1, -1.0)))
    return dataclasses.replace(
        empty,
        threshold=float(matches.scores[best]),
        precision=float(correct[best] / counts[best]),
        recall=float(correct[best] / num_boxes),
        f1=float(f1[best]),
    )


def format_table(table: ThresholdTable, path: str) -> str:
    """The table as text: the classes with most boxes, at most `MAX_ROWS_PRINTED` of them.

    `path` is of the file with all of them.
    """
    ranked = sorted(table.classes, key=lambda row: -row.num_boxes)[:MAX_ROWS_PRINTED]
    shown = {row.class_id for row in ranked}
    title = f"  {'best F1 at IoU':<{_NAME_WIDTH - 4}}{MATCH_IOU:>4g}"
    lines = [f"{title}   boxes  threshold  precision  recall     F1"]
    lines += map(_line, [table.all_classes, *(r for r in table.classes if r.class_id in shown)])
    num_hidden = len(table.classes) - len(ranked)
    rest = f"  … and {num_hidden} classes more" if num_hidden else ""
    return "\n".join([*lines, f"{rest}  all in {path}"])


def _line(row: ThresholdRow) -> str:
    start = f"  {cut(plain(row.name), _NAME_WIDTH):<{_NAME_WIDTH}} {row.num_boxes:>7}"
    if row.threshold is None:
        return f"{start}  {'no box' if not row.num_boxes else 'no correct detection'}"
    numbers: List[Any] = [row.threshold, row.precision, row.recall, row.f1]
    return start + "".join(f"{x:>{w}.3f}" for x, w in zip(numbers, (11, 11, 8, 7)))


def path_for(folder: str, step: int) -> str:
    """Path of an evaluation's thresholds, in the folder of its events."""
    return os.path.join(folder, f"thresholds-{step}.json")


def write(folder: str, step: int, reader: str, table: ThresholdTable) -> str:
    """Writes the thresholds of an evaluation; returns the path."""
    path = path_for(folder, step)
    about = {"reader": reader, "step": step, "match_iou": MATCH_IOU}
    content = {**about, **dataclasses.asdict(table)}
    files.write_text(path, json_lines.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def read(path: str) -> ThresholdTable:
    """The thresholds in a file of `write`."""
    content = files.read_bytes(path, LONGEST_FILE)
    try:
        values = json.loads(content)
        rows = [ThresholdRow(**row) for row in (values["all_classes"], *values["classes"])]
        for row in rows:
            is_float = isinstance(row.threshold, float) and math.isfinite(row.threshold)
            is_id = isinstance(row.class_id, (int, type(None)))
            if not is_id or not (row.threshold is None or is_float):
                raise TypeError(f"not a row of a table: {row}")
        return ThresholdTable(rows[0], tuple(rows[1:]), values.get("scores"))
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UsageError(
            f"{plain(path)}: is not a file of thresholds as an evaluation writes it; "
            f"{plain(repr(error))}; evaluate the checkpoint again, and export it again"
        ) from None


def check(path: str, model: model_pb2.DetectionModel) -> None:
    """Refuses thresholds that were not measured with the scores of this `DetectionModel`."""
    measured, scores = read(path).scores, final_scores(model)
    if measured is None or scores is None or measured == scores.fingerprint():
        return
    raise UsageError(
        f"{plain(path)}: its thresholds are for other scores: {scores.path} was not the same in "
        "the evaluation; evaluate the checkpoint with this configuration"
    )


def find_usable(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    checkpoint: str,
    model_dir: Optional[str] = None,
) -> Optional[str]:
    """The thresholds of a checkpoint: of the first evaluation reader; None if there are none.

    The search covers the checkpoint's folder, and the run's for a copy in its `best/`; or
    `model_dir`. Evaluations with other settings come last. If `check` refuses all files, the first
    refusal is logged as a warning.
    """
    name = next(iter(named_readers(pipeline_config))) if pipeline_config.eval_input_reader else "0"
    places = [os.path.dirname(checkpoint) if model_dir is None else model_dir]
    if model_dir is None and tf.io.gfile.exists(os.path.join(places[0], BEST_FILE)):
        places.append(os.path.dirname(places[0]))
    places += [os.path.join(place, OTHER_SETTINGS) for place in places]
    folders = [evaluation_folder(place, name) for place in places]
    paths = (path_for(folder, step_of(checkpoint)) for folder in folders)
    refusals = []
    for path in filter(tf.io.gfile.exists, paths):
        try:
            check(path, pipeline_config.model)
            return path
        except UsageError as error:
            refusals.append(error)
    for refusal in refusals[:1]:
        _LOG.warning("Exporting without thresholds: %s", refusal)
    return None

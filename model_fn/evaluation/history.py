"""The evaluations of a run in order, saved in its folder, so that a resumed run knows them.

`evaluations.jsonl` has a line for each evaluation; `training_over.json` exists once training has
ended.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from typing import Any, Dict, List, Optional

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError, nearest
from estimator_det.files import atomic, json_lines

Metrics = Dict[str, float]

EVALUATIONS_FILE = "evaluations.jsonl"
OVER_FILE = "training_over.json"
_NEEDED = ("reader", "step", "metrics", "notes", "time")  # Earlier versions had no `bad_records`.


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One line of `evaluations.jsonl`."""

    reader: str
    step: int
    metrics: Metrics
    notes: Dict[str, str] = dataclasses.field(default_factory=dict)  # why a metric is -1, 0 or NaN
    bad_records: Dict[str, int] = dataclasses.field(default_factory=dict)  # `FaultLog.counts`
    time: float = dataclasses.field(default_factory=time.time)  # seconds since 1970

    def value(self, metric: str) -> float:
        if metric not in self.metrics:
            known = sorted(self.metrics)
            hint = nearest(metric, known) or "."
            raise ConfigError("best_metric", f"{metric!r} is not evaluated{hint} Known: {known}")
        return self.metrics[metric]


def record(model_dir: str, evaluation: Evaluation) -> None:
    """Appends a line; `metrics` that are not finite become null, which JSON can say."""
    line = dataclasses.asdict(evaluation)
    line["metrics"] = {
        name: value if math.isfinite(value) else None for name, value in evaluation.metrics.items()
    }
    json_lines.append(os.path.join(model_dir, EVALUATIONS_FILE), line)


def read(model_dir: str, reader: str, up_to_step: Optional[int] = None) -> List[Evaluation]:
    """The evaluations of a reader so far, in order of steps, the last one of each step.

    Lines of later steps than `up_to_step` are those of a run that was lost or rolled back. A line
    that is cut off, as a killed process leaves it, is skipped with a warning.
    """
    evaluations: Dict[int, Evaluation] = {}
    for line in json_lines.read(os.path.join(model_dir, EVALUATIONS_FILE), _NEEDED):
        metrics = {k: math.nan if v is None else float(v) for k, v in line["metrics"].items()}
        if line["reader"] == reader and (up_to_step is None or line["step"] <= up_to_step):
            bad_records = line.get("bad_records", {})
            evaluations[line["step"]] = Evaluation(
                reader, line["step"], metrics, line["notes"], bad_records, line["time"]
            )
    return [evaluations[step] for step in sorted(evaluations)]


def mark_over(model_dir: str, step: int, reason: str) -> None:
    """Marks for other processes that no step and no checkpoint will follow."""
    mark = {"step": step, "reason": reason, "time": time.time()}
    path = os.path.join(model_dir, OVER_FILE)
    atomic.write(path, json.dumps(mark) + "\n")


def clear_over(model_dir: str) -> None:
    """Undoes `mark_over`: training begins or resumes."""
    path = os.path.join(model_dir, OVER_FILE)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def last_step(model_dir: str) -> Optional[int]:
    """The step at which training ended; None while it may continue."""
    mark = _read_mark(model_dir)
    return None if mark is None else int(mark["step"])


def _read_mark(model_dir: str) -> Optional[Dict[str, Any]]:
    path = os.path.join(model_dir, OVER_FILE)
    marks = json_lines.read(path, ("step",))
    return marks[-1] if marks else None


class TrainingEnd:
    """Whether the chief of a cluster has ended training.

    A mark that was there when this process started may be that of an earlier run, which the chief
    resumes: it counts only if training had got to `num_steps`, its last step.
    """

    def __init__(self, model_dir: str, num_steps: Optional[int]) -> None:
        self._model_dir, self._num_steps = model_dir, num_steps
        self._earlier = _read_mark(model_dir)

    def is_reached(self) -> bool:
        mark = _read_mark(self._model_dir)
        if mark is None:
            return False
        is_reached = self._num_steps is not None and int(mark["step"]) >= self._num_steps
        return is_reached or mark != self._earlier


def is_better(metric: str, value: float, than: float, min_delta: float = 0.0) -> bool:
    """True if `value` beats `than` by more than `min_delta`, less of a loss, more of others.

    NaN beats nothing.
    """
    if math.isnan(value):
        return False
    if math.isnan(than):
        return True
    gain = than - value if "loss" in metric.lower() else value - than
    return gain > min_delta


def evaluations_without_progress(
    evaluations: List[Evaluation], metric: str, min_delta: float = 0.0
) -> int:
    """Number of evaluations since the best one."""
    best, since = math.nan, 0
    for evaluation in evaluations:
        value = evaluation.value(metric)
        if is_better(metric, value, best, min_delta):
            best, since = value, 0
        elif not math.isnan(best):
            since += 1
    return since

"""The evaluations of a run in order, one line of `evaluations.jsonl` each, for a resumed run."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from typing import Dict, List, Optional

from estimator_det.config.text import nearest
from estimator_det.errors import UsageError
from estimator_det.files import json_lines
from model_fn.evaluation.matching import Matches

MetricValues = Dict[str, float]

EVALUATIONS_FILE = "evaluations.jsonl"
_NEEDED = ("reader", "step", "metrics", "notes", "time")  # Earlier versions had no `bad_records`.


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of a checkpoint on a reader: one line of `evaluations.jsonl`, and its matches."""

    reader: str
    step: int
    metrics: MetricValues
    notes: Dict[str, str] = dataclasses.field(default_factory=dict)  # why a metric is -1, 0 or NaN
    bad_records: Dict[str, int] = dataclasses.field(default_factory=dict)  # `FaultLog.counts`
    time: float = dataclasses.field(default_factory=time.time)  # seconds since 1970
    # None where the line was read.
    matches: Optional[Matches] = dataclasses.field(default=None, compare=False, repr=False)

    def value(self, metric: str) -> float:
        if metric not in self.metrics:
            known = sorted(self.metrics)
            hint = nearest(metric, known) or "."
            raise UsageError(f"best_metric: {metric!r} is not evaluated{hint} Known: {known}")
        return self.metrics[metric]


def record(model_dir: str, evaluation: Evaluation) -> None:
    """Appends a line; `metrics` that are not finite become null, which JSON can say."""
    line = {key: value for key, value in vars(evaluation).items() if key != "matches"}
    line["metrics"] = {
        name: value if math.isfinite(value) else None for name, value in evaluation.metrics.items()
    }
    json_lines.append(os.path.join(model_dir, EVALUATIONS_FILE), line)


def read(model_dir: str, reader: str, up_to_step: Optional[int] = None) -> List[Evaluation]:
    """The evaluations of a reader so far, in order of steps, the last one of each step.

    Lines of steps after `up_to_step` are from a run that was lost or rolled back. A line
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


def is_better(
    value: float, than: float, min_delta: float = 0.0, *, lower_is_better: bool = False
) -> bool:
    """True if `value` beats `than` by more than `min_delta`; NaN beats nothing."""
    if math.isnan(value):
        return False
    if math.isnan(than):
        return True
    gain = than - value if lower_is_better else value - than
    return gain > min_delta


def evaluations_without_progress(
    evaluations: List[Evaluation],
    metric: str,
    min_delta: float = 0.0,
    *,
    lower_is_better: bool = False,
) -> int:
    """Number of evaluations since the best one."""
    best, since = math.nan, 0
    for evaluation in evaluations:
        value = evaluation.value(metric)
        if is_better(value, best, min_delta, lower_is_better=lower_is_better):
            best, since = value, 0
        elif not math.isnan(best):
            since += 1
    return since

"""Reports of a run: its event files, which TensorBoard reads, and progress.jsonl."""

from __future__ import annotations

import datetime
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from estimator_det.compat import tf, tf1
from estimator_det.files import json_lines

PROGRESS_FILE = "progress.jsonl"  # in model_dir
GRADIENT_NORM = "gradient_norm"  # among the values of a report
FAULTS_FOLDER = "faults"  # in model_dir: records, checkpoints and steps that could not be used


def event_writer(folder: str) -> Any:
    """The writer of a folder's events, which Estimators use, too."""
    with tf.Graph().as_default():  # A writer refuses to be made without a graph.
        return tf1.summary.FileWriterCache.get(folder)


def write_figures(
    folder: str, figures: Mapping[str, float], step: int, *, flush: bool = False
) -> None:
    """Writes numbers by tag to TensorBoard, into the event file of the Estimator."""
    if not figures:
        return
    summary = tf1.Summary()
    for tag, value in figures.items():
        summary.value.add(tag=tag, simple_value=value)
    writer = event_writer(folder)
    writer.add_summary(summary, step)
    if flush:
        writer.flush()


def append_progress(model_dir: str, entry: Dict[str, Any]) -> None:
    """Appends a line to progress.jsonl, with the time (UTC)."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
    json_lines.append(os.path.join(model_dir, PROGRESS_FILE), {"time": now, **entry})


class ProgressReport(NamedTuple):
    """Figures of a run at a step; rates and waits cover the time since the previous report."""

    step: int
    num_steps: Optional[int]  # None: until it is stopped
    values: Dict[str, float]  # loss terms, learning rate, gradient norm
    # None where it is not known, as at the first step or without a GPU.
    images_per_second: Optional[float] = None
    input_wait_share: Optional[float] = None  # part of the time in steps, 0..1
    memory_bytes: Optional[float] = None  # main memory that the process holds
    accelerator_memory_bytes: Optional[float] = None  # in use on the first GPU
    seconds_left: Optional[float] = None

    def line(self) -> str:
        of = f"/{self.num_steps}" if self.num_steps else ""
        parts = [f"step {self.step}{of}", " ".join(self.numbers()), *self.rates()]
        if self.seconds_left is not None:
            parts.append(f"{datetime.timedelta(seconds=round(self.seconds_left))} left")
        return " | ".join(parts)

    def numbers(self) -> List[str]:
        return [
            f"{short_name(name)} {value:.4g}"
            for name, value in self.values.items()
            if name != GRADIENT_NORM
        ]

    def ranked_figures(self) -> List[str]:
        """All figures, the total loss and the speed first: a terminal may be narrow."""
        numbers = sorted(self.numbers(), key=lambda number: not number.startswith("total "))
        rates = sorted(self.rates(), key=lambda rate: not rate.endswith("images/s"))
        return [*numbers[:1], *rates[:1], *numbers[1:], *rates[1:]]

    def rates(self) -> List[str]:
        rates = (
            (self.images_per_second, 1, "{:.1f} images/s"),
            (self.input_wait_share, 1, "input wait {:.0%}"),
            (self.memory_bytes, 1e9, "{:.2f} GB"),
            (self.accelerator_memory_bytes, 1e9, "GPU {:.2f} GB"),
        )
        return [text.format(value / unit) for value, unit, text in rates if value is not None]

    def figures(self) -> Dict[str, float]:
        """Figures besides `values`, by name and in basic units."""
        _, _, _, *names = self._fields
        figures = {name: getattr(self, name) for name in names}
        return {name: float(value) for name, value in figures.items() if value is not None}


def short_name(name: str) -> str:
    """Name of a scalar for a line: "Loss/RPNLoss/objectness_loss" becomes "RPN/objectness"."""
    return name.removeprefix("Loss/").replace("Loss/", "/").replace("_loss", "")


def write_report(model_dir: str, report: ProgressReport, fault_counts: Mapping[str, int]) -> None:
    """Appends a report to progress.jsonl, and writes to TensorBoard what the graph cannot compute.

    The graph does not know rates, memory and faults of records.
    """
    figures = report.figures()
    append_progress(model_dir, {"step": report.step, **report.values, **figures})
    tags = {f"run/{name}": value for name, value in figures.items()}
    tags.update({f"bad_records/{kind}": count for kind, count in fault_counts.items()})
    write_figures(model_dir, tags, report.step)

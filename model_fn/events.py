"""Reports of a run: its event files, which TensorBoard reads, and progress.jsonl."""

from __future__ import annotations

import datetime
import os
from typing import Any, Dict, Mapping

from estimator_det.compat import tf, tf1
from estimator_det.files import json_lines

PROGRESS_FILE = "progress.jsonl"  # in model_dir
FAULTS_FOLDER = "faults"  # in model_dir: records, checkpoints and steps that could not be used


def event_writer(folder: str) -> Any:
    """The writer of a folder's events, which Estimators use, too."""
    with tf.Graph().as_default():  # It refuses to be made without one.
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
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    json_lines.append(os.path.join(model_dir, PROGRESS_FILE), {"time": now, **entry})

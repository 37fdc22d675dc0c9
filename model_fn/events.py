"""The event files of a run, which TensorBoard reads."""

from __future__ import annotations

from typing import Any, Mapping

from estimator_det.compat import tf, tf1


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

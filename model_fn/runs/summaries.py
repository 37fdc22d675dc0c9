"""Writes the summaries of training steps for TensorBoard."""

from __future__ import annotations

from typing import Any, Optional

from estimator_det.compat import tf1
from model_fn.runs.progress import step_after
from model_fn.training.step import TrainGraph
from model_fn.training.step_summary import StepSummary


class SummaryHook(tf1.train.SessionRunHook):
    """Writes a summary after the first step, and then every so many steps.

    Args:
        model_dir: Gets the events.
        graph: Of the training; its step has a summary.
        every_steps: Steps between two summaries.
    """

    def __init__(self, model_dir: str, graph: TrainGraph, every_steps: int) -> None:
        self._model_dir, self._graph = model_dir, graph
        self._timer = tf1.train.SecondOrStepTimer(every_steps=every_steps)
        self._summary: Optional[StepSummary] = None
        self._step: Any = None
        self._next_step: Optional[int] = None  # None before the first step
        self._is_due = False

    def begin(self) -> None:
        self._summary, self._next_step = self._graph.step.summary, None
        self._step = step_after(self._graph.step.train_op)

    def before_run(self, run_context: Any) -> Any:
        del run_context
        assert self._summary is not None
        self._is_due = self._next_step is None or self._timer.should_trigger_for_step(
            self._next_step
        )
        return tf1.train.SessionRunArgs(
            {"step": self._step, "summary": self._summary.serialized},
            feed_dict={self._summary.is_due: self._is_due},
        )

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        step = int(run_values.results["step"])
        writer = tf1.summary.FileWriterCache.get(self._model_dir)
        if self._next_step is None:
            # What a run before this one wrote about later steps counts no more.
            writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), step)
        if self._is_due:
            self._timer.update_last_triggered_step(step)
            writer.add_summary(run_values.results["summary"], step)
        self._next_step = step + 1

    def end(self, session: tf1.Session) -> None:
        del session
        tf1.summary.FileWriterCache.get(self._model_dir).flush()

"""Writes the summaries of training steps for TensorBoard."""

from __future__ import annotations

import time
from typing import Optional, Tuple

from estimator_det.compat import tf1
from model_fn.evaluation.report import event_writer, write_figures
from model_fn.runs.context import RunContext
from model_fn.runs.hooks import Hook, StepResult


class SummaryHook(Hook):
    """Writes the summaries of steps, and the speed between two of them."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._last: Optional[Tuple[int, float]] = None  # step and time of the last summary

    def begin(self, context: RunContext, step: int) -> None:
        del context, step
        self._last = None

    def after_step(self, result: StepResult) -> None:
        if not result.summary:
            return
        writer, now = event_writer(self._model_dir), time.monotonic()
        if self._last is None:
            # What a run before this one wrote about later steps counts no more.
            writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.START), result.step)
        else:
            step, seconds = self._last
            rate = (result.step - step) / max(now - seconds, 1e-9)
            write_figures(self._model_dir, {"global_step/sec": rate}, result.step)
        self._last = result.step, now
        writer.add_summary(result.summary, result.step)

    def end(self, step: int) -> None:
        del step
        event_writer(self._model_dir).flush()

"""Hooks that report the progress of a training: on the terminal, as JSON and in TensorBoard."""

from __future__ import annotations

import math
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.console import bars, printing
from estimator_det.errors import NotFiniteLossError
from inputs import machine
from inputs.bad_records.log import FaultLog
from model_fn.debugging import bad_step
from model_fn.events import (
    ProgressReport,
    append_progress,
    event_writer,
    write_figures,
    write_report,
)
from model_fn.runs.backends.base import Training
from model_fn.runs.context import Hook, RunContext, StepResult

TPU_REMEDY = (
    "If the loss grew before, lower the learning rate or lengthen its warm-up; on CPU or GPU the "
    "step at fault would be rejected and saved"
)


def describe_bad_step(result: StepResult) -> str:
    """The message for a bad step that this process does not save."""
    return f"step {result.step + 1}: not finite: {_bad_values(result)}"


def describe_bad_loop(result: StepResult) -> str:
    """The message for steps on a TPU, where nothing rejects a bad step."""
    return f"not finite in the steps up to {result.step}: {_bad_values(result)}. {TPU_REMEDY}"


def _bad_values(result: StepResult) -> str:
    bad = {name: value for name, value in result.values.items() if not math.isfinite(value)}
    return f"{bad}; all: {result.values}"


class TrainingReport(Hook):
    """Reports progress: a bar on a terminal, elsewhere a line after every `every_steps`.

    The first step is reported as soon as it is done, and the last one however training ends.
    A value that is not finite ends training with a `NotFiniteLossError`, whose message
    `on_bad_step` returns.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        every_steps: int = 20,
        silent: bool = False,
        listener: Callable[[ProgressReport], None] = lambda _: None,
        on_bad_step: Callable[[StepResult], str] = describe_bad_step,
    ) -> None:
        self._batch_size, self._every_steps, self._silent = batch_size, every_steps, silent
        self._listener, self._on_bad_step = listener, on_bad_step
        self._bar: Optional[Any] = None
        self._num_steps: Optional[int] = None
        self._step = self._first_step = self._reported = 0
        self._values: Dict[str, float] = {}  # values of the current step
        self._num_taken = 0  # steps of this process
        self._durations: List[float] = []  # from the end of a step to the end of the next
        self._waits: List[Tuple[float, float]] = []  # for the batch, and of the whole step
        self._started = self._ended = 0.0

    def begin(self, context: RunContext, step: int) -> None:
        self._num_steps = context.num_steps
        self._step = self._first_step = self._reported = step
        self._started = self._ended = time.monotonic()
        if self._bar is None and not self._silent and bars.has_room(sys.stderr):
            self._bar = bars.make_steps_bar(self._num_steps, self._step, sys.stderr)

    def before_step(self, step: int) -> None:
        del step
        self._started = time.monotonic()

    def after_step(self, result: StepResult) -> None:
        before, now = self._step, time.monotonic()
        self._step = result.step
        self._num_taken += result.num_taken
        if result.num_taken and before != self._first_step:  # The first also optimizes the graph.
            self._durations.append((now - self._ended) / result.num_taken)
            if result.input_wait is not None:
                self._waits.append((result.input_wait, now - self._started))
        self._ended = now
        if not result.is_finite:
            if self._bar is not None:
                self._bar.close()
            raise NotFiniteLossError(self._on_bad_step(result))
        self._values = dict(result.scalars)
        is_last = self._num_steps is not None and self._step >= self._num_steps
        every = self._every_steps
        is_due = self._step // every > before // every
        if before == self._first_step or is_last or is_due:
            self._report()
        if self._bar is not None:
            self._bar.update(self._step - before)

    def end(self, step: int) -> None:
        del step
        if self._step != self._reported:  # Nobody knew that it was the last.
            self._report()
        if self._bar is not None:
            self._bar.close()

    def _report(self) -> None:
        self._reported = self._step
        if not self._values:
            return
        report = self._current()
        self._listener(report)
        if self._bar is not None:
            bars.set_figures(self._bar, report.ranked_figures())
        elif not self._silent:
            printing.report(report.line(), sys.stderr)
        self._durations, self._waits = self._durations[-self._every_steps :], []

    def _current(self) -> ProgressReport:
        report = ProgressReport(
            self._step,
            self._num_steps,
            self._values,
            memory_bytes=machine.resident_memory(),
            accelerator_memory_bytes=accelerator_memory(),
        )
        if self._waits:
            waited, total = (sum(column) for column in zip(*self._waits))
            report = report._replace(input_wait_share=min(max(waited / max(total, 1e-9), 0.0), 1.0))
        if not self._durations:
            return report
        # The median: a step in which a checkpoint is saved or evaluated says nothing.
        seconds = max(statistics.median(self._durations), 1e-6)
        report = report._replace(images_per_second=self._batch_size / seconds)
        if self._num_steps:
            steps_left = max(self._num_steps - self._step, 0)
            # Share of the steps that this process took.
            share = self._num_taken / max(self._step - self._first_step, 1)
            report = report._replace(seconds_left=steps_left * share * seconds)
        return report


def accelerator_memory() -> Optional[float]:
    """Bytes in use on the first GPU of this process; None without a GPU."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    return float(tf.config.experimental.get_memory_info("GPU:0")["current"])


def training_hooks(context: RunContext, training: Training, fault_log: FaultLog) -> List[Hook]:
    """Builds the hooks that report progress, and end training at a step that is not finite.

    The chief writes progress.jsonl, events, and the folder of a bad step to model_dir.
    """
    options, model_dir, is_chief = context.options, context.model_dir, context.cluster.is_chief

    def on_bad_step(result: StepResult) -> str:
        report = bad_step.save_bad_step(
            training, result.rejected, context.config, model_dir, result.step + 1, result.values
        )
        entry = {"step": report.step, "not_finite": report.not_finite, "folder": report.folder}
        append_progress(model_dir, entry)
        event_writer(model_dir).flush()  # The run ends without `Hook.end`.
        return bad_step.summary_text(report)

    describe = on_bad_step if is_chief else describe_bad_step

    def write(report: ProgressReport) -> None:
        write_report(model_dir, report, fault_log.counts())

    report = TrainingReport(
        context.config.train_config.batch_size,
        every_steps=options.tpu.iterations_per_loop if options.tpu else options.progress_steps,
        # Workers of the TF2 loop have the same numbers as their chief.
        silent=not options.progress or (options.loop is not None and not is_chief),
        listener=write if is_chief else lambda _: None,
        on_bad_step=describe_bad_loop if options.tpu else describe,
    )
    return [report, *([_SummaryHook(model_dir)] if is_chief else [])]


class _SummaryHook(Hook):
    """Writes the summaries of steps, and the speed between two of them."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._last: Optional[Tuple[int, float]] = None  # step and time of the last summary

    def after_step(self, result: StepResult) -> None:
        if not result.summary:
            return
        writer, now = event_writer(self._model_dir), time.monotonic()
        if self._last is None:
            # TensorBoard drops later steps of a run before this one.
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

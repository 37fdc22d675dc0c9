"""Progress of a training run: on the terminal, as JSON lines and in TensorBoard."""

from __future__ import annotations

import datetime
import math
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, TextIO, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config import bars, json_lines, printing
from model_fn.debugging import bad_step
from model_fn.evaluation.report import write_figures
from model_fn.runs.context import RunContext
from model_fn.training.step import GRADIENT_NORM, TrainGraph

PROGRESS_FILE = "progress.jsonl"

_GIGA = 1e9


class NotFiniteLossError(RuntimeError):
    """A loss term, or the norm of the gradients, became NaN or infinite; the message names it."""


class ProgressReport(NamedTuple):
    """Figures of a run at a step; those over time are of the steps since the report before."""

    step: int
    num_steps: Optional[int]  # None for a training without end
    values: Dict[str, float]  # loss terms, learning rate, gradient norm
    images_per_second: Optional[float] = None  # None at the first step
    input_wait: Optional[float] = None  # share of the time in steps, 0..1
    memory: Optional[float] = None  # bytes of main memory that the process holds
    accelerator_memory: Optional[float] = None  # bytes in use on the first GPU; None without one
    seconds_left: Optional[float] = None

    def line(self) -> str:
        """For a terminal or a log."""
        of = f"/{self.num_steps}" if self.num_steps else ""
        parts = [f"step {self.step}{of}", " ".join(self.numbers()), *self.rates()]
        if self.seconds_left is not None:
            parts.append(f"{datetime.timedelta(seconds=round(self.seconds_left))} left")
        return " | ".join(parts)

    def numbers(self) -> List[str]:
        """Loss terms and learning rate."""
        return [
            f"{_short(name)} {value:.4g}"
            for name, value in self.values.items()
            if name != GRADIENT_NORM
        ]

    def by_importance(self) -> List[str]:
        """All figures, the total loss and the speed first: a terminal may be narrow."""
        numbers = sorted(self.numbers(), key=lambda number: not number.startswith("total "))
        rates = sorted(self.rates(), key=lambda rate: not rate.endswith("images/s"))
        return [*numbers[:1], *rates[:1], *numbers[1:], *rates[1:]]

    def rates(self) -> List[str]:
        """Speed, input and memory."""
        parts = []
        if self.images_per_second is not None:
            parts.append(f"{self.images_per_second:.1f} images/s")
        if self.input_wait is not None:
            parts.append(f"input wait {self.input_wait:.0%}")
        if self.memory is not None:
            parts.append(f"{self.memory / _GIGA:.2f} GB")
        if self.accelerator_memory is not None:
            parts.append(f"GPU {self.accelerator_memory / _GIGA:.2f} GB")
        return parts

    def figures(self) -> Dict[str, float]:
        """What is known besides `values`, by name and in basic units."""
        named = {
            "images_per_second": self.images_per_second,
            "input_wait_share": self.input_wait,
            "memory_bytes": self.memory,
            "accelerator_memory_bytes": self.accelerator_memory,
            "seconds_left": self.seconds_left,
        }
        return {name: float(value) for name, value in named.items() if value is not None}


Listener = Callable[[ProgressReport], None]
OnBadStep = Callable[[tf1.Session, int, Dict[str, float]], str]  # session, step, values -> message


class TrainingReport(tf1.train.SessionRunHook):
    """Reports progress: a bar on a terminal, elsewhere a line every so many steps.

    The first step is reported as soon as it is done, and the last one however training ends.
    A value that is not finite ends it with `NotFiniteLossError`.

    Args:
        batch_size: Images per step, for the rate.
        graph: Of the training.
        num_steps: The global step at which training ends; None if it does not.
        every_steps: Steps between two reports.
        silent: Nothing on the terminal.
        stream: Where to write; standard error by default.
        listeners: Get the figures of every report.
        on_bad_step: Called where a value is not finite; gives the message of the error.
        shares_steps: Whether other workers of a cluster take steps, too.
    """

    def __init__(
        self,
        batch_size: int,
        graph: TrainGraph,
        num_steps: Optional[int] = None,
        *,
        every_steps: int = 20,
        silent: bool = False,
        stream: Optional[TextIO] = None,
        listeners: Sequence[Listener] = (),
        on_bad_step: Optional[OnBadStep] = None,
        shares_steps: bool = False,
    ) -> None:
        self._shares_steps = shares_steps
        self._batch_size = batch_size
        self._graph = graph
        self._num_steps = num_steps
        self._every_steps = every_steps
        self._silent = silent
        self._stream = stream or sys.stderr
        self._listeners = list(listeners)
        self._on_bad_step = on_bad_step
        self._bar: Optional[Any] = None
        self._fetches: Any = {}
        self._step = 0
        self._first_step = 0
        self._num_runs = 0  # of this process
        self._reported = 0  # step of the last report
        self._values: Dict[str, float] = {}  # of the current step
        self._started = 0.0  # the current step
        self._ended = 0.0  # the step before
        self._durations: List[float] = []  # from end to end
        self._waits: List[Tuple[float, float]] = []  # for the batch, and of the whole step

    def begin(self) -> None:
        step = self._graph.step
        self._fetches = {
            "values": step.scalars,
            "checks": step.checks,
            "wait": step.input_wait,
        }
        if step.num_taken is not None:
            self._fetches["taken"] = step.num_taken
        self._global_step = tf1.train.get_global_step()
        if self._shares_steps:
            self._fetches["step"] = step_after(step.train_op)

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        del coord
        self._step = self._first_step = int(session.run(self._global_step))
        self._reported, self._values, self._num_runs = self._step, {}, 0
        self._durations, self._waits = [], []
        self._ended = time.monotonic()
        if self._bar is None and not self._silent and bars.has_room(self._stream):
            self._bar = bars.make_steps_bar(self._num_steps, self._step, self._stream)

    def before_run(self, run_context: Any) -> Any:
        del run_context
        self._started = time.monotonic()
        # At every step: a changing set of fetches would cost more.
        return tf1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        before, now, results = self._step, time.monotonic(), run_values.results
        taken = int(results.get("taken", 1))
        self._step = int(results.get("step", before + taken))
        self._num_runs += 1
        if taken and before != self._first_step:  # The first run also optimizes the graph.
            self._durations.append((now - self._ended) / taken)
            self._waits.append((float(run_values.results["wait"]), now - self._started))
        self._ended = now
        values = {name: float(value) for name, value in run_values.results["values"].items()}
        checks = {name: float(value) for name, value in run_values.results["checks"].items()}
        bad = {name: value for name, value in checks.items() if not math.isfinite(value)}
        if bad or not all(math.isfinite(value) for value in values.values()):
            if "taken" in run_values.results:
                self._step += 1  # Only steps before it were taken.
            raise NotFiniteLossError(self._bad_step(run_context, {**values, **bad}))
        self._values = values
        is_last = self._num_steps is not None and self._step >= self._num_steps
        every = self._every_steps
        is_due = self._step // every > before // every
        if before == self._first_step or is_last or is_due:
            self._report()
        if self._bar is not None:
            self._bar.update(self._step - before)

    def end(self, session: tf1.Session) -> None:
        del session
        if self._step != self._reported:  # Nobody knew that it was the last.
            self._report()
        if self._bar is not None:
            self._bar.close()

    def _bad_step(self, run_context: Any, values: Dict[str, float]) -> str:
        if self._bar is not None:
            self._bar.close()
        if self._on_bad_step is not None:
            return self._on_bad_step(run_context.session, self._step, values)
        bad = {name: value for name, value in values.items() if not math.isfinite(value)}
        return f"step {self._step}: not finite: {bad}; all: {values}"

    def _report(self) -> None:
        self._reported = self._step
        if not self._values or (self._silent and not self._listeners):
            return
        report = self._current(self._values)
        for listener in self._listeners:
            listener(report)
        if self._bar is not None:
            bars.set_figures(self._bar, report.by_importance())
        elif not self._silent:
            printing.report(report.line(), self._stream)
        self._durations, self._waits = self._durations[-self._every_steps :], []

    def _current(self, values: Dict[str, float]) -> ProgressReport:
        report = ProgressReport(
            self._step,
            self._num_steps,
            values,
            memory=resident_memory(),
            accelerator_memory=accelerator_memory(),
        )
        if self._waits:
            waited, total = (sum(column) for column in zip(*self._waits))
            report = report._replace(input_wait=min(max(waited / max(total, 1e-9), 0.0), 1.0))
        if not self._durations:
            return report
        # The median: a step in which a checkpoint is saved or evaluated says nothing.
        seconds = max(statistics.median(self._durations), 1e-6)
        report = report._replace(images_per_second=self._batch_size / seconds)
        if self._num_steps:
            runs_left = float(max(self._num_steps - self._step, 0))
            if self._shares_steps:
                runs_left *= self._num_runs / max(self._step - self._first_step, 1)
            report = report._replace(seconds_left=runs_left * seconds)
        return report


def step_after(train_op: Optional[tf.Tensor]) -> Any:
    """int64 scalar: the global step once `train_op` has run; of a cluster, of all workers.

    Without a `train_op`, in the TF2 loop, hooks read the step when all of it was taken.
    """
    if train_op is None:
        return tf1.train.get_global_step()
    with tf.control_dependencies([train_op]):
        return tf.identity(tf1.train.get_global_step().read_value())


def _short(name: str) -> str:
    """Name of a scalar for a line: "Loss/RPNLoss/objectness_loss" becomes "RPN/objectness"."""
    inner = name[len("Loss/") :] if name.startswith("Loss/") else name
    return inner.replace("Loss/", "/").replace("_loss", "")


def resident_memory() -> Optional[float]:
    """Bytes of main memory that this process holds now; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return None
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def accelerator_memory() -> Optional[float]:
    """Bytes in use on the first GPU of this process; None without a GPU."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    return float(tf.config.experimental.get_memory_info("GPU:0")["current"])


class JsonlLogger:
    """Appends each report to a file as a JSON line, with the time (UTC)."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, report: ProgressReport) -> None:
        self.write({"step": report.step, **report.values, **report.figures()})

    def write(self, entry: Dict[str, Any]) -> None:
        """Writes a line of other content."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        json_lines.append(self._path, {"time": now, **entry})


class TensorBoardLogger:
    """Writes what the graph does not compute to TensorBoard: rates, memory, faults of records."""

    def __init__(self, model_dir: str, fault_log: Optional[Any]) -> None:
        self._model_dir = model_dir
        self._fault_log = fault_log

    def __call__(self, report: ProgressReport) -> None:
        figures = {f"run/{name}": value for name, value in report.figures().items()}
        if self._fault_log is not None:
            counts = self._fault_log.counts().items()
            figures.update({f"bad_records/{kind}": count for kind, count in counts})
        write_figures(self._model_dir, figures, report.step)


def training_hooks(
    context: RunContext,
    graph: TrainGraph,
    *,
    every_steps: int = 20,
    silent: bool = False,
    fault_log: Optional[Any] = None,
    writes: bool = True,
    shares_steps: bool = False,
) -> List[Any]:
    """The hooks that report progress, and stop training at a step that is not finite.

    Args:
        context: Of the run; its model_dir gets progress.jsonl, events, and the folder of a bad
            step.
        graph: Of the training.
        every_steps: Steps between two reports.
        silent: Nothing on the terminal; files are written all the same.
        fault_log: An `inputs.bad_records.kinds.FaultLog`, whose counts go to TensorBoard.
        writes: False for the workers of a cluster that leave files to their chief.
        shares_steps: Whether other workers of a cluster take steps, too.
    """
    pipeline_config, model_dir = context.config, context.model_dir
    jsonl = JsonlLogger(os.path.join(model_dir, PROGRESS_FILE))

    def on_bad_step(session: tf1.Session, step: int, values: Dict[str, float]) -> str:
        report = bad_step.save_bad_step(session, graph, pipeline_config, model_dir, step, values)
        jsonl.write({"step": step, "not_finite": report.not_finite, "folder": report.folder})
        return bad_step.summary_text(report)

    return [
        TrainingReport(
            pipeline_config.train_config.batch_size,
            graph,
            context.num_steps,
            every_steps=every_steps,
            silent=silent,
            listeners=[jsonl, TensorBoardLogger(model_dir, fault_log)] if writes else [],
            on_bad_step=on_bad_step if writes else None,
            shares_steps=shares_steps,
        )
    ]

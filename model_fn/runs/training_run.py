"""One training run: its folder, its position in the data, its hooks, and what a signal leaves."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Callable, List, Optional

from estimator_det import files
from estimator_det.config import pipeline as configuration
from estimator_det.config import plugins
from estimator_det.config.differences import training_differences
from estimator_det.console.signals import Stopped, StopSignals
from estimator_det.errors import SessionLostError, UsageError
from estimator_det.files import lock
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.records.cursor import DataCursor
from model_fn.checkpoints import positions, repair, writing
from model_fn.checkpoints.find import newest_step, refuse_pattern
from model_fn.events import FAULTS_FOLDER
from model_fn.runs import progress, training_end
from model_fn.runs.backends.base import Backend, Training
from model_fn.runs.context import Hook, RunContext
from model_fn.runs.data_cursor import DataCursorHook, WorkerPositionHook
from model_fn.runs.evaluation_schedule import EvaluationSchedule
from model_fn.runs.saver import CheckpointSaver

_LOG = logging.getLogger(__name__)


class _Start(Hook):
    """Defers signals; the chief saves the configuration and clears an earlier version's mark.

    `begin` comes after the checkpoint was compared with the graph, so that a wrong configuration
    never replaces the old one.
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals

    def begin(self, context: RunContext, step: int) -> None:
        # An exception that a signal raised in a `__del__` was lost.
        context.stop.raise_if_requested()
        self._signals.defer()
        if context.cluster.is_chief:
            if step:
                _log_changes(context)
            configuration.save_pipeline(context.config, context.model_dir)
            training_end.clear_earlier(context.model_dir)


def _log_changes(context: RunContext) -> None:
    """Logs how a resumed training differs from the run in its folder, a line for each field."""
    path = os.path.join(context.model_dir, configuration.PIPELINE_FILE)
    if not files.exists(path):
        return
    try:
        before = configuration.parse_pipeline(files.read_text(path), path)
        modules = plugins.changes(context.model_dir)
    except UsageError as error:
        _LOG.warning("What the run was trained with is not known: %s", error)
        return
    for line in [*training_differences(before, context.config), *modules]:
        _LOG.warning("Resuming with a change: %s", line)


class TrainingRun:
    """A training run that holds its folder, with signals caught.

    Args:
        may_save: Raises if another process has taken the folder over; None if this process does
            not save.
    """

    def __init__(
        self,
        context: RunContext,
        backend: Backend,
        signals: StopSignals,
        may_save: Optional[Callable[[], None]],
        verify: bool,
    ) -> None:
        self._context, self._backend, self._signals = context, backend, signals
        model_dir = context.model_dir
        if may_save is None:
            resumed = newest_step(model_dir)
        else:
            keep_max = context.options.checkpoints.keep_max
            resumed = repair.prepare(model_dir, keep_max, verify=verify)
        self.first_step = backend.common_step(resumed or 0)
        # Positions are stored under the step in the name of a file. In a cluster the step inside
        # may be later, and the chief may just have replaced a damaged checkpoint.
        is_alone = context.cluster.task.is_alone
        named_step = resumed if is_alone else newest_step(model_dir)
        files = backend.position_files
        if self.first_step and not files:
            _LOG.warning(
                "By TPUEstimator, on TPUs of several hosts and with a tf.data service the position "
                "in the data is not saved: the data begin with a new epoch, in a new order"
            )
        self._cursors = {}  # by the files where they are saved
        for file in files:
            path = os.path.join(model_dir, file)
            state = positions.read(path, named_step, is_exact=is_alone)
            self._cursors[file] = DataCursor(state, self.first_step)
        self._may_save, self._resumed_step = may_save, resumed
        self._saver: Optional[CheckpointSaver] = None  # once training begins in the chief
        log_file = os.path.join(context.model_dir, FAULTS_FOLDER, LOG_FILE)
        self._faults = FaultLog(log_file if may_save is not None else None)

    def _is_over(self) -> bool:
        """True if there is nothing left to train, which is logged."""
        model_dir, num_steps = self._context.model_dir, self._context.num_steps
        if num_steps is None or self.first_step < num_steps:
            if num_steps is None and not self._context.config.train_input_reader.num_epochs:
                _LOG.warning(
                    "Training never ends: num_train_steps and train_input_reader.num_epochs are 0. "
                    "Set one of them, or stop the run by Ctrl-C or SIGTERM, which saves a "
                    "checkpoint"
                )
            if self.first_step:
                _LOG.info("Resuming at step %d from %s", self.first_step, model_dir)
            return False
        _LOG.warning(
            "%s is already trained to step %d of %d: nothing to do. Raise num_train_steps to "
            "continue, or choose another model_dir for a new run",
            model_dir,
            self.first_step,
            num_steps,
        )
        return True

    def train(self, evaluations: Optional[EvaluationSchedule]) -> None:
        """Trains to the last step; where none is left, only evaluations begin and end."""
        if not self._is_over():
            cursors = list(self._cursors.values())
            input_fn = self._backend.input_fn(cursors, self.first_step, self._faults)
            self._backend.train(input_fn, lambda training: self._hooks(training, evaluations))
        elif evaluations is not None:
            evaluations.begin(self.first_step)
            evaluations.end(self.first_step)
        self._mark_end()

    def log_faults(self) -> None:
        summary = self._faults.summary()
        if summary:
            _LOG.warning("%s", summary)

    def _mark_end(self) -> None:
        """Marks for evaluators that no checkpoint will follow, unless a signal ended training."""
        step, last = self._saved_step, self._context.num_steps
        if self._may_save is None or step is None or self._context.stop.cause:
            return
        reason = "num_train_steps" if last is not None and step >= last else "stopped early"
        training_end.mark_over(self._context.model_dir, step, reason)

    @property
    def _saved_step(self) -> Optional[int]:
        return self._resumed_step if self._saver is None else self._saver.saved_step

    def _hooks(self, training: Training, evaluations: Optional[EvaluationSchedule]) -> List[Hook]:
        """Returns all hooks of the run in order: a step that one of them rejects is not saved."""
        context = self._context
        hooks = [
            _Start(self._signals),
            *progress.training_hooks(context, training, self._faults),
            *(hook for hook in context.options.hooks if isinstance(hook, Hook)),
        ]
        for reader, (file, cursor) in enumerate(self._cursors.items()):
            hooks.append(DataCursorHook(cursor, reader))
            if self._may_save is None:
                hooks.append(WorkerPositionHook(context.model_dir, cursor, file))
        if self._may_save is not None:
            self._saver = CheckpointSaver(
                context,
                training,
                self._signals,
                self._may_save,
                self._resumed_step,
                self._cursors,
                evaluations,
            )
            hooks.append(self._saver)
        return hooks

    def stopped_text(self, number: int) -> str:
        """Message about a stop by a signal: the step that is saved, and how to continue."""
        text = str(Stopped(number))
        if self._may_save is None:
            return text
        model_dir, num_steps = self._context.model_dir, self._context.num_steps
        step = self._saved_step
        if step is None:
            return f"{text} before training began"
        if num_steps is not None and step >= num_steps:
            return (
                f"{text} after the last step, {step}, which is saved in {model_dir}; for its "
                f"metrics: estimator-det evaluate --model_dir {model_dir}"
            )
        return (
            f"{text} at step {step}, which is saved in {model_dir}; run the same command again to "
            "resume from there"
        )


def train(
    context: RunContext,
    make_backend: Callable[[], Backend],
    evaluations: Optional[EvaluationSchedule],
    *,
    verify: bool,
) -> None:
    """Trains to the last step; signals are caught, and no other process writes the folder.

    Args:
        make_backend: Called once the folder is held: it may wait for machines and set up devices.
        verify: Read all of the checkpoint to resume from before it is restored.
    """
    run: Optional[TrainingRun] = None
    try:
        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(StopSignals(context.stop))
            model_dir, kept = context.model_dir, "Checkpoints are intact"
            may_save: Optional[Callable[[], None]] = None
            if not context.cluster.is_chief:
                stack.enter_context(writing.explained_errors(model_dir, kept=kept))
            else:
                refuse_pattern(model_dir, "model_dir")
                stack.enter_context(writing.writable_folder(model_dir, "model_dir", kept=kept))
                may_save = stack.enter_context(lock.locked(model_dir))
            backend = make_backend()
            stack.enter_context(backend.running())
            run = TrainingRun(context, backend, signals, may_save, verify)
            stack.callback(run.log_faults)
            try:
                run.train(evaluations)
            except SessionLostError:
                context.stop.raise_if_requested()  # rather than begin again
                raise
            context.stop.raise_if_requested()
    except Stopped as stopped:
        number = stopped.signal_number
        raise Stopped(number, run.stopped_text(number) if run else "") from None

"""Saves the checkpoints of a training, which are never overwritten."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Mapping, Optional

from estimator_det.compat import tf1
from estimator_det.console.signals import Stopped, StopSignals
from inputs.records.cursor import DataCursor
from model_fn.checkpoints import positions, repair, writing
from model_fn.checkpoints.kept import KeptCheckpoints
from model_fn.events import event_writer
from model_fn.runs.backends.base import Training
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.evaluation_schedule import EvaluationSchedule


class CheckpointSaver(Hook):
    """Saves checkpoints when it is time, and when evaluations ask for one.

    * The checkpoint that training resumed from is not saved again: a process killed in that moment
      would leave its newest checkpoint in pieces.
    * On a signal it saves without evaluating, and a signal ends an evaluation at once.
    * The files of a checkpoint reach the disk before the file `checkpoint` names it.
    * An error names folder, free space and file; half-written files are deleted.

    `may_save` raises if another process has taken the folder over; `resumed_step` is None for a new
    run; `cursors` are by the files where their states are saved with each checkpoint.
    """

    def __init__(
        self,
        context: RunContext,
        training: Training,
        signals: StopSignals,
        may_save: Callable[[], None],
        resumed_step: Optional[int],
        cursors: Mapping[str, DataCursor],
        evaluations: Optional[EvaluationSchedule],
    ) -> None:
        self._model_dir, self._training = context.model_dir, training
        self._stop, self._signals = context.stop, signals
        self._may_save, self._cursors = may_save, cursors
        saving = self._saving = context.options.checkpoints
        self._last_step, self._last_secs = 0, 0.0  # when the last checkpoint was due
        keep_hours = context.config.train_config.keep_checkpoint_every_n_hours
        self._kept = KeptCheckpoints(context.model_dir, saving.keep_max, keep_hours)
        self._evaluations = evaluations
        self.saved_step = resumed_step

    def begin(self, context: RunContext, step: int) -> None:
        del context
        graph_def = self._training.graph_def()
        event = tf1.Event(wall_time=time.time(), graph_def=graph_def.SerializeToString())
        event_writer(self._model_dir).add_event(event)
        self._save(step)
        if self._evaluations is not None:
            self._evaluate(self._evaluations.begin, step)
        self._last_step, self._last_secs = step, time.monotonic()

    def after_step(self, result: StepResult) -> None:
        step = result.step
        is_due = self._is_due(step)
        if is_due:
            self._last_step, self._last_secs = step, time.monotonic()
        evaluations = self._evaluations
        if is_due or (evaluations is not None and evaluations.wants_checkpoint(step)):
            self._save(step)
            if evaluations is not None:
                self._evaluate(evaluations.after_save, step)

    def _is_due(self, step: int) -> bool:
        if self._saving.secs is None:
            return step >= self._last_step + (self._saving.steps or 1)
        # TensorFlow's timer waits for as long as somebody sets the clock of the machine back.
        return time.monotonic() >= self._last_secs + self._saving.secs

    def end(self, step: int) -> None:
        """Saves the last step, and evaluates it unless a signal ended training."""
        self._save(step)
        if self._evaluations is not None:
            self._evaluate(self._evaluations.end, step)

    def _evaluate(self, evaluate: Callable[[int], Optional[bool]], step: int) -> None:
        if self._stop.cause is None:
            with contextlib.suppress(Stopped), self._signals.immediate():
                if evaluate(step):
                    self._stop.request()

    def _save(self, step: int) -> None:
        if step == self.saved_step:
            return
        name = f"model.ckpt-{step}"
        prefix = os.path.join(self._model_dir, name)
        # Another process may have taken the folder over while this one was suspended.
        self._may_save()
        try:
            for file, cursor in self._cursors.items():
                if cursor.state is not None:
                    positions.write(os.path.join(self._model_dir, file), step, cursor.state)
            self._training.save(prefix)
            # Before `checkpoint` names it: a crash of the machine must not leave a name without
            # data.
            repair.write_through(prefix)
            self._kept.add(name)
        except writing.WRITE_ERRORS as error:
            kept = "No checkpoint was saved before it"
            if self.saved_step is not None:
                last = f"The last whole checkpoint is of step {self.saved_step}"
                kept = f"{last}, which is intact"
            explained = writing.explained(error, self._model_dir, name, kept)  # with free space
            repair.remove_remains(prefix)
            if not writing.is_write_error(error):
                raise
            raise explained from error
        self.saved_step = step
        saved = tf1.SessionLog(status=tf1.SessionLog.CHECKPOINT, checkpoint_path=prefix)
        event_writer(self._model_dir).add_session_log(saved, step)

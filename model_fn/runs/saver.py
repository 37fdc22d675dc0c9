"""How training saves: checkpoints that are never overwritten."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Mapping, Optional, Sequence

from estimator_det.compat import tf, tf1
from inputs.records.cursor import DataCursor
from model_fn.checkpoints import repair, writing
from model_fn.checkpoints.errors import UnreadableCheckpointError
from model_fn.runs import data_cursor
from model_fn.runs.backends import Backend
from model_fn.runs.context import RunContext
from model_fn.runs.signals import Stopped, StopSignals
from model_fn.runs.stop import Stop

GRAPH_FILE = "graph.pbtxt"  # the training graph as text


class StopAfterStep(tf1.train.SessionRunHook):
    """Ends training after the step during which a signal arrived.

    Args:
        stop: The run's.
        signals: Entered; a signal raises until the session is there, and is noted from then on.
    """

    def __init__(self, stop: Stop, signals: StopSignals) -> None:
        self._stop, self._signals = stop, signals

    def begin(self) -> None:
        # An exception that a signal raised in a `__del__` was lost.
        self._stop.raise_if_requested()

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        del session, coord
        self._stop.raise_if_requested()
        self._signals.defer()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        if self._stop.is_requested:
            run_context.request_stop()


class CheckpointListener(tf1.train.CheckpointSaverListener):
    """A listener of a `CheckpointSaver` that may ask for checkpoints."""

    def wants_checkpoint(self, step: int) -> bool:
        """Whether this step, or one since the last checkpoint, is to be saved."""
        del step
        return False


class CheckpointSaver(tf1.train.CheckpointSaverHook):
    """Saves when the hook it derives from does, and when a `CheckpointListener` asks for it.

    It replaces that hook's private `_save`:

    * what training resumed from is not saved again. TensorFlow would write the same files in
      place, and a process killed in that moment would leave its newest checkpoint in pieces;
    * on a signal it saves without evaluating, and a signal ends an evaluation at once;
    * its files reach the disk itself before the `checkpoint` file names it;
    * an error names folder, free space and file, and what it left half-written is deleted.

    The listeners' first call stands for the state that training starts from.

    Args:
        context: Of the run.
        backend: Of the run; its graph has the saver.
        signals: Entered.
        may_save: Raises where the folder has become another process's.
        resumed_step: Step of the checkpoint that is restored; None where there is none.
        cursors: By the files where their states are saved with each checkpoint.
    """

    def __init__(
        self,
        context: RunContext,
        backend: Backend,
        signals: StopSignals,
        may_save: Callable[[], None],
        resumed_step: Optional[int],
        cursors: Mapping[str, DataCursor],
    ) -> None:
        saving = context.options.checkpoints
        super().__init__(context.model_dir, save_secs=saving.secs, save_steps=saving.steps)
        self._set_steps_per_run(backend.steps_per_call)
        self._model_dir, self._graph = context.model_dir, backend.graph
        self._stop, self._signals = context.stop, signals
        self._may_save = may_save
        self._cursors = cursors
        keep_hours = context.config.train_config.keep_checkpoint_every_n_hours
        self._kept = KeptCheckpoints(context.model_dir, saving.keep_max, keep_hours)
        self.saved_step = resumed_step

    def add_listeners(self, listeners: Sequence[Any]) -> None:
        """Adds `CheckpointSaverListener`s, before training begins."""
        self._listeners.extend(listeners)

    def _get_saver(self) -> tf1.train.Saver:
        return self._graph.saver

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        """Writes the graph and saves what training starts from.

        TensorFlow's hook does the same, but prints the graph as text in Python. That takes seconds
        for thousands of operations; `str` prints it in C++.
        """
        del coord
        graph = session.graph
        with tf.io.gfile.GFile(os.path.join(self._model_dir, GRAPH_FILE), "w") as file:
            file.write(str(graph.as_graph_def(add_shapes=True)))
        self._summary_writer.add_graph(graph)
        step = int(session.run(self._global_step_tensor))
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        # The step in the results may be that before the step that was taken.
        if run_context.stop_requested or not self._is_wanted(
            int(run_values.results) + self._steps_per_run
        ):
            return
        step = int(run_context.session.run(self._global_step_tensor))
        if self._is_wanted(step) and self._save(run_context.session, step):
            run_context.request_stop()

    def _is_wanted(self, step: int) -> bool:
        return any(
            listener.wants_checkpoint(step)
            for listener in self._listeners
            if isinstance(listener, CheckpointListener)
        )

    def end(self, session: tf1.Session) -> None:
        """Saves the last step, and evaluates it unless a signal ended training."""
        step = int(session.run(self._global_step_tensor))
        if step != self.saved_step:
            self._save(session, step)
        if self._stop.cause is not None:
            return
        with contextlib.suppress(Stopped), self._signals.immediate():
            for listener in self._listeners:
                listener.end(session, step)

    def _save(self, session: tf1.Session, step: int) -> bool:
        """Saves; whether training is to stop."""
        for listener in self._listeners:
            listener.before_save(session, step)
        if step != self.saved_step:
            self._write(session, step)
        if self._stop.cause is not None:
            return True
        stop = False
        try:
            with self._signals.immediate():
                for listener in self._listeners:
                    stop = bool(listener.after_save(session, step)) or stop
        except Stopped:
            return True
        return stop

    def _write(self, session: tf1.Session, step: int) -> None:
        prefix = f"{self._save_path}-{step}"
        self._may_save()
        try:
            for file, cursor in self._cursors.items():
                if cursor.state is not None:
                    data_cursor.write_cursor_state(self._model_dir, step, cursor.state, file)
            self._graph.saver.save(session, self._save_path, global_step=step, write_state=False)
            repair.write_through(prefix)
            self._kept.add(os.path.basename(prefix))
        except writing.POSSIBLE as error:
            kept = "No checkpoint was saved before it"
            if self.saved_step is not None:
                last = f"The last whole checkpoint is that of step {self.saved_step}"
                kept = f"{last}, which is intact"
            name = os.path.basename(prefix)
            explained = writing.explained(error, self._model_dir, name, kept)  # with free space
            _remove_remains(self._model_dir, prefix)
            if not writing.is_of_writing(error):
                raise
            raise explained from error
        self.saved_step = step
        self._summary_writer.add_session_log(
            tf1.SessionLog(status=tf1.SessionLog.CHECKPOINT, checkpoint_path=self._save_path),
            step,
        )


class KeptCheckpoints:
    """The checkpoints that a model_dir keeps, and its `checkpoint` file, which lists them.

    Args:
        model_dir: The folder.
        keep_max: Older checkpoints than this many are deleted; 0 keeps all.
        keep_every_n_hours: One in so many hours is never deleted.
    """

    def __init__(self, model_dir: str, keep_max: int, keep_every_n_hours: float) -> None:
        self._model_dir, self._keep_max = model_dir, keep_max
        self._keep_secs = keep_every_n_hours * 3600
        self._next_kept = time.time() + self._keep_secs
        state = tf1.train.get_checkpoint_state(model_dir)
        paths = list(state.all_model_checkpoint_paths) if state is not None else []
        present = [path for path in paths if tf1.train.checkpoint_exists(path)]
        times = tf1.train.get_checkpoint_mtimes(present)
        # Names are relative to the folder; a run may continue one of another folder.
        self._listed = [
            (os.path.basename(path), saved)
            for path, saved in zip(present, times)
            if os.path.dirname(path) == model_dir.rstrip("/")
        ]

    def add(self, name: str) -> None:
        """Lists a checkpoint as the newest, and deletes those that are too many."""
        kept = [entry for entry in self._listed if entry[0] != name] + [(name, time.time())]
        first = max(len(kept) - self._keep_max, 0) if self._keep_max else 0
        self._listed = kept[first:]
        repair.write_state(self._model_dir, [name for name, _ in self._listed])
        for old, saved in kept[:first]:
            if saved > self._next_kept:
                self._next_kept += self._keep_secs
            else:
                tf1.train.remove_checkpoint(os.path.join(self._model_dir, old))


def _remove_remains(model_dir: str, prefix: str) -> None:
    """Deletes what was written of a checkpoint that could not be finished."""
    with contextlib.suppress(tf.errors.OpError, UnreadableCheckpointError):
        repair.remove_temporaries(model_dir, log=False)
        if repair.find_damage(prefix) is not None:
            for path in tf.io.gfile.glob(f"{prefix}.*"):
                tf.io.gfile.remove(path)

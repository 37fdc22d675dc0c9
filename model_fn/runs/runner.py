"""Training runs: a backend, input functions, evaluations and hooks, wired together."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Callable, Iterator, List, Optional, Sequence, TypeVar

from estimator_det.compat import tf1
from estimator_det.config import pipeline as configuration
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.records.cursor import CursorState, DataCursor
from model_fn.checkpoints import repair
from model_fn.checkpoints.errors import SessionLostError
from model_fn.preflight.metric_names import check_best_metric
from model_fn.runs import cluster, history, lock
from model_fn.runs.backends import Backend, RunSettings, make_backend, parameter_servers
from model_fn.runs.backends.tpu_options import OnTpu
from model_fn.runs.best_checkpoints import export
from model_fn.runs.data_cursor import (
    POSITION_FILE,
    DataCursorHook,
    WorkerPositionHook,
    newest_step,
    read_cursor_state,
    read_worker_state,
    worker_file,
)
from model_fn.runs.evaluation_report import Metrics
from model_fn.runs.evaluator import continuous_eval
from model_fn.runs.history import EndOfTraining
from model_fn.runs.loop_options import InLoop
from model_fn.runs.options import DEFAULT_TASK_TIMEOUT_SECS, Evaluating, Saving
from model_fn.runs.saver import (
    CheckpointSaver,
    StopAfterStep,
    check_writable,
    explained_errors,
    removed_if_empty,
)
from model_fn.runs.signals import Stopped, StopSignals, signal_name
from model_fn.runs.task_watch import TaskWatch
from model_fn.runs.training_evaluations import FINAL_EXPORT, TrainingEvaluations

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


def train_and_evaluate(
    pipeline_config: Any,
    model_dir: str,
    *,
    num_train_steps: Optional[int] = None,
    saving: Optional[Saving] = None,
    evaluating: Optional[Evaluating] = None,
    progress: bool = True,
    progress_steps: int = 20,
    hooks: Sequence[Any] = (),
    seed: Optional[int] = None,
    on_tpu: Optional[OnTpu] = None,
    in_loop: Optional[InLoop] = None,
    task_timeout_secs: float = DEFAULT_TASK_TIMEOUT_SECS,
    data_service: Optional[str] = None,
) -> Metrics:
    """Trains to `num_train_steps`, evaluating checkpoints on the way and at the end.

    A checkpoint in `model_dir` is resumed with its step, optimizer slots and moving averages,
    after it was checked; see `repair.prepare`. The configuration as run is saved there
    as pipeline.config. Several evaluation readers are all evaluated; the first one decides about
    exports. Only one process may train in a folder.

    SIGINT and SIGTERM end the run after the current step, with a checkpoint; an evaluation ends
    at once. A second signal ends the process. A process that is killed loses the steps since its
    last checkpoint.

    The position in the data: evaluations have a session of their own, and training continues with
    the next record. A resumed run continues with the record after the last one of its checkpoint,
    in the same order and with the same augmentations as without the interruption: each record is
    seen once an epoch. To that end it reads the unfinished epoch again up to there, undecoded. It
    begins a new epoch instead, in a new order, and logs that, where files, their sizes, the
    reader's settings (but for the batch size), a given `seed` or the number of workers have
    changed, and on a TPU.

    In a cluster (TF_CONFIG) this process does its part: it trains, serves variables, or evaluates
    the checkpoints of the others. See docs/distributed.md. Where it waits inside TensorFlow for a
    parameter server that is missing for too long, it exits with code 1.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Where checkpoints, events and exports go.
        num_train_steps: The global step at which to stop; by default `train_config.num_steps`,
            where 0 means never.
        saving: When checkpoints are saved.
        evaluating: What is evaluated, and when.
        progress: Report loss terms, rate and time left on standard error.
        progress_steps: Steps between two lines of it.
        hooks: More training hooks.
        seed: Of initial values, shuffling and augmentation.
        on_tpu: Train on a TPU, or rehearse that; evaluations run on this machine unless it says
            otherwise, and reports come once a loop, whatever `progress_steps`.
        in_loop: Train by the TF2 loop, which restores the checkpoints of an Estimator, and an
            Estimator its; evaluations and exports are the same.
        task_timeout_secs: In a cluster, for how long another task may be missing.
        data_service: Address of the dispatcher of a `tf.data` service that reads and augments the
            training records, "host:port"; None to do it in this process.

    Returns:
        Metrics of the last evaluation on the first reader; empty where nothing was left to do.

    Raises:
        Stopped: after SIGINT or SIGTERM; a KeyboardInterrupt.
        FolderInUseError: if another process trains in `model_dir`.
        FolderNotWritableError: if `model_dir` cannot be written to, at the start or later.
        DamagedCheckpointsError: if there are checkpoints, and none is whole.
        ConfigError: if the configuration does not suit the TPU, or no evaluation computes
            `evaluating.best_metric`.
        NoTpuError: if the TPU cannot be reached.
        MissingTaskError: if another task of the cluster is missing for too long.
    """
    settings = _settings(
        pipeline_config, model_dir, num_train_steps, saving, seed, task_timeout_secs, data_service
    )
    evaluating = evaluating or Evaluating()
    check_best_metric(pipeline_config, evaluating.best_metric)
    if in_loop is None and cluster.serves_variables():
        parameter_servers.serve(settings)
        return {}
    backend = make_backend(settings, on_tpu, in_loop)

    def train_once() -> Metrics:
        return _train_and_evaluate(settings, backend, evaluating, progress, progress_steps, hooks)

    return _until_kept(train_once)


def _train_and_evaluate(
    settings: RunSettings,
    backend: Backend,
    evaluating: Evaluating,
    progress: bool,
    progress_steps: int,
    hooks: Sequence[Any],
) -> Metrics:
    pipeline_config, model_dir = settings.pipeline_config, settings.model_dir
    with _training(settings, backend) as run:
        if cluster.is_evaluator():
            return _evaluate_beside(settings, evaluating, backend)
        evaluations = TrainingEvaluations(
            pipeline_config,
            model_dir,
            evaluating,
            backend.evaluator,
            run.first_step,
            verbose=progress,
        )
        evaluates = cluster.read_cluster().evaluates
        if run.is_over():
            if evaluates:
                evaluations.catch_up(run.first_step)
            run.ended()
            return evaluations.metrics
        if evaluates:
            evaluations.resume(run.first_step)
        else:
            _report_unused(evaluating)
        if evaluates and evaluations.is_exhausted():
            run.ended()
            return {}
        backend.train(
            run.input_fn(),
            run.hooks(progress, progress_steps, hooks),
            [evaluations] if evaluates else [],
        )
        run.ended()
    return evaluations.metrics


def train(
    pipeline_config: Any,
    model_dir: str,
    *,
    num_train_steps: Optional[int] = None,
    saving: Optional[Saving] = None,
    progress: bool = True,
    progress_steps: int = 20,
    hooks: Sequence[Any] = (),
    seed: Optional[int] = None,
    on_tpu: Optional[OnTpu] = None,
    in_loop: Optional[InLoop] = None,
    task_timeout_secs: float = DEFAULT_TASK_TIMEOUT_SECS,
    data_service: Optional[str] = None,
) -> None:
    """Trains without evaluation, as where evaluation is a process of its own.

    Arguments and errors are those of `train_and_evaluate`.
    """
    settings = _settings(
        pipeline_config, model_dir, num_train_steps, saving, seed, task_timeout_secs, data_service
    )
    if in_loop is None and cluster.serves_variables():
        parameter_servers.serve(settings)
        return
    backend = make_backend(settings, on_tpu, in_loop)

    def train_once() -> None:
        with _training(settings, backend) as run:
            if not run.is_over():
                backend.train(run.input_fn(), run.hooks(progress, progress_steps, hooks))
            run.ended()

    _until_kept(train_once)


def _until_kept(attempt: Callable[[], Result]) -> Result:
    """The result of an attempt; begins again where the cluster loses its variables meanwhile."""
    while True:
        try:
            return attempt()
        except SessionLostError as error:
            _LOG.warning("%s", error)


def _report_unused(evaluating: Evaluating) -> None:
    """Logs the options that have no effect in a training that leaves evaluation to others."""
    if evaluating.every_steps is not None:
        _LOG.warning(
            "every_steps has no effect in a cluster: its evaluator evaluates each checkpoint"
        )
    if evaluating.patience is not None:
        _LOG.warning(
            "patience has no effect in a cluster: the evaluator cannot stop the other tasks"
        )


def _settings(
    pipeline_config: Any,
    model_dir: str,
    num_train_steps: Optional[int],
    saving: Optional[Saving],
    seed: Optional[int],
    task_timeout_secs: float,
    data_service: Optional[str],
) -> RunSettings:
    if num_train_steps is None:
        num_train_steps = pipeline_config.train_config.num_steps or None
    return RunSettings(
        pipeline_config,
        model_dir,
        num_train_steps,
        saving or Saving(),
        seed,
        task_timeout_secs,
        data_service,
    )


class _SaveConfiguration(tf1.train.SessionRunHook):
    """Saves the configuration as run, and removes the mark that training is over.

    Not before the graph is built: a configuration that is refused until then replaces nothing.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings

    def begin(self) -> None:
        configuration.save_pipeline(self._settings.pipeline_config, self._settings.model_dir)
        history.clear_over(self._settings.model_dir)


class _Run:
    """A training run that holds its folder, with signals caught.

    Args:
        settings: What it trains.
        backend: Executes its steps.
        signals: Entered.
        may_save: Raises if the folder has become another process's; None where another one saves.

    Attributes:
        first_step: Where it starts.
    """

    def __init__(
        self,
        settings: RunSettings,
        backend: Backend,
        signals: StopSignals,
        may_save: Optional[Callable[[], None]],
    ) -> None:
        self._settings, self._backend, self._signals = settings, backend, signals
        self.first_step = 0
        self._saver: Optional[CheckpointSaver] = None
        self._cursor: Optional[DataCursor] = None
        self._task = cluster.read_task()
        backend.graph.stop_requested = lambda: signals.arrived is not None
        if may_save is None:
            newest = newest_step(settings.model_dir)
            self.first_step = newest or 0
            if not cluster.is_evaluator():
                self._cursor = self._make_cursor(newest)
        else:
            resumed = repair.prepare(settings.model_dir, settings.saving.keep_max)
            self.first_step = resumed or 0
            self._cursor = self._make_cursor(resumed)
            self._saver = CheckpointSaver(
                settings, backend, signals, may_save, resumed, self._cursor
            )
        log_file = os.path.join(settings.model_dir, LOG_FILE)
        self._faults = FaultLog(log_file if may_save is not None else None)

    def _make_cursor(self, resumed: Optional[int]) -> Optional[DataCursor]:
        if self._backend.keeps_data_cursor:
            state = self._read_state(resumed) if resumed is not None else None
            return DataCursor(state, self.first_step)
        if self.first_step:
            _LOG.warning(
                "On a TPU and with a tf.data service the position in the data is not saved: the "
                "data begin with a new epoch, in a new order"
            )
        return None

    def _read_state(self, resumed: int) -> Optional[CursorState]:
        model_dir = self._settings.model_dir
        if self._task.is_alone:
            return read_cursor_state(model_dir, resumed)
        # The steps in names, for those in checkpoints may be later ones.
        named = newest_step(model_dir)
        file = POSITION_FILE if cluster.is_chief() else worker_file(self._task.file_name)
        return read_worker_state(model_dir, resumed if named is None else named, file)

    def is_over(self) -> bool:
        """Whether there is nothing left to train, which is logged."""
        model_dir, num_steps = self._settings.model_dir, self._settings.num_steps
        if num_steps is None or self.first_step < num_steps:
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

    def input_fn(self) -> Callable[..., Any]:
        """Of training; reports faults of records to this run's log."""
        return self._backend.input_fn(self._cursor, self.first_step, self._faults)

    def log_faults(self) -> None:
        """Logs what was wrong with records so far."""
        summary = self._faults.summary()
        if summary:
            _LOG.warning("%s", summary)

    def ended(self) -> None:
        """Marks for evaluators that no checkpoint will follow, unless a signal ended training."""
        if self._saver is None or self._saver.saved_step is None or self._signals.requested:
            return
        step, last = int(self._saver.saved_step), self._settings.num_steps
        reason = "num_train_steps" if last is not None and step >= last else "stopped early"
        history.mark_over(self._settings.model_dir, step, reason)

    def hooks(self, progress: bool, progress_steps: int, others: Sequence[Any]) -> List[Any]:
        """All hooks of the run in order: a step that one of them rejects is not saved."""
        hooks = [
            StopAfterStep(self._signals),
            *([_SaveConfiguration(self._settings)] if self._saver is not None else []),
            *self._backend.progress_hooks(
                every_steps=progress_steps, silent=not progress, fault_log=self._faults
            ),
            *others,
        ]
        if self._cursor is not None:
            hooks.append(DataCursorHook(self._cursor, self._backend.graph))
            if self._saver is None:
                file = worker_file(self._task.file_name)
                hooks.append(
                    WorkerPositionHook(
                        self._settings.model_dir, self._cursor, self._backend.graph, file
                    )
                )
        if self._saver is not None:
            hooks.append(self._saver)
        return hooks

    def stopped_text(self, number: int) -> str:
        """What a stop by a signal left behind, and how to continue."""
        text = f"stopped by {signal_name(number)}"
        if self._saver is None:
            return text
        model_dir, num_steps = self._settings.model_dir, self._settings.num_steps
        step: Optional[int] = self._saver.saved_step
        if step is None:
            return f"{text} before training began"
        if num_steps is not None and step >= num_steps:
            return (
                f"{text} after the last step, {step}, which is saved in {model_dir}; for its "
                f"metrics: estimator-det evaluate --checkpoint_dir {model_dir}"
            )
        return (
            f"{text} at step {step}, which is saved in {model_dir}; run the same command again to "
            "resume from there"
        )


@contextlib.contextmanager
def _training(settings: RunSettings, backend: Backend) -> Iterator[_Run]:
    run: Optional[_Run] = None
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        stack.enter_context(explained_errors(settings.model_dir))
        stack.enter_context(backend.running())
        may_save: Optional[Callable[[], None]] = None
        if cluster.is_chief():
            stack.enter_context(removed_if_empty(settings.model_dir))
            check_writable(settings.model_dir)
            may_save = stack.enter_context(lock.locked(settings.model_dir))
        try:
            with signals.unfailing():
                run = _Run(settings, backend, signals, may_save)
                yield run
                signals.raise_if_requested()
        except Stopped as stop:
            raise Stopped(
                stop.signal_number, run.stopped_text(stop.signal_number) if run else ""
            ) from None
        finally:
            if run is not None:
                run.log_faults()


def _evaluate_beside(settings: RunSettings, evaluating: Evaluating, backend: Backend) -> Metrics:
    """The evaluator of a cluster: checkpoints as they appear, and the exports."""
    config, model_dir = settings.pipeline_config, settings.model_dir
    if evaluating.on_training_data:
        _LOG.warning("The evaluator of a cluster does not evaluate on the training data")
    _report_unused(evaluating)
    end = EndOfTraining(model_dir, settings.num_steps)
    members = cluster.read_cluster()
    chiefs = members.tasks(*cluster.CHIEFS) if len(members.readers) > 1 or members.servers else []
    watch = TaskWatch(members, chiefs, settings.task_timeout_secs, end.has_come)

    def is_over() -> bool:
        watch.raise_if_missing()
        return end.has_come()

    with watch.watching():
        results = continuous_eval(
            config,
            model_dir,
            num_train_steps=settings.num_steps or 0,
            sample_1_of_n=evaluating.sample_1_of_n,
            min_interval_secs=evaluating.throttle_secs,
            best_metric=evaluating.best_metric,
            keep_best=evaluating.keep_best,
            is_over=is_over,
        )
    if evaluating.export_final and results:
        export(config, backend.evaluator(), model_dir, FINAL_EXPORT)
    return next(iter(results.values()), {})

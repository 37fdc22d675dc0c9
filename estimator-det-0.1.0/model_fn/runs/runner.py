"""Training runs: a backend, input functions, evaluations and hooks, wired together."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Callable, Iterator, List, Optional, Sequence

from estimator_det.compat import tf1
from estimator_det.config import pipeline as configuration
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.records.cursor import DataCursor
from model_fn.checkpoints import repair
from model_fn.preflight.metric_names import check_best_metric
from model_fn.runs import cluster, history, lock
from model_fn.runs.backends import Backend, RunSettings, make_backend
from model_fn.runs.backends.tpu_options import OnTpu
from model_fn.runs.best_checkpoints import export
from model_fn.runs.data_cursor import DataCursorHook, read_cursor_state
from model_fn.runs.evaluation_report import Metrics
from model_fn.runs.evaluator import continuous_eval, evaluation_inputs
from model_fn.runs.options import Evaluating, Saving
from model_fn.runs.saver import (
    CheckpointSaver,
    StopAfterStep,
    check_writable,
    explained_errors,
    removed_if_empty,
)
from model_fn.runs.signals import Stopped, StopSignals, signal_name
from model_fn.runs.training_evaluations import FINAL_EXPORT, TrainingEvaluations

_LOG = logging.getLogger(__name__)


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
    reader's settings (but for the batch size) or a given `seed` have changed, in a cluster and on
    a TPU.

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
    """
    settings = _settings(pipeline_config, model_dir, num_train_steps, saving, seed)
    evaluating = evaluating or Evaluating()
    check_best_metric(pipeline_config, evaluating.best_metric)
    backend = make_backend(settings, on_tpu)
    with _training(settings, backend) as run:
        if cluster.is_evaluator():
            return _evaluate_beside(pipeline_config, model_dir, evaluating, backend)
        evaluations = TrainingEvaluations(
            pipeline_config,
            model_dir,
            evaluating,
            backend.evaluator,
            run.first_step,
            verbose=progress,
        )
        if run.is_over():
            if not cluster.is_in_cluster():
                evaluations.catch_up(run.first_step)
                run.ended()
            return evaluations.metrics
        if not cluster.is_in_cluster():
            evaluations.resume(run.first_step)
        elif evaluating.every_steps is not None:
            _LOG.warning(
                "every_steps has no effect in a cluster: its evaluator evaluates each checkpoint"
            )
        if evaluations.is_exhausted():
            return {}
        backend.train(
            run.input_fn(),
            run.hooks(progress, progress_steps, hooks),
            [evaluations],
            lambda: evaluation_inputs(pipeline_config)[0].make_input_fn(None),
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
) -> None:
    """Trains without evaluation, as where evaluation is a process of its own.

    Arguments and errors are those of `train_and_evaluate`.
    """
    settings = _settings(pipeline_config, model_dir, num_train_steps, saving, seed)
    backend = make_backend(settings, on_tpu)
    with _training(settings, backend) as run:
        if run.is_over():
            return
        backend.train(run.input_fn(), run.hooks(progress, progress_steps, hooks))
        run.ended()


def _settings(
    pipeline_config: Any,
    model_dir: str,
    num_train_steps: Optional[int],
    saving: Optional[Saving],
    seed: Optional[int],
) -> RunSettings:
    if num_train_steps is None:
        num_train_steps = pipeline_config.train_config.num_steps or None
    return RunSettings(pipeline_config, model_dir, num_train_steps, saving or Saving(), seed)


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
        if may_save is not None:
            resumed = repair.prepare(settings.model_dir, settings.saving.keep_max)
            self.first_step = resumed or 0
            self._cursor = self._make_cursor(resumed)
            self._saver = CheckpointSaver(
                settings, backend, signals, may_save, resumed, self._cursor
            )
        log_file = os.path.join(settings.model_dir, LOG_FILE)
        self._faults = FaultLog(log_file if cluster.is_chief() else None)

    def _make_cursor(self, resumed: Optional[int]) -> Optional[DataCursor]:
        if self._backend.keeps_data_cursor:
            state = None
            if resumed is not None:
                state = read_cursor_state(self._settings.model_dir, resumed)
            return DataCursor(state, self.first_step)
        if self.first_step:
            _LOG.warning(
                "On a TPU and in a cluster the position in the data is not saved: the data begin "
                "with a new epoch, in a new order"
            )
        return None

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
        step = int(self._saver.saved_step)
        reason = "num_train_steps" if step == self._settings.num_steps else "stopped early"
        history.mark_over(self._settings.model_dir, step, reason)

    def hooks(self, progress: bool, progress_steps: int, others: Sequence[Any]) -> List[Any]:
        """All hooks of the run in order: a step that one of them rejects is not saved."""
        hooks = [
            StopAfterStep(self._signals),
            *([_SaveConfiguration(self._settings)] if cluster.is_chief() else []),
            *self._backend.progress_hooks(
                every_steps=progress_steps, silent=not progress, fault_log=self._faults
            ),
            *others,
        ]
        if self._cursor is not None:
            hooks.append(DataCursorHook(self._cursor, self._backend.graph))
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


def _evaluate_beside(
    pipeline_config: Any, model_dir: str, evaluating: Evaluating, backend: Backend
) -> Metrics:
    """The evaluator of a cluster: checkpoints as they appear, and the exports."""
    results = continuous_eval(
        pipeline_config,
        model_dir,
        sample_1_of_n=evaluating.sample_1_of_n,
        min_interval_secs=evaluating.throttle_secs,
        best_metric=evaluating.best_metric,
    )
    if evaluating.export_final:
        export(pipeline_config, backend.evaluator(), model_dir, FINAL_EXPORT)
    return next(iter(results.values()), {})

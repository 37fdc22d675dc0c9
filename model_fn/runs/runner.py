"""Training runs: wiring of Estimator, input functions, exporters and hooks."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Callable, Iterator, List, Optional, Sequence

from estimator_det.compat import estimator
from estimator_det.config import pipeline as configuration
from inputs import pipeline as input_pipeline
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.records.cursor import DataCursor, seed_at
from model_fn.checkpoints import repair
from model_fn.runs import history, lock
from model_fn.runs.backends import tpu_estimator
from model_fn.runs.backends.estimator import make_estimator, preprocess_of
from model_fn.runs.backends.tpu_options import OnTpu
from model_fn.runs.best_checkpoints import export
from model_fn.runs.data_cursor import DataCursorHook, read_cursor_state
from model_fn.runs.evaluation_report import Metrics
from model_fn.runs.evaluator import continuous_eval, evaluation_inputs
from model_fn.runs.options import Evaluating, Saving
from model_fn.runs.progress import training_hooks
from model_fn.runs.saver import (
    CheckpointSaver,
    StopAfterStep,
    check_writable,
    explained_errors,
)
from model_fn.runs.signals import Stopped, StopSignals, signal_name
from model_fn.runs.training_evaluations import FINAL_EXPORT, RunEvaluations

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
    after it was checked; see `checkpoint_store.prepare`. The configuration as run is saved there
    as pipeline.config. Several evaluation readers are all evaluated; the first one decides about
    exports. Only one process may train in a folder.

    SIGINT and SIGTERM end the run after the step at hand, with a checkpoint; an evaluation is left
    at once. A second signal ends the process. A process that is killed loses the steps since its
    last checkpoint.

    The position in the data: evaluations have a session of their own, and training goes on with
    the record after the last one. A resumed run goes on with the record after the last one of its
    checkpoint, in the same order and with the same augmentations as if it had not been
    interrupted: each record is seen once an epoch. To that end it reads the unfinished epoch
    again up to there, undecoded. Where files, their sizes, the reader's settings (but for the
    batch size), or a `seed` that is given have changed, in a cluster, and on a TPU, it begins with
    a new epoch instead, in another order, and says so.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Where checkpoints, events and exports go.
        num_train_steps: The global step at which to stop; by default `train_config.num_steps`,
            where 0 means never.
        saving: When checkpoints are saved.
        evaluating: What is evaluated, and when.
        progress: Tell loss terms, rate and time left on standard error.
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
        ConfigError: if the configuration does not suit the TPU.
        NoTpuError: if the TPU cannot be reached.
    """
    steps = _last_step(pipeline_config, num_train_steps)
    saving, evaluating = saving or Saving(), evaluating or Evaluating()
    with _training(model_dir, steps, saving, on_tpu) as run:

        def make() -> Any:
            return run.estimator(pipeline_config, seed)

        def make_evaluator() -> Any:
            if on_tpu is None or not on_tpu.evaluates:
                return make_estimator(pipeline_config, model_dir, saving=saving, seed=seed)
            return tpu_estimator.TpuEvaluator(pipeline_config, make())

        if is_evaluator():
            return _evaluate_beside(pipeline_config, model_dir, evaluating, make)
        evaluations = RunEvaluations(
            pipeline_config, model_dir, evaluating, make_evaluator, run.first_step, tell=progress
        )
        if run.is_over():
            if not is_in_cluster():
                evaluations.catch_up(run.first_step)
                run.ended()
            return evaluations.metrics
        if evaluations.is_exhausted():
            return {}
        run.begins(pipeline_config)
        train_spec = estimator.TrainSpec(
            run.input_fn(pipeline_config, seed),
            max_steps=steps,
            hooks=run.hooks([*run.reports(pipeline_config, progress, progress_steps), *hooks]),
        )
        if is_in_cluster():
            # This starts servers by role; the evaluator's was dealt with above.
            input_fn = evaluation_inputs(pipeline_config)[0].make_input_fn(None)
            estimator.train_and_evaluate(make(), train_spec, estimator.EvalSpec(input_fn))
        else:
            make().train(
                train_spec.input_fn,
                hooks=list(train_spec.hooks),
                max_steps=steps,
                saving_listeners=[evaluations],
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
    steps = _last_step(pipeline_config, num_train_steps)
    saving = saving or Saving()
    with _training(model_dir, steps, saving, on_tpu) as run:
        if run.is_over():
            return
        run.begins(pipeline_config)
        run.estimator(pipeline_config, seed).train(
            run.input_fn(pipeline_config, seed),
            max_steps=steps,
            hooks=run.hooks([*run.reports(pipeline_config, progress, progress_steps), *hooks]),
        )
        run.ended()


class _Run:
    """A training run that holds its folder, with signals caught.

    Args:
        model_dir: The folder.
        num_steps: The last step; None for no end.
        saving: When checkpoints are saved.
        signals: Entered.
        may_save: Raises if the folder has become another process's; None where another one saves.
        on_tpu: As `train_and_evaluate` takes it.

    Attributes:
        first_step: Where it starts.
    """

    def __init__(
        self,
        model_dir: str,
        num_steps: Optional[int],
        saving: Saving,
        signals: StopSignals,
        may_save: Optional[Callable[[], None]],
        on_tpu: Optional[OnTpu],
    ) -> None:
        self._model_dir, self._num_steps, self._signals = model_dir, num_steps, signals
        self._saving, self._on_tpu = saving, on_tpu
        self.first_step = 0
        self._saver: Optional[CheckpointSaver] = None
        self._cursor: Optional[DataCursor] = None
        if may_save is not None:
            resumed = repair.prepare(model_dir, saving.keep_max)
            self.first_step = resumed or 0
            if on_tpu is None and not is_in_cluster():
                position = None if resumed is None else read_cursor_state(model_dir, resumed)
                self._cursor = DataCursor(position, self.first_step)
            elif self.first_step:
                _LOG.warning(
                    "On a TPU and in a cluster the position in the data is not kept: they begin "
                    "with a new epoch, in another order"
                )
            self._saver = CheckpointSaver(
                model_dir, saving, signals, may_save, resumed, self._cursor
            )
            if on_tpu is not None and not on_tpu.rehearses:
                self._saver._set_steps_per_run(on_tpu.iterations_per_loop)
        self._faults = FaultLog(os.path.join(model_dir, LOG_FILE) if is_chief() else None)

    def is_over(self) -> bool:
        """Whether there is nothing left to train, which is told."""
        if self._num_steps is None or self.first_step < self._num_steps:
            if self.first_step:
                _LOG.info("Resuming at step %d from %s", self.first_step, self._model_dir)
            return False
        _LOG.warning(
            "%s is trained to step %d of %d already: nothing to do. Raise num_train_steps to go "
            "on, or choose another model_dir to start anew",
            self._model_dir,
            self.first_step,
            self._num_steps,
        )
        return True

    def begins(self, pipeline_config: Any) -> None:
        """Leaves the configuration as run, and takes back that training is over."""
        if is_chief():
            configuration.save_pipeline(pipeline_config, self._model_dir)
            history.clear_over(self._model_dir)

    def estimator(self, pipeline_config: Any, seed: Optional[int]) -> Any:
        """That trains."""
        if self._on_tpu is None:
            return make_estimator(pipeline_config, self._model_dir, saving=self._saving, seed=seed)
        return tpu_estimator.make_estimator(
            pipeline_config, self._model_dir, self._on_tpu, saving=self._saving, seed=seed
        )

    def input_fn(self, pipeline_config: Any, seed: Optional[int]) -> Callable[..., Any]:
        """Of training; enters the faults of the data in this run's log."""
        if self._on_tpu is not None:
            pipeline_config = tpu_estimator.static_batches(pipeline_config)
        else:
            pipeline_config = _with_source_ids(pipeline_config)
        made = input_pipeline.create_train_input_fn(
            pipeline_config,
            preprocess_of(pipeline_config, is_training=True),
            seed=seed if self._cursor is not None else seed_at(seed, self.first_step),
            fault_log=self._faults,
            cursor=self._cursor,
            runs_elsewhere=self._on_tpu is not None and self._on_tpu.reads_elsewhere,
        )
        return made if self._on_tpu is None else tpu_estimator.fed(made)

    def reports(self, pipeline_config: Any, progress: bool, every_steps: int) -> List[Any]:
        """Hooks that tell how it goes."""
        if self._on_tpu is not None:
            return tpu_estimator.training_hooks(
                pipeline_config,
                self._model_dir,
                self._num_steps,
                self._on_tpu,
                silent=not progress,
                fault_log=self._faults,
            )
        return training_hooks(
            pipeline_config,
            self._model_dir,
            self._num_steps,
            every_steps=every_steps,
            silent=not progress,
            fault_log=self._faults,
            writes=is_chief(),
        )

    def log_faults(self) -> None:
        """Logs what was wrong with the data so far."""
        summary = self._faults.summary()
        if summary:
            _LOG.warning("%s", summary)

    def ended(self) -> None:
        """Tells evaluators that no checkpoint will follow, unless a signal ended training."""
        if self._saver is None or self._saver.saved_step is None or self._signals.requested:
            return
        step = int(self._saver.saved_step)
        reason = "num_train_steps" if step == self._num_steps else "stopped early"
        history.mark_over(self._model_dir, step, reason)

    def hooks(self, hooks: Sequence[Any]) -> List[Any]:
        """Those of a run around others: a step that another hook rejects is not saved."""
        cursor_hooks = [DataCursorHook(self._cursor)] if self._cursor is not None else []
        savers = [self._saver] if self._saver is not None else []
        return [StopAfterStep(self._signals), *hooks, *cursor_hooks, *savers]

    def stopped_text(self, number: int) -> str:
        """What a stop by a signal left behind, and how to go on."""
        text = f"stopped by {signal_name(number)}"
        if self._saver is None:
            return text
        step: Optional[int] = self._saver.saved_step
        if step is None:
            return f"{text} before training began"
        if self._num_steps is not None and step >= self._num_steps:
            return (
                f"{text} after the last step, {step}, which is saved in {self._model_dir}; for its "
                f"metrics: estimator-det evaluate --checkpoint_dir {self._model_dir}"
            )
        return (
            f"{text} at step {step}, which is saved in {self._model_dir}; the same command, given "
            "again, goes on from there"
        )


def _with_source_ids(pipeline_config: Any) -> Any:
    """So that the report of a bad step can name its images."""
    config = type(pipeline_config)()
    config.CopyFrom(pipeline_config)
    config.train_input_reader.include_source_id = True
    return config


def is_chief() -> bool:
    """Whether this process saves: it does unless TF_CONFIG gives it another part in a cluster."""
    return estimator.RunConfig().is_chief


def is_evaluator() -> bool:
    """Whether TF_CONFIG makes this process the evaluator of a cluster."""
    return bool(estimator.RunConfig().task_type == "evaluator")


def is_in_cluster() -> bool:
    """Whether TF_CONFIG names a cluster."""
    return bool(estimator.RunConfig().cluster_spec.jobs)


@contextlib.contextmanager
def _training(
    model_dir: str, num_steps: Optional[int], saving: Saving, on_tpu: Optional[OnTpu]
) -> Iterator[_Run]:
    run: Optional[_Run] = None
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        stack.enter_context(explained_errors(model_dir))
        stack.enter_context(tpu_estimator.running(on_tpu))
        may_save: Optional[Callable[[], None]] = None
        if is_chief():
            check_writable(model_dir)
            may_save = stack.enter_context(lock.locked(model_dir))
        try:
            with signals.unfailing():
                run = _Run(model_dir, num_steps, saving, signals, may_save, on_tpu)
                yield run
                signals.raise_if_requested()
        except Stopped as stop:
            raise Stopped(
                stop.signal_number, run.stopped_text(stop.signal_number) if run else ""
            ) from None
        finally:
            if run is not None:
                run.log_faults()


def _last_step(pipeline_config: Any, num_train_steps: Optional[int]) -> Optional[int]:
    if num_train_steps is not None:
        return num_train_steps
    return pipeline_config.train_config.num_steps or None


def _evaluate_beside(
    pipeline_config: Any, model_dir: str, evaluating: Evaluating, make: Callable[[], Any]
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
        export(pipeline_config, make(), model_dir, FINAL_EXPORT)
    return next(iter(results.values()), {})

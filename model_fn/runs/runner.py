"""Training runs: a backend, input functions, evaluations and hooks, wired together.

A checkpoint in `model_dir` is resumed with its step, optimizer slots and moving averages, after it
was checked; see `repair.prepare`. The configuration as run is saved there as pipeline.config. Only
one process may train in a folder.

SIGINT and SIGTERM end a run after the current step, with a checkpoint; an evaluation ends at once.
A second signal ends the process. A process that is killed loses the steps since its last
checkpoint.

The position in the data: evaluations have a session of their own, and training continues with the
next record. A resumed run continues with the record after the last one of its checkpoint, in the
same order and with the same augmentations as without the interruption: each record is seen once an
epoch. To that end it reads the unfinished epoch again up to there, undecoded. It begins a new epoch
instead, in a new order, and logs that, where files, their sizes, the reader's settings (but for the
batch size), a given `seed` or the number of workers have changed, and on a TPU.

In a cluster (TF_CONFIG) this process does its part: it trains, serves variables, or evaluates the
checkpoints of the others. See docs/distributed.md. Where it waits inside TensorFlow for a parameter
server that is missing for too long, it exits with code 1.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Callable, Optional, Sequence, TypeVar

from model_fn.checkpoints.errors import SessionLostError
from model_fn.evaluation.history import EndOfTraining
from model_fn.evaluation.report import Metrics
from model_fn.preflight.metric_names import check_best_metric
from model_fn.runs import cluster
from model_fn.runs.backends import Backend, RunSettings, make_backend, serve_others
from model_fn.runs.backends.tpu_options import OnTpu
from model_fn.runs.best_checkpoints import export
from model_fn.runs.data_cursor import newest_step
from model_fn.runs.evaluator import continuous_eval
from model_fn.runs.loop_options import InLoop
from model_fn.runs.options import DEFAULT_TASK_TIMEOUT_SECS, Evaluating, Saving
from model_fn.runs.task_watch import TaskWatch
from model_fn.runs.training_evaluations import FINAL_EXPORT, TrainingEvaluations
from model_fn.runs.training_run import running

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

_RESTART_SECS = (1.0, 2.0, 4.0, 8.0, 16.0)  # before training begins again without progress


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

    Several evaluation readers are all evaluated; the first one decides about exports.

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
    if serve_others(settings, in_loop):
        return {}
    backend = make_backend(settings, on_tpu, in_loop)

    def train_once() -> Metrics:
        return _train_and_evaluate(settings, backend, evaluating, progress, progress_steps, hooks)

    return _until_kept(train_once, model_dir)


def _train_and_evaluate(
    settings: RunSettings,
    backend: Backend,
    evaluating: Evaluating,
    progress: bool,
    progress_steps: int,
    hooks: Sequence[Any],
) -> Metrics:
    pipeline_config, model_dir = settings.pipeline_config, settings.model_dir
    with running(settings, backend) as run:
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
            evaluations.catch_up(run.first_step)
            run.ended()
            return {}
        listeners = [evaluations] if evaluates else []
        backend.train(run.input_fn(), run.hooks(progress, progress_steps, hooks, listeners))
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
    if serve_others(settings, in_loop):
        return
    backend = make_backend(settings, on_tpu, in_loop)

    def train_once() -> None:
        with running(settings, backend) as run:
            if not run.is_over():
                backend.train(run.input_fn(), run.hooks(progress, progress_steps, hooks))
            run.ended()

    _until_kept(train_once, model_dir)


def _until_kept(attempt: Callable[[], Result], model_dir: str) -> Result:
    """The result of an attempt; begins again where the cluster loses its variables meanwhile.

    Raises:
        SessionLostError: if they are lost again and again without a checkpoint in between.
    """
    step, pauses = newest_step(model_dir), iter(_RESTART_SECS)
    while True:
        try:
            return attempt()
        except SessionLostError as error:
            if newest_step(model_dir) != step:
                step, pauses = newest_step(model_dir), iter(_RESTART_SECS)
            secs = next(pauses, None)
            if secs is None:
                raise SessionLostError(
                    f"the variables were lost {len(_RESTART_SECS) + 1} times with a parameter "
                    "server, without a new checkpoint in between. See the logs of the parameter "
                    "servers: one of them may need more memory. Then start all tasks again"
                ) from error
            _LOG.warning("%s, in %g s", error, secs)
            time.sleep(secs)


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


def _evaluate_beside(settings: RunSettings, evaluating: Evaluating, backend: Backend) -> Metrics:
    """The evaluator of a cluster: checkpoints as they appear, and the exports."""
    config, model_dir = settings.pipeline_config, settings.model_dir
    if evaluating.on_training_data:
        _LOG.warning("The evaluator of a cluster does not evaluate on the training data")
    _report_unused(evaluating)
    end = EndOfTraining(model_dir, settings.num_steps)
    members = cluster.read_cluster()
    chiefs = members.readers[:1] if len(members.readers) > 1 or members.servers else []
    watch = TaskWatch(members, chiefs, settings.task_timeout_secs, end.has_come)

    def is_over() -> bool:
        watch.raise_if_missing()
        # Where code that takes no exceptions was interrupted, that of the signal was lost.
        return backend.graph.stop_requested() or end.has_come()

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
    if evaluating.export_final and results and not backend.graph.stop_requested():
        export(config, backend.evaluator(), model_dir, FINAL_EXPORT)
    return next(iter(results.values()), {})

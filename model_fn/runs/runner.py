"""Training runs: a backend, input functions, evaluations and hooks, wired together.

A run resumes the newest whole checkpoint of `model_dir`, and continues with the record after the
last one of that checkpoint, in the same order. It begins a new epoch on a TPU, and if the data, the
seed or the number of workers have changed. For clusters (TF_CONFIG) see docs/distributed.md.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, Callable, Dict, Optional

from estimator_det.compat import require_v2_behavior
from estimator_det.config.problem import refuse
from estimator_det.config.rules import check
from inputs import machine
from model_fn.checkpoints.errors import DamagedCheckpointsError, SessionLostError
from model_fn.checkpoints.find import newest_step
from model_fn.checkpoints.writing import explained_errors
from model_fn.evaluation.report import Metrics
from model_fn.runs.backends import Backend, coordinator, parameter_servers
from model_fn.runs.backends.coordinator import CoordinatorBackend
from model_fn.runs.backends.estimator import EstimatorBackend
from model_fn.runs.backends.loop import LoopBackend
from model_fn.runs.backends.parameter_servers import ParameterServerBackend
from model_fn.runs.backends.tpu_estimator import TpuBackend
from model_fn.runs.cluster import PARAMETER_SERVER as SERVER_TASK
from model_fn.runs.cluster import read_cluster
from model_fn.runs.context import RunContext
from model_fn.runs.evaluator import Evaluations, evaluation_readers, follow
from model_fn.runs.options import PARAMETER_SERVER, EvaluationOptions, TrainOptions, with_precision
from model_fn.runs.signals import StopSignals
from model_fn.runs.task_watch import Tasks
from model_fn.runs.training_evaluations import TrainingEvaluations
from model_fn.runs.training_run import running

_LOG = logging.getLogger(__name__)

_RESTART_SECS = (1.0, 2.0, 4.0, 8.0, 16.0)  # before training begins again without progress


def train_and_evaluate(
    config: Any, model_dir: str, options: Optional[TrainOptions] = None, **fields: Any
) -> Metrics:
    """Trains to the last step, evaluating checkpoints on the way and at the end.

    Several evaluation readers are all evaluated; the first one decides about exports.

    Args:
        **fields: Fields of `TrainOptions` that replace those of `options`, for example
            `num_train_steps=1000`.

    Returns:
        Metrics of the last evaluation on the first reader; empty if nothing was left to do.

    Raises:
        Stopped: after SIGINT or SIGTERM; a KeyboardInterrupt.
        FolderInUseError: if another process trains in `model_dir`.
        FolderNotWritableError: if `model_dir` cannot be written to, at the start or later.
        DamagedCheckpointsError: if there are checkpoints, and none is whole.
        ConfigError: if the configuration does not suit the TPU, no evaluation computes
            `evaluation.best_metric`, or a label map fits no record of a sample of its reader.
        NoTpuError: if the TPU cannot be reached.
        MissingTaskError: if another task of the cluster is missing for too long.
    """
    context = _make_context(config, model_dir, options, fields)
    run_other_part = _other_part(context)
    if run_other_part is not None:
        return run_other_part(context) or {}
    backend = make_backend(context)
    if not context.cluster.evaluates:
        _report_unused(context.options.evaluation)
        _train(context, backend)
        return {}
    evaluations = TrainingEvaluations(context, backend.evaluator())
    _train(context, backend, evaluations)
    return evaluations.metrics


def train(
    config: Any, model_dir: str, options: Optional[TrainOptions] = None, **fields: Any
) -> None:
    """Trains without evaluation, for example if evaluation is a process of its own.

    Arguments and errors are those of `train_and_evaluate`.
    """
    context = _make_context(config, model_dir, options, fields)
    run_other_part = _other_part(context)
    if run_other_part is not None:
        run_other_part(context)
    else:
        _train(context, make_backend(context))


def _make_context(
    config: Any, model_dir: str, options: Optional[TrainOptions], fields: Dict[str, Any]
) -> RunContext:
    """Checks the configuration and reads the environment; nothing below does it again."""
    require_v2_behavior()
    # The model and its input are checked where a caller's own may enter, too.
    parts = ("train_config", "eval_config", "graph_rewriter")
    refuse(
        each
        for each in check(config)
        if each.field.startswith(parts) or each.field.endswith("].name")
    )
    machine.return_freed_memory()  # before large tensors are allocated
    options = dataclasses.replace(options or TrainOptions(), **fields)
    config = with_precision(config, options)
    return RunContext(config, model_dir, options, read_cluster())


def make_backend(context: RunContext) -> Backend:
    """The backend of a run: an Estimator, unless options for another one are given."""
    loop, tpu, cluster = context.options.loop, context.options.tpu, context.cluster
    if loop is not None and not cluster.is_evaluator:
        coordinates = loop.strategy == PARAMETER_SERVER and cluster.is_chief
        return (CoordinatorBackend if coordinates else LoopBackend)(context, loop)
    if tpu is not None:
        return TpuBackend(context, tpu)
    if cluster.task.is_alone or cluster.is_evaluator:
        return EstimatorBackend(context)
    return ParameterServerBackend(context)


def _other_part(context: RunContext) -> Optional[Callable[[RunContext], Optional[Metrics]]]:
    """Returns what this process of a cluster does instead of training; None if it trains."""
    loop, cluster = context.options.loop, context.cluster
    if cluster.is_evaluator:
        return _run_evaluator_task
    if loop is None:
        return parameter_servers.serve if cluster.task.type == SERVER_TASK else None
    is_served = loop.strategy == PARAMETER_SERVER and not cluster.is_chief
    return coordinator.serve if is_served else None


def _train(
    context: RunContext, backend: Backend, evaluations: Optional[TrainingEvaluations] = None
) -> None:
    """Trains to the last step; begins again if a checkpoint is damaged or variables are lost.

    Restoring finds damage, so an attempt reads the checkpoint once; the next one verifies it first
    and falls back.
    """
    # All processes of a cluster restore at once, so nobody could fall back alone.
    verify = not context.cluster.task.is_alone
    step, pauses = -1, iter(_RESTART_SECS)
    while True:
        try:
            with running(context, backend, verify) as run:
                run.train(evaluations)
            return
        except DamagedCheckpointsError:
            if verify:
                raise
            verify = True
        except SessionLostError as error:
            newest = newest_step(context.model_dir) or 0
            # Progress since the last loss: the pauses begin again with the shortest.
            if newest != step:
                step, pauses = newest, iter(_RESTART_SECS)
            secs = next(pauses, None)
            if secs is None:
                raise SessionLostError(
                    f"the variables were lost {len(_RESTART_SECS) + 1} times with a parameter "
                    "server, without a new checkpoint in between. See the logs of the parameter "
                    "servers: one of them may need more memory. Then start all tasks again"
                ) from error
            _LOG.warning("%s, in %g s", error, secs)
            time.sleep(secs)


def _report_unused(evaluation: EvaluationOptions) -> None:
    for option, reason in (
        ("every_steps", "its evaluator evaluates each checkpoint"),
        ("patience", "the evaluator cannot stop the other tasks"),
    ):
        if getattr(evaluation, option) is not None:
            _LOG.warning("%s has no effect in a cluster: %s", option, reason)


def _run_evaluator_task(context: RunContext) -> Metrics:
    """The evaluator of a cluster: checkpoints as they appear, and the exports."""
    evaluation, cluster, model_dir = context.options.evaluation, context.cluster, context.model_dir
    if evaluation.on_training_data:
        _LOG.warning("The evaluator of a cluster does not evaluate on the training data")
    _report_unused(evaluation)
    backend = make_backend(context)
    readers = evaluation_readers(context.config, sample_1_of_n=evaluation.sample_1_of_n)
    evaluations = Evaluations(context.config, backend.evaluator(), readers, evaluation)
    # A chief alone in its cluster may start later than the evaluator: it is not waited for.
    chiefs = cluster.readers[:1] if len(cluster.readers) > 1 or cluster.servers else []
    errors_explained = explained_errors(model_dir, kept="Checkpoints are intact")
    with StopSignals(context.stop), errors_explained, backend.running():
        tasks = Tasks(context, chiefs)
        with tasks.watch.watching():
            metrics = follow(
                evaluations,
                model_dir,
                tasks.end,
                context.throttle_secs,
                is_over=tasks.are_over,
            )
        if metrics:
            evaluations.export_final()
        context.stop.raise_if_requested()
    return next(iter(metrics.values()), {})

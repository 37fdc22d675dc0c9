"""Training runs: a backend, input functions, evaluations and hooks, wired together.

A run resumes the newest whole checkpoint of `model_dir`, and continues with the record after the
last one of that checkpoint, in the same order. On a TPU, and if the data, the seed or the number of
workers have changed, the run begins a new epoch. For clusters (TF_CONFIG) see docs/distributed.md.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import time
import types
from typing import Any, Callable, Dict, Mapping, Optional

from estimator_det.compat import require_v2_behavior
from estimator_det.config.rules import require
from estimator_det.console.signals import StopSignals
from estimator_det.errors import DamagedCheckpointsError, SessionLostError
from estimator_det.files import AnyPath
from estimator_det.protos import pipeline_pb2
from inputs import machine
from inputs.label_map import LabelMap
from model_fn.checkpoints.find import newest_step
from model_fn.checkpoints.writing import explained_errors
from model_fn.evaluation.readers import evaluation_readers
from model_fn.evaluation.report import MetricValues
from model_fn.runs import roles, task_watch, training_run
from model_fn.runs.backends.base import Backend
from model_fn.runs.backends.coordinator import CoordinatorBackend
from model_fn.runs.backends.estimator import EstimatorBackend
from model_fn.runs.backends.loop import LoopBackend
from model_fn.runs.backends.parameter_servers import ParameterServerBackend
from model_fn.runs.backends.tpu_estimator import TpuBackend
from model_fn.runs.cluster import read_cluster
from model_fn.runs.context import RunContext
from model_fn.runs.evaluation_schedule import EvaluationSchedule
from model_fn.runs.evaluator import EvaluationRun, follow
from model_fn.runs.options import TrainOptions
from model_fn.runs.precision import with_precision
from model_fn.runs.training_end import TrainingEnd

_LOG = logging.getLogger(__name__)

BACKENDS: Dict[str, Callable[[RunContext], Backend]] = {
    roles.ESTIMATOR: EstimatorBackend,
    roles.PARAMETER_SERVERS: ParameterServerBackend,
    roles.TPU_ESTIMATOR: TpuBackend,
    roles.LOOP: LoopBackend,
    roles.COORDINATOR: CoordinatorBackend,
}
_RESTART_SECS = (1.0, 2.0, 4.0, 8.0, 16.0)  # before training begins again without progress


def train_and_evaluate(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: AnyPath,
    options: Optional[TrainOptions] = None,
    **fields: Any,
) -> MetricValues:
    """Trains to the last step, evaluating checkpoints on the way and at the end.

    Several evaluation readers are all evaluated; the first one decides about exports.

    Args:
        **fields: Fields of `TrainOptions` that replace fields of `options`, for example
            `num_train_steps=1000`.

    Returns:
        Metrics of the last evaluation on the first reader; empty if nothing was left to do.

    Raises:
        Stopped: after SIGINT or SIGTERM; a KeyboardInterrupt.
        RunError, UsageError: what a user can fix, see `estimator_det.errors`.
    """
    require(config)
    return run(config, model_dir, dataclasses.replace(options or TrainOptions(), **fields))


def train(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: AnyPath,
    options: Optional[TrainOptions] = None,
    **fields: Any,
) -> None:
    """`train_and_evaluate` without evaluation, which may be a process of its own."""
    require(config)
    options = dataclasses.replace(options or TrainOptions(), **fields)
    run(config, model_dir, options, evaluates=False)


def run(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: AnyPath,
    options: TrainOptions,
    *,
    evaluates: bool = True,
    label_maps: Mapping[str, LabelMap] = types.MappingProxyType({}),
) -> MetricValues:
    """`train_and_evaluate`, or without evaluation `train`, of a configuration without errors.

    Args:
        label_maps: Label maps that were read already, by path.
    """
    require_v2_behavior()
    machine.share_freed_memory()  # before threads allocate
    _LOG.info("Memory allocator: %s", machine.allocator())
    context = RunContext(
        with_precision(config, options),
        os.fspath(model_dir),
        options,
        read_cluster(),
        label_maps=dict(label_maps),
    )
    role = roles.find_role(context, evaluates=evaluates)
    if role == roles.EVALUATES:
        return _evaluate_others(context)
    if role == roles.SERVES:
        # Steps of an Estimator need the server; a coordinator's are over when it leaves.
        readers = context.cluster.readers
        task_watch.serve(context, readers if context.options.loop is None else readers[:1])
        return {}
    schedule = EvaluationSchedule(context) if evaluates and context.cluster.evaluates else None
    _train(context, role, schedule)
    return {} if schedule is None else schedule.metrics


def _train(context: RunContext, role: str, schedule: Optional[EvaluationSchedule]) -> None:
    """Trains to the last step; begins again if a checkpoint is damaged or variables are lost.

    Restoring finds damage, so an attempt reads the checkpoint once; the next one verifies it first
    and falls back.
    """
    # All processes of a cluster restore at once, so nobody could fall back alone.
    verify = not context.cluster.task.is_alone
    step, pauses = -1, iter(_RESTART_SECS)
    # One for all attempts: a task of a cluster starts its server once.
    get_backend = functools.cache(functools.partial(BACKENDS[role], context))
    while True:
        try:
            training_run.train(context, get_backend, schedule, verify=verify)
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


def _evaluate_others(context: RunContext) -> MetricValues:
    """The evaluator of a cluster: checkpoints as they appear, and the exports."""
    evaluation, cluster, model_dir = context.options.evaluation, context.cluster, context.model_dir
    readers = evaluation_readers(context.config, sample_1_of_n=evaluation.sample_1_of_n)
    run = EvaluationRun(context, readers)
    run.check()
    # A chief alone in its cluster may start later than the evaluator: it is not waited for.
    chiefs = cluster.readers[:1] if len(cluster.readers) > 1 or cluster.servers else []
    errors_explained = explained_errors(model_dir, kept="Checkpoints are intact")
    with StopSignals(context.stop), errors_explained, run.running():
        end = TrainingEnd(model_dir, context.num_steps)
        with task_watch.watch_run(context, end, chiefs).watching():
            evaluations = follow(run, model_dir, end)
        if evaluations:
            run.export_final()
        context.stop.raise_if_requested()
    return evaluations[0].metrics if evaluations else {}

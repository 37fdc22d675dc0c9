"""The role of this process in a run, and all that a run refuses or does not use.

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import logging
from typing import Iterator, List

from estimator_det.config.rules import Tpu
from estimator_det.config.text import entries
from estimator_det.errors import ConfigError, Problem, UsageError, raise_errors
from estimator_det.protos import pipeline_pb2
from model_fn.runs.cluster import CHIEFS, PARAMETER_SERVER, VARIABLE, WORKER, Cluster
from model_fn.runs.context import Hook, RunContext
from model_fn.runs.options import (
    MIRRORED,
    MULTI_MACHINE_STRATEGIES,
    MULTI_WORKER,
    LoopOptions,
    TpuOptions,
)
from model_fn.runs.options import PARAMETER_SERVER as SERVER_STRATEGY

_LOG = logging.getLogger(__name__)

# Roles: the five backends that train, and two parts beside a training.
ESTIMATOR, PARAMETER_SERVERS, TPU_ESTIMATOR = "Estimator", "parameter servers", "TPUEstimator"
LOOP, COORDINATOR = "loop", "coordinator"
SERVES = "serves"  # variables or steps, until training has ended
EVALUATES = "evaluates"  # the checkpoints of the others

_CHIEF = "chief"
# (engine that options choose, task; "" is a process on its own) -> role. An evaluator evaluates.
_ROLES = {
    (ESTIMATOR, ""): ESTIMATOR,
    (ESTIMATOR, _CHIEF): PARAMETER_SERVERS,
    (ESTIMATOR, WORKER): PARAMETER_SERVERS,
    (ESTIMATOR, PARAMETER_SERVER): SERVES,
    (TPU_ESTIMATOR, ""): TPU_ESTIMATOR,
    (TPU_ESTIMATOR, _CHIEF): TPU_ESTIMATOR,
    (TPU_ESTIMATOR, WORKER): TPU_ESTIMATOR,
    (TPU_ESTIMATOR, PARAMETER_SERVER): SERVES,
    (LOOP, ""): LOOP,
    (LOOP, _CHIEF): LOOP,
    (LOOP, WORKER): LOOP,
    (COORDINATOR, _CHIEF): COORDINATOR,
    (COORDINATOR, WORKER): SERVES,
    (COORDINATOR, PARAMETER_SERVER): SERVES,
}


def find_role(context: RunContext, *, evaluates: bool = False) -> str:
    """The role of this process.

    UsageError if the configuration, the options and the cluster exclude each other, before a
    machine is waited for or a folder is changed. Options and fields without effect are logged, also
    options of evaluations if the run `evaluates`.
    """
    cluster, loop = context.cluster, context.options.loop
    task = _CHIEF if cluster.is_chief and not cluster.task.is_alone else cluster.task.type
    if cluster.is_evaluator:
        role = EVALUATES
    elif loop is not None:
        _check_hooks(context)
        check_loop(context.config, loop, cluster)
        role = _ROLES[COORDINATOR if loop.strategy == SERVER_STRATEGY else LOOP, task]
    else:
        role = _ROLES[ESTIMATOR if context.options.tpu is None else TPU_ESTIMATOR, task]
        if role in (PARAMETER_SERVERS, SERVES):
            _check_estimator_cluster(context)
    for line in _without_effect(context, role, evaluates):
        _LOG.warning("%s", line)
    return role


def _check_hooks(context: RunContext) -> None:
    for hook in context.options.hooks:
        if not isinstance(hook, Hook):
            raise UsageError(
                f"hooks: {type(hook).__name__} needs a session, and the TF2 loop has none. Derive "
                "it from estimator_det.Hook, or train without --strategy"
            )


def check_loop(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, loop: LoopOptions, cluster: Cluster
) -> None:
    """Refuses what a strategy does not have; an evaluator is not part of a strategy."""
    if pipeline_config.graph_rewriter.HasField("quantization"):
        raise ConfigError.at(
            "graph_rewriter.quantization",
            "is not supported yet by the TF2 loop",
            "Leave --strategy out, or train in float (--set graph_rewriter=null)",
        )
    if loop.strategy in MULTI_MACHINE_STRATEGIES:
        _check_endless(pipeline_config, f"with strategy {loop.strategy!r}")
    if loop.strategy == SERVER_STRATEGY and pipeline_config.train_config.sync_replicas:
        raise ConfigError.at(
            "train_config.sync_replicas",
            f"is true: workers of strategy {SERVER_STRATEGY!r} do not wait for each other",
            "Set it to false (--set train_config.sync_replicas=false), or use "
            f"strategy {MULTI_WORKER!r}",
        )
    if loop.jit_compile:
        _check_mining(pipeline_config)
    if loop.distribution is None and not cluster.is_evaluator:
        _check_cluster(loop, cluster)


def _check_mining(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> None:
    """Refuses what selects a varying number of pairs of boxes, which XLA cannot compile."""
    for entry in entries(pipeline_config):
        if entry.field.name == "hard_example_miner":
            raise ConfigError.at(
                entry.path,
                "selects pairs of boxes, as many as a step happens to have; XLA needs fixed sizes",
                f"Leave --jit_compile out, or train without it (--set {entry.path}=null), for "
                "example with weighted_sigmoid_focal",
            )


def _check_cluster(loop: LoopOptions, cluster: Cluster) -> None:
    """Refuses a cluster if the strategy has none, and the reverse."""
    if loop.strategy in MULTI_MACHINE_STRATEGIES and cluster.task.is_alone:
        raise UsageError(
            f"strategy {loop.strategy!r} trains on the machines that {VARIABLE} lists, and it "
            f"lists no others. Set it, or use strategy {MIRRORED!r}"
        )
    if loop.strategy == SERVER_STRATEGY:
        check_parameter_servers(cluster)
        if not cluster.tasks(WORKER):
            raise UsageError(
                f"{VARIABLE}: cluster.worker is missing, and with strategy {loop.strategy!r} the "
                "chief takes no steps itself. Add a worker"
            )
    elif loop.strategy == MULTI_WORKER:
        servers = cluster.servers
        if servers:
            raise UsageError(
                f"{VARIABLE}: cluster.ps has {len(servers)} tasks, and strategy {loop.strategy!r} "
                "has no parameter servers. Leave ps out of the cluster, or use strategy "
                f"{SERVER_STRATEGY!r}"
            )
    elif not cluster.task.is_alone:
        raise UsageError(
            f"strategy {loop.strategy!r} trains on one machine, and {VARIABLE} makes this process "
            f"one of several. Unset it, or use strategy {MULTI_WORKER!r}"
        )


def check_parameter_servers(cluster: Cluster) -> None:
    """Refuses a cluster in which an Estimator could not train."""
    if cluster.task.is_alone:
        return
    counts = {job: len(addresses) for job, addresses in cluster.jobs.items()}
    if not cluster.tasks(*CHIEFS):
        raise UsageError(
            f"{VARIABLE}: cluster.chief is missing, and a cluster with parameter servers needs one "
            f"chief; given {counts}. Name the first worker as the chief"
        )
    if cluster.tasks(WORKER) and not cluster.tasks(PARAMETER_SERVER):
        raise UsageError(
            f"{VARIABLE}: cluster.ps is missing, and workers share their variables through it; "
            f"given {counts}. Add a parameter server"
        )


def _check_estimator_cluster(context: RunContext) -> None:
    """Refuses what an Estimator's parameter servers do not have."""
    from estimator_det.compat import tf, versions  # This module imports no TensorFlow.

    check_parameter_servers(context.cluster)
    if versions.release(tf.__version__) >= versions.WITHOUT_ESTIMATOR:
        raise UsageError(
            f"{VARIABLE}: an Estimator's parameter servers need TensorFlow 2.15; this is "
            f"{tf.__version__}. pip install 'tensorflow==2.15.1', or train by another loop: "
            "estimator-det train --strategy parameter_server"
        )
    if context.options.data_service is not None:
        raise UsageError(
            "tf_data_service does not work in a cluster yet, whose tasks divide the records among "
            "them. Remove it, or train without a cluster"
        )
    _check_endless(context.config, "in a cluster")


def _check_endless(config: pipeline_pb2.TrainEvalPipelineConfig, place: str) -> None:
    num_epochs = config.train_input_reader.num_epochs
    if num_epochs:
        raise ConfigError.at(
            "train_input_reader.num_epochs",
            f"is {num_epochs}: {place} data do not end, for the parts of the workers would end at "
            "different steps",
            "Set it to 0, and the end of training by train_config.num_steps",
        )


def check_batch(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, loop: LoopOptions, num_replicas: int
) -> None:
    """Refuses what replicas and their parts cannot share: a batch, or its statistics."""
    size = pipeline_config.train_config.batch_size
    shares = num_replicas * loop.accumulate_steps
    if size % shares:
        fitting = [each for each in (size // shares * shares, -(-size // shares) * shares) if each]
        raise ConfigError.at(
            "train_config.batch_size",
            f"is {size}; it must be divisible by {num_replicas} replicas x "
            f"{loop.accumulate_steps} accumulate_steps",
            f"set it to {' or '.join(str(each) for each in fitting)}",
        )
    synchronized = [
        entry.path for entry in entries(pipeline_config) if entry.field.name == "sync_batch_norm"
    ]
    if synchronized and (loop.accumulate_steps > 1 or loop.jit_compile):
        raise UsageError(
            f"{synchronized[0]} averages over replicas in the middle of a step, which parts of a "
            "batch and functions of XLA cannot. Use batch_norm, or leave accumulate_steps and "
            "jit_compile out"
        )
    if shares > 1 and not pipeline_config.train_input_reader.drop_remainder:
        raise ConfigError.at(
            "train_input_reader.drop_remainder",
            "is false: the last batch of an epoch cannot be shared equally by replicas and "
            "their parts",
            "Set it to true",
        )


def check_tpu(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, model_dir: str, tpu: TpuOptions
) -> List[Problem]:
    """Returns warnings; ConfigError lists all that makes the run impossible, with the edits."""
    from model_fn.checks import tpu_lint

    target = Tpu(
        num_shards=tpu.num_shards,
        model_dir=model_dir,
        inference=tpu.evaluates,
        local_files=tpu.has_local_files,
    )
    findings = tpu_lint.lint(pipeline_config, target)
    raise_errors(findings)
    return findings


def takes_single_steps(context: RunContext) -> bool:
    """True if data that end within a call of the loop would hide the steps before their end."""
    return bool(context.config.train_input_reader.num_epochs)


def _without_effect(context: RunContext, role: str, evaluates: bool) -> Iterator[str]:
    """A line for each option or field that this role does not use as it says."""
    options, train_config = context.options, context.config.train_config
    is_beside = evaluates and not context.cluster.evaluates
    if role == EVALUATES and options.evaluation.on_training_data:
        yield "The evaluator of a cluster does not evaluate on the training data"
    if role == EVALUATES or (is_beside and role != SERVES):
        if context.evaluation_steps is not None:
            is_field = options.evaluation.every_steps is None
            name = "eval_config.eval_interval_steps" if is_field else "every_steps"
            yield f"{name} has no effect in a cluster: its evaluator evaluates each checkpoint"
        if options.evaluation.patience is not None:
            yield "patience has no effect in a cluster: the evaluator cannot stop the other tasks"
    if role == ESTIMATOR and options.data_service is not None:
        yield (
            "tf.data service: each record is read once an epoch as long as no data worker fails; "
            "records that a failed one has not delivered are missing in that epoch. The position "
            "in the data is not saved: a resumed run begins with a new epoch, in a new order. A "
            "record that cannot be used ends the run, whatever bad_records says"
        )
    if role == PARAMETER_SERVERS:
        has_delay = train_config.HasField("startup_delay_steps")
        if train_config.sync_replicas and has_delay and train_config.startup_delay_steps:
            yield (
                "train_config.startup_delay_steps has no effect with sync_replicas: each step "
                "needs the workers"
            )
        if not train_config.sync_replicas and train_config.HasField("replicas_to_aggregate"):
            yield ("train_config.replicas_to_aggregate has no effect: sync_replicas is not set")
    if role == COORDINATOR:
        for field in ("replicas_to_aggregate", "startup_delay_steps"):
            if train_config.HasField(field):
                yield f"train_config.{field} has no effect with strategy {SERVER_STRATEGY}"
        yield (
            "Workers of a coordinator read records without Python: a record that cannot be used "
            "ends the run, whatever bad_records says"
        )
    steps_per_call = 1 if options.loop is None else options.loop.steps_per_call or 1
    if role == LOOP and steps_per_call > 1 and takes_single_steps(context):
        yield (
            f"steps_per_call is 1 instead of {steps_per_call}, because "
            "train_input_reader.num_epochs may end the data within a call. To keep it, set "
            "num_epochs to 0 and end the training by num_train_steps"
        )

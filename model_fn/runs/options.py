"""Options of a training run, in groups. Importing this module imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Optional, Sequence

from estimator_det.errors import UsageError

NONE, MIRRORED, MULTI_WORKER = "none", "mirrored", "multi_worker_mirrored"
PARAMETER_SERVER, TPU = "parameter_server", "tpu"
LOCAL = "local"  # name of a TPU on its own machine
FLOAT32 = "float32"
MIXED_FLOAT16, MIXED_BFLOAT16 = "mixed_float16", "mixed_bfloat16"
BFLOAT16_CONVOLUTIONS = "bfloat16_convolutions"

STRATEGIES = (NONE, MIRRORED, MULTI_WORKER, PARAMETER_SERVER, TPU)
MULTI_MACHINE_STRATEGIES = (MULTI_WORKER, PARAMETER_SERVER)  # which TF_CONFIG lists
TPU_FIELDS = ("tpu_name", "tpu_zone", "gcp_project")
EVALUATED_PRECISIONS = (FLOAT32, BFLOAT16_CONVOLUTIONS)
PRECISIONS = (*EVALUATED_PRECISIONS, MIXED_BFLOAT16, MIXED_FLOAT16)

STEPS_OF_WORKER = 16  # between two returns to the hooks
DEFAULT_SAVE_SECS = 600
DEFAULT_TASK_TIMEOUT_SECS = 600.0  # another machine may need minutes to start again


def _check_at_least(minimum: int, options: Any, *fields: str) -> None:
    """Refuses values below the minimum, and infinite ones; None is allowed."""
    for field in fields:
        value = getattr(options, field)
        if value is not None and not minimum <= value < math.inf:
            raise UsageError(f"{field} is {value}; give {minimum} or more")


def _check_exclusive(options: Any, first: str, second: str) -> None:
    values = {field: getattr(options, field) for field in (first, second)}
    if None not in values.values():
        text = " and ".join(f"{field} {value}" for field, value in values.items())
        raise UsageError(f"{text} exclude each other; give one of them")


def _check_choice(options: Any, field: str, allowed: Sequence[str]) -> None:
    """Refuses values that are not among the allowed ones; None is allowed."""
    value = getattr(options, field)
    if value not in (*allowed, None):
        raise UsageError(f"{field} is {value!r}; give one of {', '.join(allowed)}")


def check_address(option: str, text: str) -> str:
    """The host:port of a data worker."""
    address = re.fullmatch(r"(grpc://)?([^\s/]+:\d+)", text)
    if address is None:
        raise UsageError(
            f"{option} is {text!r}: give host:port, as the first estimator-det data-worker prints"
        )
    return address[2]


_TPU_NAMES = (
    f"the name of a Cloud TPU, {LOCAL!r} on the TPU's own machine, or an address such as "
    "grpc://10.0.0.2:8470"
)
# Options, the strategies that have no use for them, and why.
_UNUSABLE = (
    *((field, (NONE, MIRRORED, *MULTI_MACHINE_STRATEGIES), "has no TPU") for field in TPU_FIELDS),
    (
        "num_replicas",
        MULTI_MACHINE_STRATEGIES,
        "takes all GPUs of each machine that CUDA_VISIBLE_DEVICES allows, or its CPU",
    ),
    ("num_replicas", (TPU,), "takes all cores of the TPU"),
    (
        "jit_compile",
        (PARAMETER_SERVER,),
        "has variables on other machines, which functions of XLA cannot read",
    ),
    ("jit_compile", (TPU,), "always compiles"),
)


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """Steps of the TF2 loop: strategy and devices."""

    # One of `STRATEGIES`: a single device, all GPUs of this machine, all machines in TF_CONFIG
    # together, its workers, which share variables but not steps, or all cores of a TPU.
    strategy: str = NONE
    # Devices of this machine that share a batch; None for all GPUs. Where there is no GPU, the
    # number of logical CPUs, by default 1.
    num_replicas: Optional[int] = None
    accumulate_steps: int = 1  # parts of a replica's share of the batch, taken one after the other
    # Steps between two returns to the hooks, at most; None for 1, and with parameter servers for
    # `STEPS_OF_WORKER` of each worker.
    steps_per_call: Optional[int] = None
    jit_compile: bool = False  # compile forward and backward pass by XLA
    # "local" on the TPU's own machine, or an address, grpc://host:port.
    tpu_name: Optional[str] = None
    tpu_zone: Optional[str] = None
    gcp_project: Optional[str] = None
    # A strategy object of `tf.distribute` that the caller has created. None: the run creates one.
    distribution: Optional[Any] = None

    def __post_init__(self) -> None:
        _check_choice(self, "strategy", STRATEGIES)
        _check_at_least(1, self, "num_replicas", "accumulate_steps", "steps_per_call")
        for field, strategies, reason in _UNUSABLE:
            value = getattr(self, field)
            if value and self.strategy in strategies:
                what = f"is {value}, and strategy {self.strategy!r} {reason}"
                raise UsageError(f"{field} {what}. Leave it out")
        if self.strategy == NONE and self.num_replicas not in (None, 1):
            what = f"is {self.num_replicas}, and strategy {NONE!r} has one"
            raise UsageError(f"num_replicas {what}; give strategy {MIRRORED!r}")
        if self.strategy == TPU and not self.tpu_name:
            raise UsageError(f"strategy {TPU!r} needs tpu_name: {_TPU_NAMES}")
        if self.tpu_name and (self.tpu_name == LOCAL or "://" in self.tpu_name):
            for field in ("tpu_zone", "gcp_project"):
                if getattr(self, field):
                    what = f"is for a TPU that is found by its name; tpu_name is {self.tpu_name!r}"
                    raise UsageError(f"{field} {what}")


@dataclasses.dataclass(frozen=True)
class TpuOptions:
    """Place of the TPU, and how a run uses it."""

    # "local" on the TPU's own machine, or an address, grpc://host:port; None only for a
    # rehearsal.
    name: Optional[str] = None
    zone: Optional[str] = None
    project: Optional[str] = None
    num_shards: int = 8  # TPU cores, which share a batch
    iterations_per_loop: int = 100  # steps between two returns from the TPU
    evaluates: bool = False  # true if evaluations run on the TPU too, not on this machine
    # Run the same program on this machine, without a TPU: the same graph except the sums over
    # cores, with the same input and the same reports.
    rehearses: bool = False

    def __post_init__(self) -> None:
        if not self.name and not self.rehearses:
            raise UsageError(
                f"a run on TPU needs the TPU's name: {_TPU_NAMES}. Without a TPU, rehearse"
            )
        _check_at_least(1, self, "num_shards", "iterations_per_loop")

    @property
    def has_local_files(self) -> bool:
        """True if the machine that reads and writes is this one."""
        return self.rehearses or self.name == LOCAL


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Times of checkpoints, and the number that is kept."""

    steps: Optional[int] = None  # steps between two checkpoints; not together with `secs`
    # Seconds between two checkpoints; ten minutes where neither is given.
    secs: Optional[int] = None
    keep_max: int = 5  # older checkpoints than this many are deleted; 0 keeps all

    def __post_init__(self) -> None:
        _check_exclusive(self, "steps", "secs")
        _check_at_least(1, self, "steps", "secs")
        _check_at_least(0, self, "keep_max")
        if self.steps is None and self.secs is None:
            object.__setattr__(self, "secs", DEFAULT_SAVE_SECS)


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """Evaluations during training: their data, their times, and the checkpoints that are kept."""

    # Evaluate on every n-th example; by default as the reader says.
    sample_1_of_n: Optional[int] = None
    on_training_data: bool = False  # evaluate on the training data, too
    training_data_sample_1_of_n: int = 5  # every n-th example of it
    # Save and evaluate a checkpoint at each multiple of this, or at the first return to the hooks
    # after it; the last checkpoint always. Not together with `throttle_secs`; without both,
    # `eval_config.eval_interval_steps`.
    every_steps: Optional[int] = None
    # Least seconds between two evaluations; by default `eval_config.eval_interval_secs`.
    throttle_secs: Optional[int] = None
    # Keep the best checkpoints by this metric in best/ and an export of the very best in
    # export/best, e.g. by "DetectionBoxes_Precision/mAP". The highest value is the best, or the
    # lowest of a loss and of metrics whose set says so.
    best_metric: Optional[str] = None
    keep_best: int = 1  # how many checkpoints are kept as the best
    # Stop after this many evaluations without a better `best_metric`; None trains to the end.
    patience: Optional[int] = None
    min_delta: float = 0.0  # least difference that counts as better for `patience`
    export_final: bool = True  # export the last checkpoint to export/Servo

    def __post_init__(self) -> None:
        _check_exclusive(self, "every_steps", "throttle_secs")
        _check_at_least(0, self, "throttle_secs", "min_delta")
        _check_at_least(1, self, "every_steps", "keep_best", "patience")
        _check_at_least(1, self, "sample_1_of_n", "training_data_sample_1_of_n")
        if self.min_delta and self.patience is None:
            raise UsageError("min_delta needs patience: how many evaluations may be without it")
        if self.best_metric is None and (self.patience is not None or self.keep_best > 1):
            field = "keep_best" if self.patience is None else "patience"
            raise UsageError(
                f"{field} needs best_metric: the metric that is to become better, e.g. "
                "DetectionBoxes_Precision/mAP"
            )


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Options of a training run; programs fill it from flags."""

    # Global step at which to stop; by default `train_config.num_steps`, where 0 means never.
    num_train_steps: Optional[int] = None
    # Seed of initial values, shuffling and augmentation; None for a random one.
    seed: Optional[int] = None
    # When checkpoints are saved.
    checkpoints: CheckpointOptions = dataclasses.field(default_factory=CheckpointOptions)
    # Evaluations during training.
    evaluation: EvaluationOptions = dataclasses.field(default_factory=EvaluationOptions)
    # Train by the TF2 loop. It and an Estimator restore each other's checkpoints; evaluations and
    # exports are the same.
    loop: Optional[LoopOptions] = None
    # Train on a TPU by TPUEstimator, or rehearse it. Evaluations run on this machine unless
    # `evaluates` is set; reports come once a loop.
    tpu: Optional[TpuOptions] = None
    # One of `PRECISIONS`, in which the network computes while it trains; variables and losses stay
    # float32. By default float32, or on a TPU as `train_config.use_bfloat16` says. Evaluations
    # compute in float32, or as BFLOAT16_CONVOLUTIONS.
    precision: Optional[str] = None
    progress: bool = True  # report loss terms, rate and time left on standard error
    progress_steps: int = 20  # steps between two reports
    # More training hooks: `estimator_det.Hook`s, or, not with the TF2 loop, hooks of an Estimator's
    # session.
    hooks: Sequence[Any] = ()
    # In a cluster, seconds that another task may be missing.
    task_timeout_secs: float = DEFAULT_TASK_TIMEOUT_SECS
    # Address of the dispatcher of a `tf.data` service that reads and augments the training
    # records, "host:port"; None to do it in this process.
    data_service: Optional[str] = None

    def __post_init__(self) -> None:
        if self.tpu is not None and self.loop is not None:
            raise UsageError("a run is on a TPU or in the TF2 loop; give one of tpu and loop")
        if self.data_service is not None and (self.tpu or self.loop):
            raise UsageError(
                "tf_data_service works with Estimator alone; remove it, or the options of a TPU or "
                "of the TF2 loop"
            )
        if self.data_service is not None:
            address = check_address("tf_data_service", self.data_service)
            object.__setattr__(self, "data_service", address)
        _check_at_least(1, self, "num_train_steps", "progress_steps")
        _check_choice(self, "precision", PRECISIONS)
        if self.precision in (MIXED_FLOAT16, BFLOAT16_CONVOLUTIONS) and self.is_for_tpu:
            raise UsageError(f"precision is {self.precision}; a TPU has {MIXED_BFLOAT16}")
        if self.precision == MIXED_FLOAT16 and self.loop is None:
            raise UsageError(
                f"precision is {MIXED_FLOAT16}, which needs a scale of the loss that only the TF2 "
                f"loop has; give a strategy, such as {NONE!r}, or {MIXED_BFLOAT16}"
            )

    @property
    def is_for_tpu(self) -> bool:
        """True if a TPU takes the steps, or a rehearsal of one."""
        return self.tpu is not None or (self.loop is not None and self.loop.strategy == TPU)

"""Options of the TF2 loop. Importing this module imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from estimator_det.config.text import ConfigError, entries

NONE, MIRRORED, MULTI_WORKER = "none", "mirrored", "multi_worker_mirrored"
PARAMETER_SERVER, TPU = "parameter_server", "tpu"
LOCAL = "local"  # name of a TPU on its own machine
FLOAT32 = "float32"
MIXED_FLOAT16, MIXED_BFLOAT16 = "mixed_float16", "mixed_bfloat16"

STRATEGIES = (NONE, MIRRORED, MULTI_WORKER, PARAMETER_SERVER, TPU)
OF_MACHINES = (MULTI_WORKER, PARAMETER_SERVER)  # which TF_CONFIG lists
PRECISIONS = (FLOAT32, MIXED_FLOAT16, MIXED_BFLOAT16)

STEPS_OF_WORKER = 16  # between two returns to the hooks


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How the TF2 loop takes its steps.

    Attributes:
        strategy: One of `STRATEGIES`: a single device, all GPUs of this machine, those of all
            machines in TF_CONFIG, those of its workers, which share variables but not steps, or all
            cores of a TPU.
        num_replicas: Devices of this machine that share a batch; None for all GPUs. Where there is
            no GPU, so many logical CPUs, by default 1.
        accumulate_steps: Parts of a replica's share of the batch, taken one after the other.
        steps_per_call: Steps between two returns to the hooks, at most; None for 1, and with
            parameter servers for `STEPS_OF_WORKER` of each worker.
        precision: One of `PRECISIONS`, what networks compute in; variables stay float32. None for
            float32, or on a TPU what `use_bfloat16` says.
        jit_compile: Compile forward and backward pass by XLA.
        tpu_name: Of the TPU; "local" on its own machine, or an address, grpc://host:port.
        made: The strategy of `tf.distribute`, where a program has made it.
    """

    strategy: str = NONE
    num_replicas: Optional[int] = None
    accumulate_steps: int = 1
    steps_per_call: Optional[int] = None
    precision: Optional[str] = None
    jit_compile: bool = False
    tpu_name: Optional[str] = None
    tpu_zone: Optional[str] = None
    gcp_project: Optional[str] = None
    made: Optional[Any] = None

    def __post_init__(self) -> None:
        for field, allowed in (("strategy", STRATEGIES), ("precision", PRECISIONS)):
            if getattr(self, field) not in (*allowed, None):
                raise ConfigError(
                    f"{field} is {getattr(self, field)!r}; give one of {', '.join(allowed)}"
                )
        for field in ("num_replicas", "accumulate_steps", "steps_per_call"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{field} is {value}; give 1 or more")
        if self.strategy in OF_MACHINES and self.num_replicas is not None:
            raise ConfigError(
                f"num_replicas is {self.num_replicas}, and strategy {self.strategy!r} takes all "
                "GPUs of each machine, or its CPU. Leave it out, or set CUDA_VISIBLE_DEVICES"
            )
        self._check_tpu()
        if self.strategy == PARAMETER_SERVER and self.jit_compile:
            raise ConfigError(
                f"jit_compile: functions of XLA cannot read variables of another machine, as those "
                f"of strategy {PARAMETER_SERVER!r} are. Leave it out, or use strategy "
                f"{MULTI_WORKER!r}"
            )
        if self.strategy == NONE and self.num_replicas not in (None, 1):
            raise ConfigError(
                f"num_replicas is {self.num_replicas}, and strategy {NONE!r} has one; give "
                f"strategy {MIRRORED!r}"
            )

    def _check_tpu(self) -> None:
        if self.strategy != TPU:
            for field in ("tpu_name", "tpu_zone", "gcp_project"):
                if getattr(self, field) is not None:
                    raise ConfigError(f"{field} is for strategy {TPU!r}; leave it out")
            return
        if not self.tpu_name:
            raise ConfigError(
                f"strategy {TPU!r} needs tpu_name: that of a Cloud TPU, {LOCAL!r} on the TPU's own "
                "machine, or an address such as grpc://10.0.0.2:8470"
            )
        for field in ("tpu_zone", "gcp_project"):
            if getattr(self, field) and (self.tpu_name == LOCAL or "://" in self.tpu_name):
                raise ConfigError(
                    f"{field} is for a TPU that is found by its name; tpu_name is {self.tpu_name!r}"
                )
        if self.num_replicas is not None:
            raise ConfigError(
                f"num_replicas is {self.num_replicas}, and strategy {TPU!r} takes all cores of the "
                "TPU. Leave it out"
            )
        if self.jit_compile:
            raise ConfigError(f"jit_compile: strategy {TPU!r} always compiles. Leave it out")
        if self.precision == MIXED_FLOAT16:
            raise ConfigError(f"precision is {MIXED_FLOAT16}; a TPU has {MIXED_BFLOAT16}")


def check_config(pipeline_config: Any, loop: LoopOptions) -> None:
    """Refuses what a strategy does not have, before any machine is waited for.

    Raises:
        ConfigError: for simulated quantization, whose ranges the loop does not average; for data
            that end, and for synchronous replicas, where workers do not take the same steps.
    """
    if pipeline_config.graph_rewriter.HasField("quantization"):
        raise ConfigError(
            "graph_rewriter.quantization: is not supported yet by the TF2 loop. Leave --strategy "
            "out, or train in float (--set graph_rewriter=null)"
        )
    num_epochs = pipeline_config.train_input_reader.num_epochs
    if loop.strategy in OF_MACHINES and num_epochs:
        raise ConfigError(
            f"train_input_reader.num_epochs is {num_epochs}: with strategy "
            f"{loop.strategy!r} data do not end, for the parts of the workers would end at "
            "different steps. Set it to 0, and the end of training by train_config.num_steps"
        )
    if loop.strategy == PARAMETER_SERVER and pipeline_config.train_config.sync_replicas:
        raise ConfigError(
            f"train_config.sync_replicas is true: workers of strategy {PARAMETER_SERVER!r} do not "
            "wait for each other. Set it to false (--set train_config.sync_replicas=false), or use "
            f"strategy {MULTI_WORKER!r}"
        )


def check_batch(pipeline_config: Any, loop: LoopOptions, num_replicas: int) -> None:
    """Refuses what replicas and their parts cannot share: a batch, or its statistics."""
    size = pipeline_config.train_config.batch_size
    shares = num_replicas * loop.accumulate_steps
    if size % shares:
        fitting = [each for each in (size // shares * shares, -(-size // shares) * shares) if each]
        raise ConfigError(
            f"train_config.batch_size is {size}; it must be divisible by {num_replicas} replicas "
            f"x {loop.accumulate_steps} accumulate_steps, as "
            f"{' and '.join(str(each) for each in fitting)} are"
        )
    synchronized = [
        entry.path for entry in entries(pipeline_config) if entry.field.name == "sync_batch_norm"
    ]
    if synchronized and (loop.accumulate_steps > 1 or loop.jit_compile):
        raise ConfigError(
            f"{synchronized[0]} averages over replicas in the middle of a step, which parts of a "
            "batch and functions of XLA cannot. Use batch_norm, or leave accumulate_steps and "
            "jit_compile out"
        )
    if shares > 1 and not pipeline_config.train_input_reader.drop_remainder:
        raise ConfigError(
            "train_input_reader.drop_remainder is false: the last batch of an epoch cannot be "
            "shared equally by replicas and their parts. Set it to true"
        )

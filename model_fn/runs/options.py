"""Options of a training run, in groups. Importing this module imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Sequence

from estimator_det.config.text import ConfigError
from model_fn.runs.loop_options import LoopOptions
from model_fn.runs.tpu_options import TpuOptions

DEFAULT_SAVE_SECS = 600
DEFAULT_TASK_TIMEOUT_SECS = 600.0  # another machine may need minutes to start again


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """When checkpoints are saved, and how many are kept.

    Attributes:
        steps: Steps between two checkpoints; not together with `secs`.
        secs: Seconds between two checkpoints; ten minutes where neither is given.
        keep_max: Older checkpoints than this many are deleted; 0 keeps all.
    """

    steps: Optional[int] = None
    secs: Optional[int] = None
    keep_max: int = 5

    def __post_init__(self) -> None:
        if self.steps is not None and self.secs is not None:
            raise ConfigError(
                "save checkpoints by steps or by seconds, not both; given "
                f"{self.steps} steps and {self.secs} seconds"
            )
        for name in ("steps", "secs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} between checkpoints must be positive; given {value}")
        if self.keep_max < 0:
            raise ConfigError(f"keep_max is 0, for all, or more; given {self.keep_max}")
        if self.steps is None and self.secs is None:
            object.__setattr__(self, "secs", DEFAULT_SAVE_SECS)


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """What is evaluated during training, when, and what becomes of the results.

    Attributes:
        sample_1_of_n: Evaluate on every n-th example; None for what the reader says.
        on_training_data: Evaluate on the training data, too.
        training_data_sample_1_of_n: Every n-th example of it.
        every_steps: Save and evaluate a checkpoint at each multiple of so many steps, whenever
            others are saved; the last checkpoint always. A TPU returns between two loops only: at
            the first return after that. Not together with `throttle_secs`.
        throttle_secs: At least so long between two evaluations; by default
            `eval_config.eval_interval_secs`.
        best_metric: Keep the best checkpoints in best/ and an export of the very best in
            export/best: highest, or lowest where its name says loss, e.g.
            "DetectionBoxes_Precision/mAP".
        keep_best: How many checkpoints are kept as the best.
        patience: Stop after so many evaluations in which `best_metric` has not become better; None
            trains to the end.
        min_delta: What counts as better for `patience`: a difference above this.
        export_final: Export the last checkpoint to export/Servo.
    """

    sample_1_of_n: Optional[int] = None
    on_training_data: bool = False
    training_data_sample_1_of_n: int = 5
    every_steps: Optional[int] = None
    throttle_secs: Optional[int] = None
    best_metric: Optional[str] = None
    keep_best: int = 1
    patience: Optional[int] = None
    min_delta: float = 0.0
    export_final: bool = True

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.throttle_secs is not None:
            raise ConfigError(
                "evaluate by steps or by seconds, not both; given "
                f"{self.every_steps} steps and {self.throttle_secs} seconds"
            )
        if self.throttle_secs is not None and self.throttle_secs < 0:
            raise ConfigError(f"throttle_secs must be 0 or more; given {self.throttle_secs}")
        if not 0 <= self.min_delta < math.inf:
            raise ConfigError(f"min_delta must be 0 or more, and finite; given {self.min_delta}")
        for name in (
            "every_steps",
            "keep_best",
            "patience",
            "sample_1_of_n",
            "training_data_sample_1_of_n",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be 1 or more; given {value}")
        if self.patience is not None and self.best_metric is None:
            raise ConfigError(
                "patience needs best_metric: the metric that is to become better, e.g. "
                "DetectionBoxes_Precision/mAP"
            )


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """How a run trains; programs fill it from flags.

    Attributes:
        num_train_steps: Global step at which to stop; by default `train_config.num_steps`, where 0
            means never.
        seed: Of initial values, shuffling and augmentation; None for a random one.
        checkpoints: When checkpoints are saved.
        evaluation: What is evaluated during training, and when.
        loop: Train by the TF2 loop, which restores the checkpoints of an Estimator, and an
            Estimator its; evaluations and exports are the same.
        tpu: Train on a TPU by TPUEstimator, or rehearse that; evaluations run on this machine
            unless it says otherwise, and reports come once a loop.
        progress: Report loss terms, rate and time left on standard error.
        progress_steps: Steps between two reports.
        hooks: More training hooks: `model_fn.Hook`s, or, not with the TF2 loop, hooks of an
            Estimator's session.
        task_timeout_secs: In a cluster, seconds that another task may be missing.
        data_service: Address of the dispatcher of a `tf.data` service that reads and augments the
            training records, "host:port"; None to do it in this process.
    """

    num_train_steps: Optional[int] = None
    seed: Optional[int] = None
    checkpoints: CheckpointOptions = dataclasses.field(default_factory=CheckpointOptions)
    evaluation: EvaluationOptions = dataclasses.field(default_factory=EvaluationOptions)
    loop: Optional[LoopOptions] = None
    tpu: Optional[TpuOptions] = None
    progress: bool = True
    progress_steps: int = 20
    hooks: Sequence[Any] = ()
    task_timeout_secs: float = DEFAULT_TASK_TIMEOUT_SECS
    data_service: Optional[str] = None

    def __post_init__(self) -> None:
        if self.tpu is not None and self.loop is not None:
            raise ConfigError("a run is on a TPU or in the TF2 loop; give one of tpu and loop")
        if self.data_service is not None and (self.tpu or self.loop):
            raise ConfigError(
                "tf_data_service works with Estimator alone; remove it, or the options of a TPU or "
                "of the TF2 loop"
            )

"""What a run is: made once by `train`, `train_and_evaluate` or `evaluate`, and passed down."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from model_fn.runs.cluster import SINGLE, Cluster
from model_fn.runs.options import TrainOptions
from model_fn.runs.stop import Stop


@dataclasses.dataclass(frozen=True)
class RunContext:
    """A run: what is trained, where, how, and by which processes.

    Attributes:
        config: `TrainEvalPipelineConfig` proto.
        model_dir: Gets checkpoints, events and exports.
        options: How the run trains.
        cluster: Processes that take part, and which one this is.
        stop: Says that the run is to end.
    """

    config: Any
    model_dir: str
    options: TrainOptions = dataclasses.field(default_factory=TrainOptions)
    cluster: Cluster = SINGLE
    stop: Stop = dataclasses.field(default_factory=Stop, compare=False)

    @property
    def num_steps(self) -> Optional[int]:
        """Global step at which training ends; None if it does not."""
        if self.options.num_train_steps is not None:
            return self.options.num_train_steps
        return self.config.train_config.num_steps or None

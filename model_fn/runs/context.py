"""Context of a run, results of steps and hooks around them: the same with every backend."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from estimator_det.console.signals import Stop
from estimator_det.protos import pipeline_pb2
from inputs.label_map import LabelMap, read_label_map
from model_fn.runs.cluster import SINGLE, Cluster
from model_fn.runs.options import TrainOptions

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


class StepResult(NamedTuple):
    """Results of one call of a backend, on the host; the same from every backend."""

    step: int  # global step after the call
    num_taken: int  # steps of this process that changed the variables
    scalars: Mapping[str, float]  # losses, LEARNING_RATE, GRADIENT_NORM of the last step
    checks: Mapping[str, float] = _NOTHING  # more numbers that must be finite
    input_wait: Optional[float] = None  # seconds that the steps waited for their batches
    # For each reader, STREAM_INDEX and AUGMENTATION_SEED of the images that the steps used.
    positions: Sequence[Mapping[str, np.ndarray]] = ()
    rejected: Mapping[str, np.ndarray] = _NOTHING  # batch of a step that was not finite; else empty
    summary: bytes = b""  # serialized Summary for TensorBoard; empty unless one is due

    @property
    def values(self) -> Dict[str, float]:
        """The scalars, and the checks that are not finite."""
        bad_checks = {name: each for name, each in self.checks.items() if not math.isfinite(each)}
        return {**self.scalars, **bad_checks}

    @property
    def is_finite(self) -> bool:
        """True if all numbers of the last step are finite."""
        return all(map(math.isfinite, self.values.values()))


class Hook:
    """Base class of hooks; `RunContext.stop` ends training after the current step."""

    def begin(self, context: RunContext, step: int) -> None:
        """Called before the first step, at the global step where training starts."""

    def before_step(self, step: int) -> None:
        """Called before each call of the backend."""

    def after_step(self, result: StepResult) -> None:
        """Called after each call of the backend."""

    def end(self, step: int) -> None:
        """Called after the last step; not after an error."""


@dataclasses.dataclass(frozen=True)
class RunContext:
    """A run: its configuration, folder, options and processes."""

    config: pipeline_pb2.TrainEvalPipelineConfig
    model_dir: str  # gets checkpoints, events and exports
    options: TrainOptions = dataclasses.field(default_factory=TrainOptions)  # how the run trains
    cluster: Cluster = SINGLE  # processes of the training, and which one this is
    stop: Stop = dataclasses.field(default_factory=Stop, compare=False)
    label_maps: Dict[str, LabelMap] = dataclasses.field(default_factory=dict, compare=False)

    def label_map(self, path: str) -> Optional[LabelMap]:
        """The label map of a path, which a run reads once; None for an empty path."""
        if path and path not in self.label_maps:
            self.label_maps[path] = read_label_map(path)
        return self.label_maps.get(path)

    @property
    def num_steps(self) -> Optional[int]:
        """Global step at which training ends; None if it does not."""
        if self.options.num_train_steps is not None:
            return self.options.num_train_steps
        return self.config.train_config.num_steps or None

    @property
    def evaluation_steps(self) -> Optional[int]:
        """Evaluations are at the multiples of this number of steps; None if time decides."""
        options = self.options.evaluation
        if options.every_steps is None and options.throttle_secs is None:
            return self.config.eval_config.eval_interval_steps or None
        return options.every_steps

    @property
    def throttle_secs(self) -> float:
        """Seconds between two evaluations, at least."""
        secs = self.options.evaluation.throttle_secs
        return self.config.eval_config.eval_interval_secs if secs is None else secs

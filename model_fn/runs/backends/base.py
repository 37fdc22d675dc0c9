"""A backend executes the steps of a run: the interface, and what several backends share."""

from __future__ import annotations

import abc
import contextlib
import copy
from typing import Any, Callable, ContextManager, Dict, List, Optional, Protocol, Sequence

from estimator_det.compat import estimator
from estimator_det.detectors.base import build_preprocessor
from inputs import pipeline as input_pipeline
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import FROM_STEP, DataCursor, derived_seed
from model_fn.model_fn import ModelFn
from model_fn.runs.cluster import SINGLE, Cluster, estimator_environment
from model_fn.runs.context import Hook, RunContext

SUMMARY_STEPS = 100  # between two summaries


class Training(Protocol):
    """A training while it runs, for its hooks."""

    def save(self, prefix: str) -> None:
        """Saves all variables as a checkpoint, without listing it."""

    def trained_names(self) -> List[str]:
        """Names of the variables that steps change."""

    def graph_def(self) -> Any:
        """The graph of a step, with shapes."""


class Backend(abc.ABC):
    """Executes the steps of one run.

    Attributes:
        position_files: Names of the files for positions in the data, one for each reader of records
            whose batches this process uses; none if positions are not kept.
    """

    def __init__(self, context: RunContext, position_files: Sequence[str]) -> None:
        self._context = context
        self.position_files = position_files

    def running(self) -> ContextManager[None]:
        """Context manager: the backend can train; its errors become errors of a run."""
        return contextlib.nullcontext()

    def common_step(self, own_step: int) -> int:
        """Step at which all processes start; a collective call in a cluster of workers."""
        return own_step

    @abc.abstractmethod
    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        """Builds the input function of training, with a cursor for each of `position_files`."""

    @abc.abstractmethod
    def train(
        self, input_fn: Callable[..., Any], make_hooks: Callable[[Training], Sequence[Hook]]
    ) -> None:
        """Trains to the last step, or until the run's `Stop` is requested."""


def make_train_input_fn(
    context: RunContext,
    cursor: Optional[DataCursor],
    first_step: int,
    fault_log: FaultLog,
    *,
    shares_steps: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Builds the input function of a training; `options` are more of `build_train_input_fn`.

    If workers share steps, the step of a batch is not known.
    """
    config, seed = copy.deepcopy(context.config), context.options.seed
    # The report of a bad step names its images.
    config.train_input_reader.include_source_id = True
    input_fn: Callable[..., Any] = input_pipeline.build_train_input_fn(
        config,
        build_preprocessor(config.model),
        seed=seed if cursor is not None else derived_seed(seed, FROM_STEP, first_step),
        fault_log=fault_log,
        label_map=context.label_map(config.train_input_reader.label_map_path),
        cursor=cursor,
        data_service=context.options.data_service,
        first_step=None if shares_steps or context.options.data_service else first_step,
        **options,
    )
    return input_fn


def make_estimator(
    model_fn: ModelFn,
    model_dir: str,
    *,
    cluster: Cluster = SINGLE,
    seed: Optional[int] = None,
    params: Optional[Dict[str, Any]] = None,
    **run_options: Any,
) -> Any:
    """Builds an `Estimator`; `run_options` are more settings of its `RunConfig`.

    The Estimator saves no checkpoints by itself: runs bring a hook for that.
    """
    with estimator_environment(cluster):
        run_config = estimator.RunConfig(
            model_dir=model_dir,
            tf_random_seed=seed,
            # The hooks of a run do that: an Estimator's fetch something else in some steps.
            save_summary_steps=0,
            log_step_count_steps=None,
            **{"save_checkpoints_steps": None, "save_checkpoints_secs": None, **run_options},
        )
    return estimator.Estimator(model_fn, config=run_config, params=params)

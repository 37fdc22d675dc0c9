"""Runs steps by `tf.estimator.Estimator` in one process."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from typing import Any, Callable, ContextManager, List, Optional, Sequence

from estimator_det.compat import estimator, tf1
from estimator_det.detectors.base import make_preprocessor
from inputs import pipeline as input_pipeline
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor, seed_at
from model_fn.evaluation.accumulator import OnResults
from model_fn.model_fn import create_model_fn
from model_fn.runs import cluster, progress
from model_fn.runs.backends.base import Evaluator, RunSettings
from model_fn.runs.data_cursor import own_position_file
from model_fn.runs.options import Saving
from model_fn.runs.summaries import SummaryHook
from model_fn.training.step import TrainGraph

_LOG = logging.getLogger(__name__)

SERVICE_LIMITS = (
    "tf.data service: each record is read once an epoch as long as no data worker fails; those "
    "that a failed one has not delivered are missing in that epoch. The position in the data is "
    "not saved: a resumed run begins with a new epoch, in a new order. A record that cannot be "
    "used ends the run, whatever bad_records says"
)
SUMMARY_STEPS = 100  # between two summaries


@cluster.environment()
def make_estimator(
    pipeline_config: Any,
    model_dir: str,
    *,
    saving: Optional[Saving] = None,
    seed: Optional[int] = None,
    graph: Optional[TrainGraph] = None,
    on_results: Optional[OnResults] = None,
    **run_options: Any,
) -> Any:
    """An `Estimator` of a pipeline configuration.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Where checkpoints and events go.
        saving: When it saves; by default every ten minutes.
        seed: Of initial values and whatever else is random in the graph.
        graph: Gets what hooks need of a training graph.
        on_results: Called with the results of an evaluation when it ends.
        **run_options: More settings of its `RunConfig`.
    """
    saving = saving or Saving()
    run_config = estimator.RunConfig(
        model_dir=model_dir,
        tf_random_seed=seed,
        keep_checkpoint_max=saving.keep_max,
        # `summary_hooks` do that: an Estimator's fetch something else in some steps.
        save_summary_steps=0,
        log_step_count_steps=None,
        save_checkpoints_steps=saving.steps,
        save_checkpoints_secs=saving.secs,
        **run_options,
    )
    model_fn = create_model_fn(pipeline_config, graph=graph, on_results=on_results)
    return estimator.Estimator(model_fn, config=run_config, params={})


def estimator_maker(settings: RunSettings) -> Callable[..., Any]:
    """`make_estimator` for a run."""
    return functools.partial(
        make_estimator,
        settings.pipeline_config,
        settings.model_dir,
        saving=settings.saving,
        seed=settings.seed,
    )


def make_train_input_fn(
    settings: RunSettings,
    cursor: Optional[DataCursor],
    first_step: int,
    fault_log: FaultLog,
    *,
    shares_steps: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """The input function of a training by Estimator.

    Args:
        settings: Of the run.
        cursor: Position in the data; None where it is not kept.
        first_step: As in `Backend.input_fn`.
        fault_log: As there.
        shares_steps: Whether other workers take steps, too, so that the step is not known.
        **options: More of `create_train_input_fn`.
    """
    config = copy.deepcopy(settings.pipeline_config)
    # The report of a bad step names its images.
    config.train_input_reader.include_source_id = True
    made: Callable[..., Any] = input_pipeline.create_train_input_fn(
        config,
        make_preprocessor(config.model),
        seed=settings.seed if cursor is not None else seed_at(settings.seed, first_step),
        fault_log=fault_log,
        cursor=cursor,
        data_service=settings.data_service,
        first_step=None if shares_steps or settings.data_service else first_step,
        **options,
    )
    return made


def summary_hooks(settings: RunSettings, graph: TrainGraph) -> List[Any]:
    """Write what a run reports to TensorBoard besides its progress."""
    return [
        tf1.train.StepCounterHook(SUMMARY_STEPS, output_dir=settings.model_dir),
        SummaryHook(settings.model_dir, graph, SUMMARY_STEPS),
    ]


class EstimatorBackend:
    """An Estimator in this process; `Backend` says what its methods do."""

    steps_per_call = 1

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.position_files: Sequence[str] = [] if settings.data_service else [own_position_file()]
        if settings.data_service is not None:
            _LOG.warning("%s", SERVICE_LIMITS)
        self._make_estimator = estimator_maker(settings)
        self.graph = TrainGraph()

    def running(self) -> ContextManager[None]:
        return contextlib.nullcontext()

    def common_step(self, own_step: int) -> int:
        return own_step

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        return make_train_input_fn(self._settings, next(iter(cursors), None), first_step, fault_log)

    def progress_hooks(self, **options: Any) -> List[Any]:
        return [
            *progress.training_hooks(self._settings, self.graph, **options),
            *summary_hooks(self._settings, self.graph),
        ]

    def train(self, input_fn: Callable[..., Any], hooks: Sequence[Any]) -> None:
        trainer, steps = self._make_estimator(graph=self.graph), self._settings.num_steps
        trainer.train(input_fn, hooks=list(hooks), max_steps=steps)

    def evaluator(self) -> Evaluator:
        return Evaluator(self._make_estimator)

"""Backends: what executes the steps of a run, behind one interface.

An Estimator, those of a cluster, a TPUEstimator, or a TF2 loop.
"""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Dict, List, Protocol, Sequence, Tuple

from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.evaluation.accumulator import Results
from model_fn.runs.cluster import PARAMETER_SERVER as SERVER_TASK
from model_fn.runs.context import Hook, RunContext
from model_fn.runs.options import PARAMETER_SERVER


class Evaluator:
    """Evaluates and exports checkpoints by an Estimator, a new one for each.

    Args:
        model_dir: Gets the events of evaluations.
        make_estimator: Takes `handle_results`, which is called with the results of an evaluation.
    """

    def __init__(self, model_dir: str, make_estimator: Callable[..., Any]) -> None:
        self.model_dir, self._make_estimator = model_dir, make_estimator

    def evaluate(
        self, input_fn: Callable[..., Any], **options: Any
    ) -> Tuple[Dict[str, Any], Results]:
        """Returns the values of `Estimator.evaluate`, and the results of the same evaluation."""
        results: List[Results] = []
        values = self._make_estimator(handle_results=results.append).evaluate(input_fn, **options)
        return values, results[-1]

    def export_saved_model(self, *arguments: Any, **options: Any) -> bytes:
        """Exports as `Estimator.export_saved_model` does; returns the folder."""
        folder: bytes = self._make_estimator().export_saved_model(*arguments, **options)
        return folder


class Backend(Protocol):
    """Executes the steps of one run."""

    # Names of the files for positions in the data, one for each reader of records whose batches
    # this process uses; none if positions are not kept.
    position_files: Sequence[str]

    def running(self) -> ContextManager[None]:
        """Context manager: the backend can train; its errors become those of a run."""

    def common_step(self, own_step: int) -> int:
        """Step at which all processes start, who may meet here; `own_step` in a single one."""

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        """Builds the input function of training; the cursors are those of `position_files`."""

    def train(self, input_fn: Callable[..., Any], hooks: Sequence[Hook]) -> None:
        """Trains to the last step, or until the run's `Stop` is requested."""

    def save(self, prefix: str) -> None:
        """Saves all variables as a checkpoint, without listing it; for hooks."""

    def trained_names(self) -> List[str]:
        """Names of the variables that steps change; for hooks."""

    def graph_def(self) -> Any:
        """The graph of a step, with shapes; for hooks."""

    def evaluator(self) -> Evaluator:
        """Evaluates and exports the checkpoints of the run."""


__all__ = ["Backend", "Evaluator", "make_backend", "serve_others"]


def make_backend(context: RunContext) -> Backend:
    """The backend of a run: an Estimator, unless options for another one are given."""
    loop, tpu, cluster = context.options.loop, context.options.tpu, context.cluster
    if loop is not None and loop.strategy == PARAMETER_SERVER and cluster.is_chief:
        from model_fn.runs.backends.coordinator import CoordinatorBackend

        return CoordinatorBackend(context, loop)
    if loop is not None:
        from model_fn.runs.backends.loop import LoopBackend

        return LoopBackend(context, loop)
    if tpu is not None:
        from model_fn.runs.backends.tpu_estimator import TpuBackend

        return TpuBackend(context, tpu)
    if not cluster.task.is_alone and not cluster.is_evaluator:
        from model_fn.runs.backends.parameter_servers import ParameterServerBackend

        return ParameterServerBackend(context)
    from model_fn.runs.backends.estimator import EstimatorBackend

    return EstimatorBackend(context)


def serve_others(context: RunContext) -> bool:
    """Runs the part of this process in a cluster, if it takes no steps; True if that is done."""
    loop, cluster = context.options.loop, context.cluster
    if loop is None:
        if cluster.task.type != SERVER_TASK:
            return False
        from model_fn.runs.backends import parameter_servers

        parameter_servers.serve(context)
        return True
    if loop.strategy != PARAMETER_SERVER or cluster.is_chief or cluster.is_evaluator:
        return False
    from model_fn.runs.backends import coordinator

    coordinator.serve(context, loop)
    return True

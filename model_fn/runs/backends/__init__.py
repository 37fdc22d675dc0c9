"""Backends: what executes the steps of a run, behind one interface.

An Estimator, those of a cluster, a TPUEstimator, or a TF2 loop.
"""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Dict, List, Protocol, Sequence, Tuple

from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.evaluation.accumulator import Results
from model_fn.runs.context import Hook


class Evaluator:
    """Evaluates and exports checkpoints by an Estimator, a new one for each.

    Args:
        model_dir: Gets the events of evaluations.
        make_estimator: Takes `handle_results`, which is called with the results of an evaluation,
            and its checkpoint.
    """

    def __init__(self, model_dir: str, make_estimator: Callable[..., Any]) -> None:
        self.model_dir, self._make_estimator = model_dir, make_estimator

    def evaluate(
        self, input_fn: Callable[..., Any], **options: Any
    ) -> Tuple[Dict[str, Any], Results]:
        """Returns the values of `Estimator.evaluate`, and the results of the same evaluation."""
        results: List[Results] = []
        estimator = self._make_estimator(
            handle_results=results.append, checkpoint=options.get("checkpoint_path")
        )
        values = estimator.evaluate(input_fn, **options)
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

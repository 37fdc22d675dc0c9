"""What a run asks of the engine that executes its steps."""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    List,
    Protocol,
    Sequence,
    Tuple,
)

from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.evaluation.accumulator import Results
from model_fn.runs.hooks import Hook


class Evaluator:
    """Evaluates and exports checkpoints by an Estimator.

    Args:
        make_estimator: Takes `on_results`, which is called with the results of each evaluation.

    Attributes:
        model_dir: Gets the events of evaluations.
    """

    def __init__(self, make_estimator: Callable[..., Any]) -> None:
        self._results: List[Results] = []
        self._estimator = make_estimator(on_results=self._results.append)
        self.model_dir: str = self._estimator.model_dir

    def evaluate(
        self, input_fn: Callable[..., Any], **options: Any
    ) -> Tuple[Dict[str, Any], Results]:
        """Returns what `Estimator.evaluate` returns, and the results of the same evaluation."""
        values = self._estimator.evaluate(input_fn, **options)
        return values, self._results.pop()

    def export_saved_model(self, *arguments: Any, **options: Any) -> bytes:
        """As `Estimator.export_saved_model`."""
        folder: bytes = self._estimator.export_saved_model(*arguments, **options)
        return folder


class Backend(Protocol):
    """Executes the steps of one run.

    Attributes:
        position_files: Where in model_dir positions in the data are saved, one for each reader of
            records whose batches this process uses; none where positions are not kept.
    """

    position_files: Sequence[str]

    def running(self) -> ContextManager[None]:
        """Within, the backend can train; its errors become those of a run."""

    def common_step(self, own_step: int) -> int:
        """The step at which all processes of the run start; for some this is where they meet.

        Args:
            own_step: Where this process would start, by what it has found in model_dir.
        """

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        """The input function of training.

        Args:
            cursors: Positions in the data, of `position_files`.
            first_step: Where training starts.
            fault_log: Gets the faults of records.
        """

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

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
from model_fn.training.step import TrainGraph


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
        graph: What hooks take from the training graph, once it is built.
        position_files: Where in model_dir positions in the data are saved, one for each reader of
            records whose batches this process uses; none where positions are not kept.
        steps_per_call: Steps between two returns to the hooks.
    """

    graph: TrainGraph
    position_files: Sequence[str]
    steps_per_call: int

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

    def progress_hooks(self, *, every_steps: int, silent: bool, fault_log: FaultLog) -> List[Any]:
        """The hooks that report progress, and end training at a step that is not finite.

        Args:
            every_steps: Steps between two reports.
            silent: Nothing on the terminal; files are written all the same.
            fault_log: Its counts go to TensorBoard.
        """

    def train(self, input_fn: Callable[..., Any], hooks: Sequence[Any]) -> None:
        """Trains to the last step.

        Args:
            input_fn: Of `input_fn`.
            hooks: Called around each step, in this order.
        """

    def evaluator(self) -> Evaluator:
        """Evaluates and exports the checkpoints of the run."""

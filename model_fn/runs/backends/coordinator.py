"""Steps of workers that share their variables on parameter servers, but not their steps.

The chief is TensorFlow's coordinator: it takes no steps itself, and gives each step to a worker
that is free. Workers and parameter servers only serve it. A call of the loop is a number of steps,
whoever takes them; between two calls no worker takes one, so what is saved there is whole, and
belongs to a step.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

from estimator_det.compat import WorkerPool, failures, iterator_spec, tf
from estimator_det.errors import VARIABLES_LOST, MissingTaskError, RunError, SessionLostError
from inputs import schema
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.runs.backends import strategies
from model_fn.runs.backends.base import Training, make_train_input_fn
from model_fn.runs.backends.loop import LoopBackend, Take
from model_fn.runs.cluster import WORKER, Cluster, Task
from model_fn.runs.context import Hook, RunContext
from model_fn.runs.data_cursor import report_split, worker_file
from model_fn.runs.options import STEPS_OF_WORKER
from model_fn.runs.task_watch import check_free, wait_for, watch_run
from model_fn.runs.training_end import TrainingEnd
from model_fn.training.loop_step import LoopStep, Outcome, unpacked
from model_fn.training.step import Tensors

_LOG = logging.getLogger(__name__)

_AHEAD = 2  # steps that each worker has: it takes the first while the second waits
_POLL_SECS = 0.002

_WorkerOutcome = Tuple[int, Outcome]  # by which worker


class _WorkerSteps:
    """Steps on the workers; `input_fn` returns the input function of a worker's number."""

    def __init__(
        self,
        strategy: Any,
        loop_step: LoopStep,
        input_fn: Callable[[int], Callable[..., Any]],
        num_workers: int,
    ) -> None:
        self._strategy, self._input_fn, self._num_workers = strategy, input_fn, num_workers
        self._pool = WorkerPool(strategy)
        # All datasets are built here, so that their errors are raised in this process.
        datasets = [self._dataset(number) for number in range(num_workers)]
        dataset = datasets[0].structured_outputs
        loop_step.build(dataset.element_spec)
        spec = iterator_spec(strategy, dataset)
        self.function, self._example = loop_step.function_of_worker(spec)
        self._iterators = self._pool.create_on_workers(
            lambda number: iter(self._dataset(number)()), spec
        )
        self._numbers = self._pool.create_on_workers(tf.constant, tf.TensorSpec([], tf.int32))

    def _dataset(self, number: int) -> Any:
        """A function that runs on a worker: its dataset, from its position in the data on."""

        def worker_dataset(context: Any) -> tf.data.Dataset:
            # In TensorFlow's context each worker is the only one.
            replicas = context.num_replicas_in_sync
            part = tf.distribute.InputContext(self._num_workers, number, replicas)
            return self._input_fn(number)(input_context=part)

        @tf.function(autograph=False)
        def dataset() -> Any:
            return self._strategy.distribute_datasets_from_function(worker_dataset)

        return dataset.get_concrete_function()

    def begin(self, wants_batch: bool) -> Any:
        """Gives a step to the next worker that is free; returns its result to be."""
        return self._pool.schedule(
            self.function, self._iterators, self._numbers, tf.constant(wants_batch)
        )

    def has_ended(self, result: Any) -> bool:
        return bool(self._pool.has_ended(result))

    def outcome(self, result: Any) -> _WorkerOutcome:
        return unpacked(result.get(), self._example)


class CoordinatorBackend(LoopBackend):
    """The chief of a cluster whose workers take steps each for itself."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._cluster = context.cluster
        self._workers = self._cluster.tasks(WORKER)
        self._steps_per_call = self._loop.steps_per_call or (STEPS_OF_WORKER * len(self._workers))
        self.position_files = [worker_file(task) for task in self._workers]
        self._watch = watch_run(context, TrainingEnd(context.model_dir, context.num_steps))

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        """Returns a function from a worker's number to its input function."""
        readers = {WORKER: list(self._cluster.jobs[WORKER])}
        reported: Set[int] = set()

        def worker_input_fn(number: int) -> Callable[..., Any]:
            member = Cluster(readers, Task(WORKER, number))
            report = functools.partial(report_split, self._context.model_dir, member, first_step)
            is_new = number not in reported
            reported.add(number)
            return make_train_input_fn(
                self._context,
                cursors[number],
                first_step,
                fault_log,
                shares_steps=True,
                runs_elsewhere=True,
                on_split=report if is_new else None,
            )

        return worker_input_fn

    def train(
        self, input_fn: Callable[..., Any], make_hooks: Callable[[Training], Sequence[Hook]]
    ) -> None:
        """Trains once the other tasks are there.

        The loss of a parameter server becomes a `SessionLostError`, after which training begins
        again, with a new strategy.
        """
        if self._strategy is None:
            check_free(self._cluster)  # Later this process itself listens there.
        others = [*self._workers, *self._cluster.servers]
        _LOG.info("%s waits for %s", self._cluster.task, ", ".join(map(str, others)))
        with self._watch.watching():
            wait_for(self._cluster, others, self._context.stop)
            self._strategy = strategies.parameter_servers(self._cluster)
            self._check_replicas(self._strategy.num_replicas_in_sync)
            try:
                super().train(input_fn, make_hooks)
            except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
                if not failures.names_task(error):
                    raise  # For example, an error of storage.
                _LOG.warning("A parameter server was lost: %s", failures.reason(error))
                raise SessionLostError(VARIABLES_LOST) from error
        self._context.stop.raise_if_requested()

    def _make_call(
        self, loop_step: LoopStep, input_fn: Callable[..., Any]
    ) -> Tuple[Take, tf.Graph]:
        steps = _WorkerSteps(self._strategy, loop_step, input_fn, len(self._workers))

        def take(num_steps: int, stops: Sequence[bool]) -> Optional[Outcome]:
            del stops
            before = int(loop_step.global_step.numpy())
            try:
                results = self._steps_of_workers(steps, num_steps)
            except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
                reason = failures.reason(error).rstrip(".")
                raise RunError(
                    f"a worker failed: {reason}. If a record is at fault, estimator-det check-data "
                    "names it; remove it, for these workers cannot skip it"
                ) from error
            if not results:
                return None
            outcome = _merged(results, len(self._workers))
            # A step of a worker that is lost meanwhile may have been taken twice.
            loop_step.global_step.assign(before + int(outcome.num_taken))
            return outcome

        return take, steps.function.graph

    def _steps_of_workers(self, steps: _WorkerSteps, num_steps: int) -> List[_WorkerOutcome]:
        """Returns steps in the order in which they ended; fewer if training is to stop.

        No step runs any more at the return, so that a checkpoint saved then is whole. If no step
        ends for too long, the process ends.
        """
        running: List[Any] = []
        results: List[_WorkerOutcome] = []
        number, is_over, ended_at = 0, False, time.monotonic()
        while True:
            while number < num_steps and len(running) < _AHEAD * len(self._workers):
                if is_over or self._context.stop.is_requested:
                    break
                running.append(steps.begin(number == 0))
                number += 1
            if not running:
                return results
            for result in [each for each in running if steps.has_ended(each)]:
                running.remove(result)
                results.append(steps.outcome(result))
                is_over = is_over or not bool(results[-1][1].is_finite)
                ended_at = time.monotonic()
            if time.monotonic() - ended_at >= self._context.options.task_timeout_secs:
                self._give_up()
            time.sleep(_POLL_SECS)

    def _give_up(self) -> None:
        """Ends the process: workers have taken too long for a step."""
        secs = self._context.options.task_timeout_secs
        hangs = MissingTaskError(
            f"no step of the workers has ended for {secs:g} seconds: one of them hangs, or a step "
            f"takes longer. See the logs of {', '.join(map(str, self._workers))}, then start all "
            "tasks again: the run resumes from its last checkpoint. --task_timeout_secs sets the "
            "time"
        )
        self._watch.give_up(hangs)


def _merged(results: Sequence[_WorkerOutcome], num_workers: int) -> Outcome:
    """Outcome of a call: from the first step that was not finite, or else from the last step."""
    outcomes = [outcome for _, outcome in results]
    bad = [outcome for outcome in outcomes if not bool(outcome.is_finite)]
    reported = bad[0] if bad else outcomes[-1]
    with_batch = [each for each in outcomes if len(each.batches[0][0][schema.IMAGE])]

    def position_of(worker: int) -> Tensors:
        parts = [outcome.positions[0] for number, outcome in results if number == worker]
        return {
            key: tf.concat([value[:0], *(part[key] for part in parts)], 0)
            for key, value in reported.positions[0].items()
        }

    return reported._replace(
        num_taken=tf.add_n([outcome.num_taken for outcome in outcomes]),
        batches=(bad or with_batch)[0].batches,
        # Workers wait for their batches at the same time.
        input_wait=tf.add_n([outcome.input_wait for outcome in outcomes]) / num_workers,
        positions=tuple(map(position_of, range(num_workers))),
    )

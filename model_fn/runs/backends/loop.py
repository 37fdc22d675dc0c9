"""Runs steps by a TF2 loop under a strategy of `tf.distribute`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import signal
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import global_seed, tf, tf1
from estimator_det.config.derived_models import static_batches
from estimator_det.console.printing import counted
from estimator_det.console.signals import Stopped
from inputs import tpu as tpu_input
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.runs import roles
from model_fn.runs.backends import strategies, workers
from model_fn.runs.backends.base import (
    SUMMARY_STEPS,
    Backend,
    Training,
    make_train_input_fn,
)
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.data_cursor import position_file, report_split
from model_fn.runs.options import (
    LOCAL,
    MULTI_WORKER,
    TPU,
    LoopOptions,
    TpuOptions,
)
from model_fn.runs.precision import network_types
from model_fn.training import warm_start
from model_fn.training.loop_state import LoopState, first_worker_values
from model_fn.training.loop_step import LoopStep, LoopSummary, Outcome, used_by_step

_LOG = logging.getLogger(__name__)
_SEED_0 = 2**31 - 2  # global seed in place of 0; TensorFlow reads 2**31 - 1 as 0


# (number of steps, whether this process wants to stop and got a signal) -> outcome of the last
# step; None if none was taken.
Take = Callable[[int, Sequence[bool]], Optional[Outcome]]


class _LoopTraining:
    """The training of a loop.

    Args:
        graph: Graph of a step.
        summarize: Serializes the Summary of a call's last step.
        agrees: True if the workers of a cluster take each step together.
    """

    def __init__(
        self,
        context: RunContext,
        take: Take,
        graph: tf.Graph,
        state: LoopState,
        summarize: Callable[[Outcome], bytes],
        *,
        steps_per_call: int,
        agrees: bool,
    ) -> None:
        self._context, self._take_steps, self._graph, self._state = context, take, graph, state
        self._summarize, self._steps_per_call, self._agrees = summarize, steps_per_call, agrees
        self._has_agreed = False  # that the run stops, with the other workers
        self._timer = tf1.train.SecondOrStepTimer(every_steps=SUMMARY_STEPS)

    def save(self, prefix: str) -> None:
        self._state.save(prefix)

    def trained_names(self) -> List[str]:
        return self._state.trained_names

    def graph_def(self) -> Any:
        return self._graph.as_graph_def(add_shapes=True)

    def run(self, hooks: Sequence[Hook], step: int) -> int:
        """Calls until the last step, the end of the data, or a stop; returns the step there."""
        context, last = self._context, self._context.num_steps
        for hook in hooks:
            hook.begin(context, step)
        while not self._is_stopped and (last is None or step < last):
            for hook in hooks:
                hook.before_step(step)
            result = self._take(step)
            if result is None:
                break
            step = result.step
            for hook in hooks:
                hook.after_step(result)
        return step

    @property
    def _is_stopped(self) -> bool:
        """True if the run is to stop; workers stop together, after a call in which all learn it."""
        return self._has_agreed if self._agrees else self._context.stop.is_requested

    def _take(self, step: int) -> Optional[StepResult]:
        """One call of the loop; None if it took no step."""
        # Calls end at multiples of these, so that reports and saves come at their steps.
        every = (self._steps_per_call, self._context.options.checkpoints.steps)
        ends = [each * (step // each + 1) for each in every if each]
        stop, last = self._context.stop, self._context.num_steps
        num_steps = min([*ends, *([] if last is None else [last])]) - step
        try:
            outcome = self._take_steps(num_steps, (stop.is_requested, stop.cause is not None))
        except tf.errors.OutOfRangeError:
            _LOG.info("The data ended after step %d", step)
            return None
        if outcome is None:
            return None
        is_asked, is_signalled = (bool(each) for each in outcome.stops)
        self._has_agreed = is_asked
        if is_signalled and stop.cause is None:  # before hooks save and evaluate
            stop.request(Stopped(signal.SIGTERM))
        return self._result(outcome, step)

    def _result(self, outcome: Outcome, step_before: int) -> StepResult:
        step = step_before + int(outcome.num_taken)
        is_due = self._context.cluster.is_chief and self._timer.should_trigger_for_step(step)
        if is_due:
            self._timer.update_last_triggered_step(step)
        return StepResult(
            step=step,
            num_taken=int(outcome.num_taken),
            scalars={name: float(value) for name, value in outcome.scalars.items()},
            checks={name: float(value) for name, value in outcome.checks.items()},
            input_wait=float(outcome.input_wait),
            positions=tf.nest.map_structure(np.asarray, outcome.positions),
            rejected={} if bool(outcome.is_finite) else _inputs(outcome.batches),
            summary=self._summarize(outcome) if is_due else b"",
        )


class LoopBackend(Backend):
    """A TF2 loop in this process."""

    def __init__(self, context: RunContext) -> None:
        loop = context.options.loop
        assert loop is not None
        # None with parameter servers, which only a training with steps left waits for.
        strategy: Any = strategies.set_up(
            loop, context.cluster, context.options.task_timeout_secs
        ).distribution
        files = [position_file(context.cluster)]
        if loop.strategy == TPU:
            context = _for_tpu(context, loop, strategy.num_replicas_in_sync)
            if strategy.extended.num_hosts > 1:
                # Each host reads a part of the records, and this process sees one position.
                files = []
        super().__init__(context, files)
        self._loop, self._strategy = loop, strategy
        takes_single_steps = roles.takes_single_steps(context)
        self._steps_per_call = 1 if takes_single_steps else loop.steps_per_call or 1
        self._has_workers = loop.strategy == MULTI_WORKER
        self._is_on_tpu = loop.strategy == TPU
        if strategy is not None:
            self._check_replicas(strategy.num_replicas_in_sync)

    def _check_replicas(self, number: int) -> None:
        roles.check_batch(self._context.config, self._loop, number)
        _LOG.info("Strategy %s: %s", self._loop.strategy, counted(number, "replica"))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context manager: sets TensorFlow's seed."""
        before, seed = global_seed(), self._context.options.seed
        # Datasets compare a global seed of 0 with their own, a tensor, which functions refuse.
        tf.random.set_seed(_SEED_0 if seed == 0 else seed)
        try:
            yield
        finally:
            tf.random.set_seed(before)

    def _explaining_lost_workers(self) -> ContextManager[None]:
        if not self._has_workers:
            return contextlib.nullcontext()
        secs = self._context.options.task_timeout_secs
        return workers.explain_lost_workers(self._context.cluster, secs)

    def common_step(self, own_step: int) -> int:
        if not self._has_workers:
            return own_step
        with self._explaining_lost_workers():
            (step,) = first_worker_values(self._strategy, lambda: [tf.constant(own_step, tf.int64)])
        workers.check_folder(self._context.model_dir)
        return int(step)

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        model_dir = self._context.model_dir
        return make_train_input_fn(
            self._context,
            next(iter(cursors), None),
            first_step,
            fault_log,
            runs_elsewhere=self._is_on_tpu and self._loop.tpu_name != LOCAL,
            on_split=functools.partial(report_split, model_dir, self._context.cluster, first_step),
        )

    def train(
        self, input_fn: Callable[..., Any], make_hooks: Callable[[Training], Sequence[Hook]]
    ) -> None:
        context = self._context
        with self._explaining_lost_workers():
            loop_step = LoopStep(
                self._strategy,
                context.config,
                num_parts=self._loop.accumulate_steps,
                types=network_types(context.options),
                jit_compile=self._loop.jit_compile,
            )
            take, graph = self._make_call(loop_step, input_fn)
            self._restore(loop_step.state)
            training = _LoopTraining(
                context,
                take,
                graph,
                loop_step.state,
                LoopSummary(
                    context.label_map(context.config.train_input_reader.label_map_path), loop_step
                ),
                steps_per_call=self._steps_per_call,
                agrees=self._has_workers,
            )
            hooks = make_hooks(training)
            step = training.run(hooks, int(loop_step.global_step.numpy()))
        for hook in hooks:  # Other workers may leave.
            hook.end(step)

    def _restore(self, state: LoopState) -> None:
        """Restores the variables; in a cluster, all workers get the values of the chief."""
        context, values = self._context, state.values()
        if context.cluster.is_chief:
            latest = tf1.train.latest_checkpoint(context.model_dir)
            if latest is None:
                values = state.first_values(
                    warm_start.fine_tuned_values(
                        context.config, lambda: make_train_input_fn(context, None, 0, FaultLog())()
                    )
                )
            else:
                values.update(state.stored_values(latest, context.config.model))
        # The same assignments in every worker, in the same order: some count as communication.
        state.restore(values)
        if self._has_workers:
            state.agree()

    def _make_call(
        self, loop_step: LoopStep, input_fn: Callable[..., Any]
    ) -> Tuple[Take, tf.Graph]:
        """Builds the variables; returns the function of a call, and the graph of a step."""
        # Texts, such as names of images, cannot go to a GPU.
        host_options = tf.distribute.InputOptions(experimental_fetch_to_device=False)

        def worker_dataset(context: Any) -> tf.data.Dataset:
            dataset = input_fn(input_context=context)
            if not self._has_workers:
                return dataset
            # If data may end, workers have to agree on that at each step.
            endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            return dataset.apply(endless)

        distributed = self._strategy.distribute_datasets_from_function(worker_dataset, host_options)
        iterator = iter(distributed)
        if self._is_on_tpu:
            for specs in distributed.element_spec:
                tpu_input.check_static(used_by_step(specs))
        loop_step.build(distributed.element_spec)
        function = loop_step.function(
            tf.type_spec_from_value(iterator), loops=self._steps_per_call > 1
        )

        def take(num_steps: int, stops: Sequence[bool]) -> Outcome:
            stop_values = tf.constant([float(each) for each in stops])
            return function(iterator, tf.constant(num_steps), stop_values)

        return take, function.graph


def _for_tpu(context: RunContext, loop: LoopOptions, num_cores: int) -> RunContext:
    """The run with whole batches; warns of settings that slow a TPU, and refuses others."""
    config = static_batches(context.config)
    for finding in roles.check_tpu(
        config, context.model_dir, TpuOptions(loop.tpu_name, num_shards=num_cores)
    ):
        if finding.severity == "warning":
            _LOG.warning("%s", finding)
    return dataclasses.replace(context, config=config)


def _inputs(batches: Sequence[Any]) -> Dict[str, np.ndarray]:
    """The batches of all replicas under the names of a `RejectedBatch`."""
    return {
        f"{prefix}/{key}": np.concatenate([np.asarray(batch[part][key]) for batch in batches])
        for part, prefix in enumerate(("features", "labels"))
        for key in batches[0][part]
    }

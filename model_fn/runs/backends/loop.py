"""Runs steps by a TF2 loop under a strategy of `tf.distribute`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import signal
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence

import numpy as np

from estimator_det.compat import global_seed, tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.console.printing import counted
from estimator_det.detectors.base import make_detector
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.checkpoints.repair import restoring
from model_fn.checkpoints.variables import AVERAGE_SUFFIX, check_resumable
from model_fn.runs.backends import strategies, workers
from model_fn.runs.backends.estimator import (
    SUMMARY_STEPS,
    EstimatorBackend,
    make_train_input_fn,
    network_type,
)
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.data_cursor import report_split
from model_fn.runs.options import (
    LOCAL,
    MIXED_BFLOAT16,
    MIXED_FLOAT16,
    MULTI_WORKER,
    TPU,
    LoopOptions,
    TpuOptions,
    check_batch,
    check_loop,
    check_static,
    check_tpu,
    static_batches,
)
from model_fn.runs.signals import Stopped
from model_fn.training import step, warm_start
from model_fn.training.loop_state import LoopState, first_worker_values
from model_fn.training.loop_step import LoopStep, LoopSummary, Outcome, used_by_step

_LOG = logging.getLogger(__name__)


# Takes a number of steps, given `Outcome.stops` of this process; None if no step can be taken.
Take = Callable[[int, Sequence[bool]], Optional[Outcome]]


class LoopBackend(EstimatorBackend):
    """A TF2 loop in this process; evaluations and exports are those of an Estimator.

    `Backend` says what its methods do.
    """

    def __init__(self, context: RunContext, loop: LoopOptions) -> None:
        for hook in context.options.hooks:
            if not isinstance(hook, Hook):
                raise ConfigError(
                    "hooks",
                    f"{type(hook).__name__} needs a session, and the TF2 loop has none",
                    "Derive it from model_fn.Hook, or train without --strategy",
                )
        check_loop(context.config, loop)
        super().__init__(context)
        self._loop = loop
        self.steps_per_call = loop.steps_per_call or 1
        if self.steps_per_call > 1 and context.config.train_input_reader.num_epochs:
            # Data that end within a call would hide the steps before their end.
            _LOG.warning(
                "steps_per_call is 1 instead of %d, because train_input_reader.num_epochs may end "
                "the data within a call. To keep it, set num_epochs to 0 and end the training by "
                "num_train_steps",
                self.steps_per_call,
            )
            self.steps_per_call = 1
        self._has_workers = loop.strategy == MULTI_WORKER
        self._is_on_tpu = loop.strategy == TPU
        self._compute_dtype = network_type(context)
        self._strategy: Any = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Sets up devices, and TensorFlow's seed within."""
        self._make_strategy()
        before = global_seed()
        tf.random.set_seed(self._context.options.seed)
        try:
            yield
        finally:
            tf.random.set_seed(before)

    def _make_strategy(self) -> None:
        secs = self._context.options.task_timeout_secs
        self._strategy = strategies.set_up(self._loop, self._context.cluster, secs).distribution
        number = self._strategy.num_replicas_in_sync
        if self._is_on_tpu:
            self._apply_tpu_constraints(number)
        check_batch(self._context.config, self._loop, number)
        _LOG.info("Strategy %s: %s", self._loop.strategy, counted(number, "replica"))
        if self._compute_dtype == tf.float16 and not tf.config.list_logical_devices("GPU"):
            _LOG.warning(
                "precision is %s, and there is no GPU: a CPU takes many times as long in float16 "
                "as in float32. Use %s, or leave --precision out",
                MIXED_FLOAT16,
                MIXED_BFLOAT16,
            )

    def _apply_tpu_constraints(self, num_cores: int) -> None:
        config = static_batches(self._context.config)
        tpu_options = TpuOptions(self._loop.tpu_name, num_shards=num_cores)
        for finding in check_tpu(config, self._context.model_dir, tpu_options):
            if finding.severity == "warning":
                _LOG.warning("%s", finding)
        self._context = dataclasses.replace(self._context, config=config)
        if self._strategy.extended.num_hosts > 1:
            # Each host reads a part of the records, and this process sees one position.
            self.position_files = []

    def _together(self) -> ContextManager[None]:
        if not self._has_workers:
            return contextlib.nullcontext()
        return workers.together(self._context.cluster, self._context.options.task_timeout_secs)

    def common_step(self, own_step: int) -> int:
        if not self._has_workers:
            return own_step
        with self._together():
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
            on_split=functools.partial(report_split, model_dir, self._context.cluster),
        )

    def train(self, input_fn: Callable[..., Any], hooks: Sequence[Hook]) -> None:
        with self._together():
            loop_step = LoopStep(
                self._strategy,
                self._context.config,
                num_parts=self._loop.accumulate_steps,
                compute_dtype=self._compute_dtype,
                jit_compile=self._loop.jit_compile,
            )
            self._loop_step = loop_step
            self._take_steps_of_call = self._make_call(loop_step, input_fn)
            start(loop_step.state, self._context, has_copies=self._has_workers)
            self._summary = LoopSummary(self._context.config.train_input_reader, loop_step)
            self._has_agreed = False  # that the run stops, with the other workers
            self._timer = tf1.train.SecondOrStepTimer(every_steps=SUMMARY_STEPS)
            step = self._take_steps(hooks, int(loop_step.global_step.numpy()))
        for hook in hooks:  # Other workers may leave.
            hook.end(step)

    def _take_steps(self, hooks: Sequence[Hook], step: int) -> int:
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
        return self._has_agreed if self._has_workers else self._context.stop.is_requested

    def _take(self, step: int) -> Optional[StepResult]:
        """One call of the loop; None if it took no step."""
        # Calls end at multiples of these, so that reports and saves come at their steps.
        every = (self.steps_per_call, self._context.options.checkpoints.steps)
        ends = [each * (step // each + 1) for each in every if each]
        stop, last = self._context.stop, self._context.num_steps
        num_steps = min([*ends, *([] if last is None else [last])]) - step
        try:
            outcome = self._take_steps_of_call(
                num_steps, (stop.is_requested, stop.cause is not None)
            )
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
            summary=self._summary(outcome) if is_due else b"",
        )

    def _make_call(self, loop_step: LoopStep, input_fn: Callable[..., Any]) -> Take:
        """Builds the variables, and what a call of the loop executes."""
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
                check_static(used_by_step(specs))
        loop_step.build(distributed.element_spec)
        function = loop_step.function(
            tf.type_spec_from_value(iterator), loops=self.steps_per_call > 1
        )

        def take(num_steps: int, stops: Sequence[bool]) -> Outcome:
            stop_values = tf.constant([float(each) for each in stops])
            return function(iterator, tf.constant(num_steps), stop_values)

        self._graph = function.graph
        return take

    def save(self, prefix: str) -> None:
        tf.io.gfile.makedirs(os.path.dirname(prefix))
        values = self._loop_step.state.values()
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=list(values.values()),
        )

    def trained_names(self) -> List[str]:
        return self._loop_step.state.trained_names

    def graph_def(self) -> Any:
        return self._graph.as_graph_def(add_shapes=True)


def _inputs(batches: Sequence[Any]) -> Dict[str, np.ndarray]:
    """The (features, labels) of all replicas by the names that `RejectedBatch` has."""
    return {
        f"{prefix}/{key}": np.concatenate([np.asarray(batch[part][key]) for batch in batches])
        for part, prefix in enumerate(("features", "labels"))
        for key in batches[0][part]
    }


def start(state: LoopState, context: RunContext, *, has_copies: bool) -> None:
    """Restores the variables of a loop; in a cluster to the values that its chief has.

    Args:
        has_copies: True if each worker of a cluster has the variables, and calls this.
    """
    # The same assignments in every worker, in the same order: some count as communication.
    values = state.values()
    if context.cluster.is_chief:
        values.update(_values(state, context))
    state.restore(values)
    if has_copies:
        state.agree()


def _values(state: LoopState, context: RunContext) -> Dict[str, np.ndarray]:
    latest = tf1.train.latest_checkpoint(context.model_dir)
    if latest is not None:
        with restoring(latest):
            reader = tf1.train.load_checkpoint(latest)
            names = set(reader.get_variable_to_shape_map())
            check_resumable(latest, state.variables, context.config.model)
            wanted = [*state.variables, *names.intersection(state.extra)]
            return {name: reader.get_tensor(name) for name in wanted}
    values = {**state.values(), **_fine_tuned(context)}
    for name in state.variables:
        if name.endswith(AVERAGE_SUFFIX):  # They start where variables do.
            values[name] = values[name[: -len(AVERAGE_SUFFIX)]]
    return values


def _fine_tuned(context: RunContext) -> Dict[str, np.ndarray]:
    """Values of `fine_tune_checkpoint` by variable; empty without one.

    Detectors name what it restores by the variables of a graph, which is built for that.
    """
    model, train_config = context.config.model, context.config.train_config
    if not train_config.fine_tune_checkpoint:
        return {}
    with tf.Graph().as_default():
        dataset = make_train_input_fn(context, None, 0, FaultLog())()
        features, labels = tf1.data.make_initializable_iterator(dataset).get_next()
        detector = make_detector(model, is_training=True)
        step.forward(detector, features, labels, add_regularization=False)
        table = warm_start.plan_warm_start(detector, train_config, None, model)
    assert table is not None
    reader = tf1.train.load_checkpoint(table.path)
    return {variable.op.name: reader.get_tensor(name) for name, variable in table.restored.items()}

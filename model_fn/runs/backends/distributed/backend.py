"""Runs steps by a TF2 loop under a strategy of `tf.distribute`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import signal
from typing import Any, Callable, ContextManager, Iterator, List, NamedTuple, Optional, Sequence

from estimator_det.compat import tf, tf1
from estimator_det.config.fields import check_supported
from estimator_det.config.printing import counted
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.runs import loop_options, progress, tpu_options
from model_fn.runs.backends.distributed import strategies, workers
from model_fn.runs.backends.distributed.session import HookedLoop, LoopSaver, LoopSession
from model_fn.runs.backends.distributed.start import start
from model_fn.runs.backends.distributed.summaries import LoopSummaries
from model_fn.runs.backends.estimator import (
    SUMMARY_STEPS,
    EstimatorBackend,
    make_train_input_fn,
)
from model_fn.runs.context import RunContext
from model_fn.runs.data_split import report_split
from model_fn.runs.loop_options import LoopOptions
from model_fn.runs.signals import Stopped
from model_fn.runs.tpu_options import TpuOptions
from model_fn.training.loop_step import LoopStep, Outcome, used_by_step

_LOG = logging.getLogger(__name__)

_TYPES = {
    loop_options.FLOAT32: tf.float32,
    loop_options.MIXED_FLOAT16: tf.float16,
    loop_options.MIXED_BFLOAT16: tf.bfloat16,
}


Take = Callable[[int, Sequence[bool]], Optional[Outcome]]  # None if no step can be taken


class Call(NamedTuple):
    """What takes steps between two returns to the hooks."""

    graph: tf.Graph  # of a step, for TensorBoard
    example: Outcome  # its structure counts
    take: Take  # num_steps, and `Outcome.stops` of this process


class LoopBackend(EstimatorBackend):
    """A TF2 loop in this process; evaluations and exports are those of an Estimator.

    `Backend` says what its methods do.

    Args:
        context: Of the run.
        loop: How the loop takes its steps.
    """

    def __init__(self, context: RunContext, loop: LoopOptions) -> None:
        check_supported(context.config, "")
        loop_options.check_config(context.config, loop)
        super().__init__(context)
        self._loop = loop
        self.steps_per_call = loop.steps_per_call or 1
        self._has_workers = loop.strategy == loop_options.MULTI_WORKER
        self._is_on_tpu = loop.strategy == loop_options.TPU
        is_narrow = self._is_on_tpu and context.config.train_config.use_bfloat16
        by_default = loop_options.MIXED_BFLOAT16 if is_narrow else loop_options.FLOAT32
        self._precision = loop.precision or by_default
        self._strategy: Any = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Sets up devices, and TensorFlow's seed within."""
        if self._context.cluster.is_evaluator:
            yield
            return
        self._make_strategy()
        tf.random.set_seed(self._context.options.seed)
        try:
            yield
        finally:
            tf.random.set_seed(None)

    def _make_strategy(self) -> None:
        secs = self._context.options.task_timeout_secs
        self._strategy = strategies.set_up(self._loop, self._context.cluster, secs).made
        number = self._strategy.num_replicas_in_sync
        if self._is_on_tpu:
            self._suit_tpu(number)
        loop_options.check_batch(self._context.config, self._loop, number)
        _LOG.info("Strategy %s: %s", self._loop.strategy, counted(number, "replica"))
        if self._precision == loop_options.MIXED_FLOAT16 and not _has_gpu():
            _LOG.warning(
                "precision is %s, and there is no GPU: a CPU takes many times as long in float16 "
                "as in float32. Use %s, or leave --precision out",
                loop_options.MIXED_FLOAT16,
                loop_options.MIXED_BFLOAT16,
            )

    def _suit_tpu(self, num_cores: int) -> None:
        config = tpu_options.static_batches(self._context.config)
        on_tpu = TpuOptions(self._loop.tpu_name, num_shards=num_cores)
        for finding in tpu_options.check(config, self._context.model_dir, on_tpu):
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
        if not self._has_workers or self._context.cluster.is_evaluator:
            return own_step
        with self._together():
            step = workers.of_first(self._strategy, own_step)
        workers.check_folder(self._context.model_dir)
        return step

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        model_dir = self._context.model_dir
        return make_train_input_fn(
            self._context,
            next(iter(cursors), None),
            first_step,
            fault_log,
            runs_elsewhere=self._is_on_tpu and self._loop.tpu_name != loop_options.LOCAL,
            on_split=functools.partial(report_split, model_dir, self._context.cluster),
        )

    def progress_hooks(self, **options: Any) -> List[Any]:
        is_chief = self._context.cluster.is_chief
        # All workers have the same numbers.
        options["silent"] = options["silent"] or not is_chief
        return progress.training_hooks(self._context, self.graph, writes=is_chief, **options)

    def train(self, input_fn: Callable[..., Any], hooks: Sequence[Any]) -> None:
        with self._together():
            loop_step = LoopStep(
                self._strategy,
                self._context.config,
                num_parts=self._loop.accumulate_steps,
                in_type=_TYPES[self._precision],
                jit_compile=self._loop.jit_compile,
            )
            call = self._make_call(loop_step, input_fn)
            start(loop_step, self._context, has_copies=self._has_workers)
            session = LoopSession(loop_step, call.graph)
            self.graph.fill(LoopSaver(loop_step), session.train_step(call.example))
            hooked = HookedLoop(session, [*hooks, *self._summaries(loop_step)])
            self._take_steps(call.take, loop_step, hooked)
        hooked.end()

    def _make_call(self, loop_step: LoopStep, input_fn: Callable[..., Any]) -> Call:
        """Builds the variables, and what a call of the loop executes."""
        # Texts, such as names of images, cannot go to a GPU.
        on_host = tf.distribute.InputOptions(experimental_fetch_to_device=False)

        def of_worker(context: Any) -> tf.data.Dataset:
            dataset = input_fn(input_context=context)
            if not self._has_workers:
                return dataset
            # Where data may end, workers would agree at each step whether they have.
            endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            return dataset.apply(endless)

        distributed = self._strategy.distribute_datasets_from_function(of_worker, on_host)
        iterator = iter(distributed)
        if self._is_on_tpu:
            for specs in distributed.element_spec:
                tpu_options.check_static(used_by_step(specs))
        loop_step.build(distributed.element_spec)
        function = loop_step.function(iterator._type_spec, loops=self.steps_per_call > 1)

        def take(num_steps: int, stops: Sequence[bool]) -> Outcome:
            given = tf.constant([float(each) for each in stops])
            return function(iterator, tf.constant(num_steps), given)

        return Call(function.graph, function.structured_outputs, take)

    def _summaries(self, loop_step: LoopStep) -> List[Any]:
        if not self._context.cluster.is_chief:
            return []
        pipeline_config, model_dir = self._context.config, self._context.model_dir
        return [
            tf1.train.StepCounterHook(SUMMARY_STEPS, output_dir=model_dir),
            LoopSummaries(pipeline_config, model_dir, loop_step, SUMMARY_STEPS),
        ]

    def _take_steps(self, take: Take, loop_step: LoopStep, hooked: HookedLoop) -> None:
        """Calls until the last step, the end of the data, or a stop that a hook asked for."""
        last, stop, wants_stop = self._context.num_steps, self._context.stop, False
        # Calls end at multiples of these, so that reports and saves come at their steps.
        save_steps = self._context.options.checkpoints.steps
        ends = [each for each in (self.steps_per_call, save_steps) if each]
        hooked.begin()
        number = int(loop_step.global_step.numpy())
        while last is None or number < last:
            num_steps = min(each - number % each for each in ends)
            if last is not None:
                num_steps = min(num_steps, last - number)
            hooked.before_call()
            try:
                outcome = take(num_steps, (wants_stop, stop.cause is not None))
            except tf.errors.OutOfRangeError:
                _LOG.info("The data ended after step %d", number)
                break
            if outcome is None:
                break
            stops, is_signalled = (bool(each) for each in outcome.stops)
            if is_signalled:
                stop.request(Stopped(signal.SIGTERM))  # before hooks save and evaluate
            wants_stop = hooked.after_call(outcome) or wants_stop
            number += int(outcome.num_taken)
            # Workers stop together: those that do not want to learn of it in the next step.
            if stops or is_signalled or (wants_stop and not self._has_workers):
                break


def _has_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))

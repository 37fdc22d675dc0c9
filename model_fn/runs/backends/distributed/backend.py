"""Runs steps by a TF2 loop under a strategy of `tf.distribute`."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Iterator, List, Sequence

from estimator_det.compat import tf, tf1
from estimator_det.config.fields import check_supported
from inputs.bad_records.log import FaultLog
from model_fn.checkpoints.errors import RunError
from model_fn.runs import cluster, loop_options, progress
from model_fn.runs.backends.base import RunSettings
from model_fn.runs.backends.distributed import strategies
from model_fn.runs.backends.distributed.session import HookedLoop, LoopSaver, LoopSession
from model_fn.runs.backends.distributed.start import start
from model_fn.runs.backends.distributed.summaries import LoopSummaries
from model_fn.runs.backends.estimator import SUMMARY_STEPS, EstimatorBackend
from model_fn.runs.loop_options import InLoop
from model_fn.training.loop_step import LoopStep, Outcome

_LOG = logging.getLogger(__name__)

_TYPES = {
    loop_options.FLOAT32: tf.float32,
    loop_options.MIXED_FLOAT16: tf.float16,
    loop_options.MIXED_BFLOAT16: tf.bfloat16,
}


class LoopBackend(EstimatorBackend):
    """A TF2 loop in this process; evaluations and exports are those of an Estimator.

    `Backend` says what its methods do.

    Args:
        settings: Of the run.
        in_loop: How the loop takes its steps.
    """

    def __init__(self, settings: RunSettings, in_loop: InLoop) -> None:
        check_supported(settings.pipeline_config, "")
        super().__init__(settings)
        self._in_loop = in_loop
        self.steps_per_call = in_loop.steps_per_call
        # Workers do not save where they are.
        self.keeps_data_cursor = in_loop.strategy != loop_options.MULTI_WORKER
        self._strategy: Any = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Sets up devices, and TensorFlow's seed within."""
        if cluster.is_evaluator():
            yield
            return
        self._strategy = strategies.set_up(self._in_loop).made
        number = self._strategy.num_replicas_in_sync
        loop_options.check_batch(self._settings.pipeline_config, self._in_loop, number)
        _LOG.info("Strategy %s: %d replicas", self._in_loop.strategy, number)
        tf.random.set_seed(self._settings.seed)
        try:
            yield
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if self._in_loop.strategy != loop_options.MULTI_WORKER:
                raise
            raise RunError(
                f"another worker is lost or cannot be reached: {error.message.splitlines()[0]}. "
                "Start all tasks of the cluster again; training resumes from the last checkpoint"
            ) from error
        finally:
            tf.random.set_seed(None)

    def progress_hooks(self, *, every_steps: int, silent: bool, fault_log: FaultLog) -> List[Any]:
        settings = self._settings
        return progress.training_hooks(
            settings.pipeline_config,
            settings.model_dir,
            settings.num_steps,
            self.graph,
            every_steps=every_steps,
            silent=silent,
            fault_log=fault_log,
            writes=cluster.is_chief(),
        )

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any],
        listeners: Sequence[Any] = (),
    ) -> None:
        settings = self._settings
        iterator, batch_spec = self._data(input_fn)
        loop_step = LoopStep(
            self._strategy,
            settings.pipeline_config,
            num_parts=self._in_loop.accumulate_steps,
            in_type=_TYPES[self._in_loop.precision],
            jit_compile=self._in_loop.jit_compile,
        )
        loop_step.build(batch_spec)
        call = loop_step.function(iterator._type_spec, loops=self.steps_per_call > 1)
        start(loop_step, settings, input_fn)
        for hook in hooks:
            if isinstance(hook, tf1.train.CheckpointSaverHook):
                hook._listeners.extend(listeners)  # as Estimator does
        session = LoopSession(loop_step, call.graph)
        self.graph.fill(LoopSaver(loop_step), session.train_step(call.structured_outputs))
        hooked = HookedLoop(session, [*hooks, *self._summaries(loop_step)])
        self._run(call, iterator, loop_step, hooked)

    def _data(self, input_fn: Callable[..., Any]) -> Any:
        """The iterator of the replicas' batches, and their type."""
        # Texts, such as names of images, cannot go to a GPU.
        on_host = tf.distribute.InputOptions(experimental_fetch_to_device=False)
        distributed = self._strategy.distribute_datasets_from_function(
            lambda context: input_fn(input_context=context), on_host
        )
        return iter(distributed), distributed.element_spec

    def _summaries(self, loop_step: LoopStep) -> List[Any]:
        if not cluster.is_chief():
            return []
        settings = self._settings
        pipeline_config, model_dir = settings.pipeline_config, settings.model_dir
        return [
            tf1.train.StepCounterHook(SUMMARY_STEPS, output_dir=model_dir),
            LoopSummaries(pipeline_config, model_dir, loop_step, SUMMARY_STEPS),
        ]

    def _run(
        self, call: Callable[..., Outcome], iterator: Any, loop_step: LoopStep, hooked: HookedLoop
    ) -> None:
        """Calls until the last step, the end of the data, or a stop that a hook asked for."""
        last, wants_stop = self._settings.num_steps, False
        hooked.begin()
        number = int(loop_step.global_step.numpy())
        while last is None or number < last:
            # Calls end at multiples of `steps_per_call`, as saves and reports do.
            num_steps = self.steps_per_call - number % self.steps_per_call
            if last is not None:
                num_steps = min(num_steps, last - number)
            hooked.before_call()
            try:
                outcome = call(iterator, tf.constant(num_steps), tf.constant(float(wants_stop)))
            except tf.errors.OutOfRangeError:
                _LOG.info("The data ended after step %d", number)
                break
            wants_stop = hooked.after_call(outcome) or wants_stop
            number += int(outcome.num_taken)
            # Workers stop together: those that do not want to learn of it in the next step.
            alone = self._in_loop.strategy != loop_options.MULTI_WORKER
            if bool(outcome.wants_stop) or (wants_stop and alone):
                break
        hooked.end()

"""Runs steps by `tf.estimator.Estimator` in one process, and calls hooks around them."""

from __future__ import annotations

import functools
import logging
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from estimator_det.compat import failures, tf, tf1
from estimator_det.errors import VARIABLES_LOST, RunError, SessionLostError
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.checkpoints import repair
from model_fn.checkpoints.variables import check_resumable
from model_fn.model_fn import BuiltTraining, ModelFn
from model_fn.runs.backends.base import (
    SUMMARY_STEPS,
    Backend,
    Training,
    make_estimator,
    make_train_input_fn,
)
from model_fn.runs.cluster import Cluster
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.data_cursor import position_file
from model_fn.runs.precision import network_types
from model_fn.training.step import TrainStep

_LOG = logging.getLogger(__name__)
_POLL_SECS = 1.0


class HookAdapter(tf1.train.SessionRunHook):
    """The training of an Estimator: its session calls our hooks.

    `model_fn` is the Estimator's, which has built the graph when the session begins.
    """

    def __init__(
        self,
        context: RunContext,
        model_fn: ModelFn,
        make_hooks: Callable[[Training], Sequence[Hook]],
    ) -> None:
        self._context, self._model_fn = context, model_fn
        self._hooks = make_hooks(self)
        self._timer = tf1.train.SecondOrStepTimer(every_steps=SUMMARY_STEPS)
        self._fetches: Any = None  # once the graph is built
        self._step = 0  # after the last call
        self.session: Optional[tf1.Session] = None

    def train(self, trainer: Any, input_fn: Callable[..., Any]) -> None:
        """Trains by an Estimator; the session hooks of users are around this one."""
        users = [hook for hook in self._context.options.hooks if not isinstance(hook, Hook)]
        trainer.train(input_fn, hooks=[*users, self], max_steps=self._context.num_steps)

    @property
    def _built(self) -> BuiltTraining:
        assert self._model_fn.built is not None
        return self._model_fn.built

    def save(self, prefix: str) -> None:
        assert self.session is not None
        saver, graph = self._built.saver, self.session.graph
        saver.save(self.session, prefix, write_state=False, write_meta_graph=False)
        with graph.as_default():
            tf1.train.export_meta_graph(
                f"{prefix}.meta", graph_def=self._graph_def, saver_def=saver.as_saver_def()
            )

    def trained_names(self) -> List[str]:
        return list(self._built.step.applied.gradients)

    def graph_def(self) -> Any:
        return self._graph_def

    @functools.cached_property
    def _graph_def(self) -> Any:
        """Kept, because making it takes longer than writing a small checkpoint."""
        assert self.session is not None
        return self.session.graph.as_graph_def(add_shapes=True)

    def begin(self) -> None:
        """Compares the graph with the checkpoint to resume from, before anything changes there."""
        self._fetches = self._make_fetches()
        latest = tf1.train.latest_checkpoint(self._context.model_dir)
        if latest is not None and self._context.cluster.is_chief:
            wanted = {variable.op.name: variable for variable in tf1.global_variables()}
            with repair.restoring(latest):
                check_resumable(latest, wanted, self._context.config.model)

    def _make_fetches(self) -> Any:
        step: TrainStep = self._built.step
        with tf.control_dependencies([step.applied.op]):
            step_after = tf.identity(tf1.train.get_global_step().read_value())
        # The same at every step: another set of fetches would make TensorFlow optimize again.
        return {
            "step": step_after,
            "scalars": step.scalars,
            "checks": step.applied.checks,
            "input_wait": step.input_wait,
            "positions": list(step.positions),
            "summary": step.summary.serialized,
        }

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        if self.session is not None:  # Another session would read the data from their start.
            raise SessionLostError(VARIABLES_LOST)
        self.session, self._step = session, _step_in(session)
        for hook in self._hooks:
            hook.begin(self._context, self._step)
        if self._context.stop.is_requested:
            coord.request_stop()

    def before_run(self, run_context: Any) -> Any:
        del run_context
        for hook in self._hooks:
            hook.before_step(self._step)
        return self._arguments()

    def _arguments(self) -> Any:
        is_chief = self._context.cluster.is_chief
        is_due = is_chief and self._timer.should_trigger_for_step(self._step + 1)
        if is_due:
            self._timer.update_last_triggered_step(self._step + 1)
        feeds = {self._built.step.summary.is_due: is_due}
        return tf1.train.SessionRunArgs(self._fetches, feed_dict=feeds)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        result = self._result(run_values.results)
        self._step = result.step
        for hook in self._hooks:
            hook.after_step(result)
        # An Estimator's own hook notices the steps of other workers one batch later.
        num_steps = self._context.num_steps
        is_last = num_steps is not None and result.step >= num_steps
        if is_last or self._context.stop.is_requested:
            run_context.request_stop()

    def _result(self, results: Any) -> StepResult:
        result = StepResult(
            step=int(results["step"]),
            num_taken=1,
            scalars=_floats(results["scalars"]),
            checks=_floats(results["checks"]),
            input_wait=float(results["input_wait"]),
            positions=results["positions"],
            summary=bytes(results["summary"]),
        )
        if result.is_finite:
            return result
        return result._replace(num_taken=0, rejected=self._built.step.rejected.arrays)

    def end(self, session: tf1.Session) -> None:
        step = _step_in(session)
        for hook in self._hooks:
            hook.end(step)


def _step_in(session: tf1.Session) -> int:
    return int(session.run(tf1.train.get_global_step(session.graph)))


def _floats(values: Dict[str, Any]) -> Dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _session_config(cluster: Cluster) -> Optional[tf1.ConfigProto]:
    """Session settings without graph optimization on CPUs; None for the default, as in clusters.

    Optimizing delays the first step by a second, and makes no later step faster: on CPUs it joins
    operations whose results have one reader, and in training the gradient reads them, too.
    """
    if not cluster.task.is_alone or tf.config.list_physical_devices("GPU"):
        return None
    config = tf1.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    # The session keeps the graph of initial values. Without a limit it folds into constants the
    # zeros and ones that optimizers start from, and holds each of these twice.
    config.graph_options.optimizer_options.max_folded_constant_in_bytes = 2**16
    return config


def _await_dispatcher(address: str) -> None:
    """Waits until a data service listens; TensorFlow would wait in silence, and past signals."""
    host, _, port = address.rpartition(":")
    is_said = False
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_POLL_SECS).close()
            return
        except OSError as error:
            if not is_said:
                _LOG.warning(
                    "Waiting for the dispatcher of --tf_data_service at %s: %s. It is the first "
                    "estimator-det data-worker, and its --port must be %s",
                    address,
                    error,
                    port,
                )
            is_said = True
        time.sleep(_POLL_SECS)


class EstimatorBackend(Backend):
    """An Estimator in this process; `run_options` are more settings of its `RunConfig`."""

    def __init__(self, context: RunContext, **run_options: Any) -> None:
        has_position = context.options.data_service is None
        super().__init__(context, [position_file(context.cluster)] if has_position else [])
        self._run_options = run_options

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        return make_train_input_fn(self._context, next(iter(cursors), None), first_step, fault_log)

    def train(
        self, input_fn: Callable[..., Any], make_hooks: Callable[[Training], Sequence[Hook]]
    ) -> None:
        context = self._context
        if context.options.data_service is not None:
            _await_dispatcher(context.options.data_service)
        model_fn = ModelFn(
            context.config,
            label_map=context.label_map(context.config.train_input_reader.label_map_path),
            types=network_types(context.options),
            stop=context.stop,
        )
        trainer = make_estimator(
            model_fn,
            context.model_dir,
            cluster=context.cluster,
            seed=context.options.seed,
            session_config=_session_config(context.cluster),
            **self._run_options,
        )
        try:
            HookAdapter(context, model_fn, make_hooks).train(trainer, input_fn)
        except tf.errors.NotFoundError as error:
            service = context.options.data_service
            if service is None:
                raise
            raise RunError(
                f"the data workers cannot continue: {failures.reason(error)} If the dispatcher at "
                f"{service} was started again, run the same command again: training resumes from "
                "its last checkpoint"
            ) from error

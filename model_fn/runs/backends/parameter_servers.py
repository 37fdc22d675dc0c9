"""Runs steps by an Estimator in each worker of a cluster, with variables on parameter servers.

Every task runs one TensorFlow server. Chief and workers build the same graph, each with its own
part of the records; what they train is on the parameter servers, which save their part of each
checkpoint when the chief says so. All tasks need the same model_dir.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from typing import Any, Callable, Sequence

from estimator_det.compat import failures, tf, tf1
from estimator_det.errors import VARIABLES_LOST, SessionLostError
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.runs import task_watch
from model_fn.runs.backends.base import Training, make_train_input_fn
from model_fn.runs.backends.estimator import EstimatorBackend
from model_fn.runs.context import Hook, RunContext
from model_fn.runs.data_cursor import report_split
from model_fn.runs.task_watch import WAIT_SECS
from model_fn.runs.training_end import TrainingEnd

_LOG = logging.getLogger(__name__)


class ParameterServerBackend(EstimatorBackend):
    """The chief or a worker of a cluster."""

    def __init__(self, context: RunContext) -> None:
        # A worker that finds no values does not wait for them here: TensorFlow sleeps too long.
        waiting = {} if context.cluster.is_chief else {"session_creation_timeout_secs": 1}
        super().__init__(context, **waiting)
        self._cluster = context.cluster
        self._end = TrainingEnd(context.model_dir, context.num_steps)
        self._watch = task_watch.watch_run(context, self._end)
        self._server: Any = None  # from the first attempt on

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        readers = self._cluster.readers
        index = readers.index(self._cluster.task)
        local_input_fn = make_train_input_fn(
            self._context,
            next(iter(cursors), None),
            first_step,
            fault_log,
            shares_steps=True,
            shard=(len(readers), index),
            on_split=functools.partial(
                report_split, self._context.model_dir, self._cluster, first_step
            ),
        )

        def input_fn() -> Any:
            # Tables stay in this process: an Estimator would put them on parameter servers.
            with tf.device(f"{self._cluster.task.device}/cpu:0"):
                return local_input_fn()

        return input_fn

    def train(
        self, input_fn: Callable[..., Any], make_hooks: Callable[[Training], Sequence[Hook]]
    ) -> None:
        is_chief, stop = self._cluster.is_chief, self._context.stop
        with self._watch.watching():
            if self._server is None:
                self._server = task_watch.start_server(self._cluster)
            task_watch.wait_for(self._cluster, self._cluster.servers, stop)
            if not is_chief:
                _wait_for_variables(self._context, self._server.target)
                if stop.is_requested:
                    return
            try:
                super().train(input_fn, make_hooks)
            except tf.errors.DeadlineExceededError as error:
                if not failures.lacks_variables(error):
                    raise
                raise SessionLostError(VARIABLES_LOST) from error
            while not is_chief and stop.cause is None and not self._end.is_reached():
                time.sleep(WAIT_SECS)
            stop.raise_if_requested()


def _wait_for_variables(context: RunContext, target: str) -> None:
    """Waits until variables are initialized and this worker's first step has come."""
    min_step = _first_step(context)
    if min_step:
        _LOG.info("%s starts at step %d (startup_delay_steps)", context.cluster.task, min_step)
    config = tf1.ConfigProto(device_filters=["/job:ps", context.cluster.task.device])
    with tf.Graph().as_default():
        # The global step is there, because it is created first.
        with tf.device("/job:ps/task:0/cpu:0"):
            handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[], shared_name=tf1.GraphKeys.GLOBAL_STEP
            )
            has_value = tf.raw_ops.VarIsInitializedOp(resource=handle)
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
        with tf1.Session(target, config=config) as session:
            while not context.stop.is_requested:
                with contextlib.suppress(tf.errors.UnavailableError, tf.errors.AbortedError):
                    if session.run(has_value) and session.run(value) >= min_step:
                        return
                time.sleep(WAIT_SECS)
    context.stop.raise_if_requested()


def _first_step(context: RunContext) -> int:
    train = context.config.train_config
    if train.sync_replicas:
        return 0  # The first step needs them.
    delay = int(train.startup_delay_steps)
    return delay if context.num_steps is None else min(delay, context.num_steps)

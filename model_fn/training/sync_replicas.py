"""Synchronous replicas: the workers of a cluster add up their gradients before each step.

TensorFlow's SyncReplicasOptimizer collects the gradients in accumulators on the parameter servers.
The chief averages the first `replicas_to_aggregate` of them, applies the average and puts a token
into a queue for each worker; a worker that has sent its gradients waits for one. Gradients of an
earlier step are dropped, so workers beyond `replicas_to_aggregate` are backups.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Iterator, Optional

from estimator_det.compat import tf, tf1
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import train_pb2
from model_fn.training.optimizers import OptimizerWrapper

_MOST_STARTS = 1_000_000  # starts of chiefs, at most
_POLL_SECS = 0.2  # between two looks at whether the run is to stop
# The session was closed, or the parameter server was lost; the main thread gets the error, too.
_SESSION_ENDED = (
    RuntimeError, tf.errors.CancelledError, tf.errors.AbortedError, tf.errors.UnavailableError,
)  # fmt: skip


@rules(train_pb2.TrainConfig)
def _check_replicas(config: train_pb2.TrainConfig, at: str) -> Iterator[Problem]:
    if config.sync_replicas and config.replicas_to_aggregate < 1:
        remedy = "set it to the number of workers, chief included"
        yield error(f"{at}.replicas_to_aggregate", "is 0, and sync_replicas is true", remedy)


class SyncReplicas(OptimizerWrapper):
    """Applies the mean of `replicas_to_aggregate` gradients; `num_replicas` includes the chief."""

    def __init__(self, optimizer: Any, replicas_to_aggregate: int, num_replicas: int) -> None:
        self.synchronizing: Any = tf1.train.SyncReplicasOptimizer(
            optimizer, replicas_to_aggregate, num_replicas
        )
        super().__init__(self.synchronizing, "SyncReplicas")
        self.num_tokens = max(replicas_to_aggregate, num_replicas)  # one for each worker
        # Without these, the first step would never come.
        self.num_first_tokens = max(replicas_to_aggregate - num_replicas, 0)
        # Has an element for each start of a chief since the parameter servers started.
        self.starts: Any = None

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """Sends the gradients of this worker and waits for the step.

        What the caller makes a step depend on holds back the gradients of this worker alone: the
        chief applies a mean when it is there, whatever happens to its own batch.
        """
        gradients, variables = zip(*grads_and_vars)
        ready = tf.nest.map_structure(tf.identity, gradients, expand_composites=True)
        assert global_step is not None
        with tf.control_dependencies(None):
            with tf1.device(global_step.device):
                self.starts = tf.queue.FIFOQueue(
                    _MOST_STARTS, [tf.bool], [[]], shared_name="sync_replicas_starts"
                )
            sent = super().apply_gradients(list(zip(ready, variables)), global_step, name)
        # TensorFlow's own hook would run this operation; unused, it is an error in the log.
        assert self.synchronizing.ready_for_local_init_op.op is not None
        return sent


class SyncReplicasHook(tf1.train.SessionRunHook):
    """Initializes a worker's part, and applies mean gradients in the chief.

    TensorFlow's own hook leaves that to a queue runner, which waits for gradients that never come
    when training ends, and the session waits two minutes for the queue runner. Workers also wait
    for tokens forever, even once the run's `Stop`, if there is one, is requested.

    Args:
        optimizer: Has applied its gradients in the graph of the training.
    """

    def __init__(self, optimizer: SyncReplicas, is_chief: bool, stop: Any) -> None:
        self._is_chief, self._stop = is_chief, stop
        synchronizing = optimizer.synchronizing
        self._num_starts = optimizer.starts.size()
        self._count_start = optimizer.starts.enqueue(True)
        self._first_tokens = synchronizing.get_init_tokens_op(optimizer.num_first_tokens)
        self._tokens = synchronizing.get_init_tokens_op(optimizer.num_tokens)
        # Applies the next mean gradient, then makes tokens.
        (self._apply_mean,) = synchronizing.get_chief_queue_runner().enqueue_ops
        self._initialize = synchronizing.local_step_init_op
        if self._is_chief:
            self._initialize = synchronizing.chief_init_op

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        session.run(self._initialize)
        targets = [self._release]
        if self._is_chief:
            # Workers may wait for tokens that an earlier chief, which was killed, owes them.
            is_first = session.run(self._num_starts) == 0
            session.run(self._count_start)
            session.run(self._first_tokens if is_first else self._tokens)
            targets.append(self._apply_means)
        for target in targets:
            # Not threads of the coordinator, which would wait for them: the end of the session ends
            # them.
            threading.Thread(target=target, args=(session, coord), daemon=True).start()

    def end(self, session: tf1.Session) -> None:
        if self._is_chief:  # Nobody else makes tokens for the workers that wait.
            session.run(self._tokens)

    def _apply_means(self, session: tf1.Session, coord: Any) -> None:
        while not coord.should_stop():
            try:
                session.run(self._apply_mean)
            except _SESSION_ENDED:
                return
            except tf.errors.OpError as error:
                coord.request_stop(error)
                session.run(self._tokens)
                return

    def _release(self, session: tf1.Session, coord: Any) -> None:
        """Ends the wait for a token once the run is to stop."""
        while not coord.should_stop():
            if self._stop is not None and self._stop.is_requested:
                with contextlib.suppress(*_SESSION_ENDED):
                    session.run(self._tokens)
                return
            time.sleep(_POLL_SECS)

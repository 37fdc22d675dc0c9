"""What a task of a cluster does whatever its part: it serves, watches the others, and leaves."""

from __future__ import annotations

import logging
import time
from typing import Any, Optional, Sequence

from estimator_det.compat import tf
from model_fn.checkpoints.errors import RunError
from model_fn.evaluation.history import EndOfTraining
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.context import RunContext
from model_fn.runs.signals import StopSignals
from model_fn.runs.stop import Stop
from model_fn.runs.task_watch import TaskWatch, check_free, is_listening

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.5


class Tasks:
    """What all tasks of a cluster do, whatever their part: serve, watch the others, leave."""

    def __init__(self, context: RunContext) -> None:
        self._context, self.cluster = context, context.cluster
        cluster = context.cluster
        self._server: Optional[Any] = None
        self._end = EndOfTraining(context.model_dir, context.num_steps)
        others = [*cluster.readers, *cluster.servers]
        self.watch = TaskWatch(
            cluster,
            [task for task in others if task != cluster.task],
            context.options.task_timeout_secs,
            context.stop,
            # The chief itself decides that.
            (lambda: False) if cluster.is_chief else self._end.has_come,
        )

    @property
    def server(self) -> Any:
        """TensorFlow's server of this task, started at the first use."""
        if self._server is None:
            task = self.cluster.task
            address = self.cluster.address(task)
            check_free(self.cluster)
            spec = tf.train.ClusterSpec(dict(self.cluster.jobs))
            try:
                self._server = tf.distribute.Server(spec, task.type, task.number)
            except tf.errors.OpError as error:
                raise RunError(
                    f"{task.field} is {address}, where no server can be started: {error.message}. "
                    "Correct the address in the TF_CONFIG of all tasks"
                ) from error
            _LOG.info("%s of the cluster serves at %s", task, address)
        return self._server

    def wait_for(self, others: Sequence[Task]) -> None:
        """Waits until other tasks are there; a signal interrupts it, unlike TensorFlow."""
        wait_for(self.cluster, others, self._context.stop)

    def wait_for_end(self) -> None:
        """Waits until the chief has ended training."""
        while self._context.stop.cause is None and not self._end.has_come():
            time.sleep(POLL_SECS)
        self._context.stop.raise_if_requested()

    @property
    def device(self) -> str:
        """The devices of this task."""
        return f"/job:{self.cluster.task.type}/task:{self.cluster.task.number}"


def wait_for(cluster: Cluster, tasks: Sequence[Task], stop: Stop) -> None:
    """Waits until tasks are there, while a thread watches them."""
    while not all(is_listening(cluster.address(task)) for task in tasks):
        stop.raise_if_requested()
        time.sleep(POLL_SECS)


def serve(context: RunContext, leave_first: Sequence[Task]) -> None:
    """Serves until training has ended, and tasks that use this one have left.

    Args:
        leave_first: The tasks that use this one.
    """
    stop = context.stop
    with StopSignals(stop) as signals:
        tasks = Tasks(context)
        assert tasks.server
        signals.defer()  # The chief needs this task to save.
        with tasks.watch.watching():
            while not stop.is_requested:
                time.sleep(POLL_SECS)
        _wait_for_leavers(context.cluster, leave_first, context.options.task_timeout_secs)
        stop.raise_if_requested()
    _LOG.info("Training has ended: %s ends", context.cluster.task)


def _wait_for_leavers(cluster: Cluster, tasks: Sequence[Task], timeout_secs: float) -> None:
    end = time.monotonic() + timeout_secs
    while time.monotonic() < end:
        if not any(is_listening(cluster.address(task)) for task in tasks):
            return
        time.sleep(POLL_SECS)

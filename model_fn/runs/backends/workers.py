"""Workers of a loop wait for each other: none can take a step without all the others."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from typing import Any, Iterator, Sequence

from estimator_det.compat import failures, tf
from estimator_det.console.signals import Stop
from estimator_det.errors import MissingTaskError, RunError
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.task_watch import TaskWatch, check_free, is_listening, no_server

_LOG = logging.getLogger(__name__)

_POLL_SECS = 0.5
TENSORFLOW_JOBS = {"master": "chief"}  # TensorFlow has no master
_REMEDY = "Start all tasks again: training resumes from the last checkpoint"
# Errors of collective operations after the loss of a worker.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)


def wait_for_others(cluster: Cluster, task_timeout_secs: float) -> None:
    """Waits until all workers have started; a signal interrupts it.

    TensorFlow waits, too, but nothing interrupts it. Until all are there, this process listens in
    the place of TensorFlow's server, so that the others see it.
    """
    check_free(cluster)
    missing = [task for task in cluster.readers if task != cluster.task]
    _LOG.info("%s waits for %s", cluster.task, ", ".join(map(str, missing)))
    stop = Stop()
    watch = TaskWatch(cluster, missing, task_timeout_secs, stop)
    with _listening(cluster) as server:
        while missing:
            watch.look()
            stop.raise_if_requested()
            _accept_all(server)
            # A task that listened before may be changing to TensorFlow's server.
            missing = [task for task in missing if not is_listening(cluster.address(task))]
            time.sleep(_POLL_SECS)


def _listening(cluster: Cluster) -> socket.socket:
    anywhere = ("", int(cluster.address(cluster.task).rpartition(":")[2]))
    try:
        if socket.has_dualstack_ipv6():
            server = socket.create_server(anywhere, family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            server = socket.create_server(anywhere)
    except OSError as error:
        raise no_server(cluster, str(error)) from error
    server.setblocking(False)
    return server


def _accept_all(server: socket.socket) -> None:
    """Empties the queue of connections; a full queue would refuse the next one."""
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()


def check_folder(model_dir: str) -> None:
    """Refuses a worker that does not see the folder that the chief has made."""
    if not tf.io.gfile.isdir(model_dir):
        raise RunError(
            f"model_dir {model_dir} is not there, and the chief has made it: all tasks of a "
            "cluster need the same folder, on a network file system or gs://"
        )


def _silent(others: Sequence[Task], error: Any) -> str:
    reported = failures.reported_task(error)
    names = [(TENSORFLOW_JOBS.get(task.type, task.type), task.number) for task in others]
    return str(others[names.index(reported)]) if reported in names else "a task"


@contextlib.contextmanager
def explain_lost_workers(cluster: Cluster, task_timeout_secs: float) -> Iterator[None]:
    """Context manager: workers take steps together, and the loss of one ends the others.

    A worker that only waits is ended with the same message once another one was missing for too
    long.
    """
    others = [task for task in cluster.readers if task != cluster.task]
    watch = TaskWatch(cluster, others, task_timeout_secs, Stop(), needs_all=True)
    try:
        with watch.watching():
            yield
    except _LOST as error:
        lost = [str(task) for task in others if not is_listening(cluster.address(task))]
        # Errors of storage, as of a hook that saves, are unavailable, too, but name no task.
        is_of_task = isinstance(error, tf.errors.UnavailableError) and failures.names_task(error)
        if not lost and not is_of_task:
            raise
        names = " and ".join(lost) or f"{_silent(others, error)}, which hangs or has started again"
        raise MissingTaskError(
            f"the cluster has lost {names}: steps need all workers. See the log of that process. "
            f"{_REMEDY} ({failures.reason(error)})"
        ) from error

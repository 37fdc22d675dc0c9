"""Notices that another task of the cluster is missing, or that training is over.

A task is there while something listens on its address, as TensorFlow's server does from its start
to the end of its process. TensorFlow itself waits for missing tasks without a limit.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.console import printing
from estimator_det.console.signals import Stop, StopSignals, end_at_once
from estimator_det.errors import MissingTaskError, RunError
from model_fn.runs.cluster import PARAMETER_SERVER, Cluster, Task
from model_fn.runs.context import RunContext
from model_fn.runs.training_end import TrainingEnd

_LOG = logging.getLogger(__name__)

POLL_SECS = 1.0  # between two looks at all tasks
WAIT_SECS = 0.5  # between two looks at a task that is waited for
_CONNECT_SECS = 2.0
_EXIT_FAILED = 1  # the exit code of every other `RunError`


def is_listening(address: str) -> bool:
    """True if a process accepts connections at "host:port"."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECS):
            return True
    except OSError:
        return False


def check_free(cluster: Cluster) -> None:
    """Refuses an address of this process where another one listens."""
    address = cluster.address(cluster.task)
    if is_listening(address):
        raise RunError(
            f"{cluster.task.field} is {address}, where another process listens already. End that "
            "process, or give the task another port in the TF_CONFIG of all tasks"
        )


def _end_process(error: MissingTaskError) -> None:
    """Ends the process, whose main thread waits inside TensorFlow."""
    end_at_once(f"error: {error}", "ERROR", _EXIT_FAILED)


class TaskWatch:
    """Watches the other tasks that train, in a thread.

    If one is missing for too long, the run is stopped by a `MissingTaskError`. The process gets the
    same time once more to save and exit; then it is killed, or at once if nothing can be
    saved: a parameter server is missing, or every step needs every task. If training is over, the
    run is stopped without an error.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: Sequence[Task],
        timeout_secs: float,
        stop: Stop,
        is_over: Callable[[], bool] = lambda: False,
        *,
        needs_all: bool = False,
    ) -> None:
        self._cluster, self._timeout, self._stop = cluster, timeout_secs, stop
        self._is_over, self._needs_all = is_over, needs_all
        now = time.monotonic()
        self._seen: Dict[Task, float] = {task: now for task in tasks if task != cluster.task}
        self._missing_since = now
        self._ended = threading.Event()
        self._missing: Optional[MissingTaskError] = None
        self._is_at_end = False

    def give_up(self, error: MissingTaskError) -> None:
        """Ends the process, which could not end by itself: TensorFlow waits for a silent task."""
        _end_process(self._missing or error)

    def look(self) -> None:
        if self._is_at_end:
            return
        if self._has_ended():
            self._is_at_end = True
            self._stop.request()
            return
        if self._missing is not None:
            if time.monotonic() - self._missing_since >= self._timeout:
                _end_process(self._missing)
            return
        for task, seen in self._seen.items():
            if is_listening(self._cluster.address(task)):
                self._seen[task] = time.monotonic()
            elif time.monotonic() - seen >= self._timeout:
                self._missing = self._error(task)
                self._missing_since = time.monotonic()
                self._stop.request(self._missing)
                if self._needs_all or task.type == PARAMETER_SERVER:
                    _end_process(self._missing)
                return

    def _has_ended(self) -> bool:
        """False if that cannot be read: remote storage may fail now and then."""
        try:
            return self._is_over()
        except tf.errors.OpError as error:
            # Not logged: the main thread may hold the log, waiting for its reader.
            text = f"Whether training is over cannot be read: {printing.plain(error.message)}"
            printing.report_at_once(text, "WARNING")
            return False

    def _error(self, task: Task) -> MissingTaskError:
        return MissingTaskError(
            f"{task} of the cluster is missing: nothing has listened on "
            f"{self._cluster.address(task)} for {self._timeout:g} seconds. See the log of that "
            "process, then start all tasks again: the run resumes from its last checkpoint. "
            "--task_timeout_secs sets the time"
        )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._ended.clear()
        thread = threading.Thread(target=self._run, name="task watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        while not self._ended.wait(POLL_SECS):
            self.look()


def watch_run(
    context: RunContext, end: TrainingEnd, tasks: Optional[Sequence[Task]] = None
) -> TaskWatch:
    """Watches the end of a run and the tasks of its cluster, by default all that train."""
    cluster = context.cluster
    return TaskWatch(
        cluster,
        [*cluster.readers, *cluster.servers] if tasks is None else tasks,
        context.options.task_timeout_secs,
        context.stop,
        # The chief itself decides that.
        (lambda: False) if cluster.is_chief else end.is_reached,
    )


def no_server(cluster: Cluster, reason: str) -> RunError:
    """The error for an address of this process where it cannot serve."""
    return RunError(
        f"{cluster.task.field} is {cluster.address(cluster.task)}, where no server can be started: "
        f"{reason}. Correct the address in the TF_CONFIG of all tasks"
    )


def start_server(cluster: Cluster) -> Any:
    """TensorFlow's server of this task, which a process starts once."""
    task, address = cluster.task, cluster.address(cluster.task)
    check_free(cluster)
    spec = tf.train.ClusterSpec(dict(cluster.jobs))
    try:
        server = tf.distribute.Server(spec, task.type, task.number)
    except tf.errors.OpError as error:
        raise no_server(cluster, error.message) from error
    _LOG.info("%s of the cluster serves at %s", task, address)
    return server


def wait_for(cluster: Cluster, tasks: Sequence[Task], stop: Stop) -> None:
    """Waits until tasks are there; a signal interrupts it, unlike TensorFlow's own waiting."""
    while not all(is_listening(cluster.address(task)) for task in tasks):
        stop.raise_if_requested()
        time.sleep(WAIT_SECS)


def serve(context: RunContext, leave_first: Sequence[Task]) -> None:
    """Serves until training has ended, and the tasks that use this one have left."""
    stop = context.stop
    with StopSignals(stop) as signals:
        watch = watch_run(context, TrainingEnd(context.model_dir, context.num_steps))
        server = start_server(context.cluster)
        signals.defer()  # The chief needs this task to save.
        with watch.watching():
            while not stop.is_requested:
                time.sleep(WAIT_SECS)
        end = time.monotonic() + context.options.task_timeout_secs
        addresses = [context.cluster.address(task) for task in leave_first]
        while time.monotonic() < end and any(map(is_listening, addresses)):
            time.sleep(WAIT_SECS)
        del server
        stop.raise_if_requested()
    _LOG.info("Training has ended: %s ends", context.cluster.task)

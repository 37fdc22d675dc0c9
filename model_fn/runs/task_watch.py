"""Notices that another task of the cluster is missing, or that training is over.

A task is there while something listens on its address, as TensorFlow's server does from its start
to the end of its process. TensorFlow itself waits for missing tasks without end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Callable, Dict, Iterator, NoReturn, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.config import printing
from model_fn.checkpoints.errors import MissingTaskError, RunError
from model_fn.runs.cluster import PARAMETER_SERVER, Cluster, Task
from model_fn.runs.stop import Stop

POLL_SECS = 1.0  # between two looks at all tasks
_CONNECT_SECS = 2.0
_EXIT_FAILED = 1  # as for any other `RunError`


def is_listening(address: str) -> bool:
    """Whether a process accepts connections at "host:port"."""
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


def _leave(error: MissingTaskError) -> NoReturn:
    """Ends the process, whose main thread waits inside TensorFlow."""
    printing.report_at_once(f"error: {error}", "ERROR")
    os._exit(_EXIT_FAILED)


class TaskWatch:
    """Watches the other tasks that train, in a thread.

    If one is missing for too long, the run is stopped by a `MissingTaskError`, and the process is
    expected to end by itself: the chief saves before. It is ended if it has not done so in the same
    time once more, and at once for a parameter server, without which no step ends and nothing can
    be saved, or if all tasks are needed. If training is over, the run is stopped without an error.

    Args:
        is_over: Whether training is over, so that tasks leave.
        needs_all: Whether no step ends without each of the tasks.
        is_there: Whether a process listens on an address.
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
        is_there: Callable[[str], bool] = is_listening,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[MissingTaskError], None] = _leave,
    ) -> None:
        self._cluster, self._timeout, self._stop = cluster, timeout_secs, stop
        self._needs_all = needs_all
        self._is_over, self._is_there = is_over, is_there
        self._clock, self._leave = clock, leave
        now = clock()
        self._seen: Dict[Task, float] = {task: now for task in tasks if task != cluster.task}
        self._missing_since = now
        self._ended = threading.Event()
        self._missing: Optional[MissingTaskError] = None
        self._is_at_end = False

    def give_up(self, error: MissingTaskError) -> None:
        """Ends the process, which could not end by itself: TensorFlow waits for a silent task."""
        self._leave(self._missing or error)

    def look(self) -> None:
        """Looks once at all tasks."""
        if self._is_at_end:
            return
        if self._has_ended():
            self._is_at_end = True
            self._stop.request()
            return
        if self._missing is not None:
            if self._clock() - self._missing_since >= self._timeout:
                self._leave(self._missing)
            return
        for task, seen in self._seen.items():
            if self._is_there(self._cluster.address(task)):
                self._seen[task] = self._clock()
            elif self._clock() - seen >= self._timeout:
                self._missing = self._error(task)
                self._missing_since = self._clock()
                self._stop.request(self._missing)
                if self._needs_all or task.type == PARAMETER_SERVER:
                    self._leave(self._missing)
                return

    def _has_ended(self) -> bool:
        """False if that cannot be read: remote storage may fail now and then."""
        try:
            return self._is_over()
        except tf.errors.OpError as error:
            # Not logged: the main thread may hold the log, waiting for its reader.
            message = printing.plain(error.message)
            printing.report_at_once(
                f"Whether training is over cannot be read: {message}", "WARNING"
            )
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
        """Context manager: the thread runs."""
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

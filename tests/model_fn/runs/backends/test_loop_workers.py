"""What workers of the TF2 loop do about each other; several processes are in tests/programs."""

from __future__ import annotations

import contextlib
import socket
from typing import Callable

import pytest

from estimator_det.compat import tf
from estimator_det.errors import MissingTaskError, RunError
from model_fn.runs import task_watch
from model_fn.runs.backends import workers
from model_fn.runs.backends.loop import _LoopTraining
from model_fn.runs.backends.workers import explain_lost_workers
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.context import Hook, RunContext
from tests.model_fn import fake
from tests.programs.clusters import free_addresses


@pytest.fixture
def members() -> Callable[[str, int], Cluster]:
    """Makes a chief and two workers, seen by one of them."""
    addresses = free_addresses(3)
    jobs = {"chief": addresses[:1], "worker": addresses[1:]}
    return lambda job, index: Cluster(jobs, Task(job, index))


def test_a_worker_that_does_not_come(members, monkeypatch):
    monkeypatch.setattr(workers, "_POLL_SECS", 0.01)
    chief = members("chief", 0)
    with pytest.raises(MissingTaskError, match="worker 0 of the cluster is missing: nothing has"):
        workers.wait_for_others(chief, 0.05)
    host, _, port = chief.address(chief.task).rpartition(":")
    with socket.create_server((host, int(port))), pytest.raises(RunError, match="listens already"):
        workers.wait_for_others(chief, 60)


def test_an_address_that_no_server_can_have():
    with socket.socket() as taken:
        taken.bind(("", 0))
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=rf"cluster\.chief\[0\] is {address}, where no server"):
            workers.wait_for_others(Cluster({"chief": [address]}, Task("chief", 0)), 60)


def test_a_lost_worker_is_named(members):
    chief = members("chief", 0)
    with contextlib.ExitStack() as stack:
        host, _, port = chief.address(Task("worker", 1)).rpartition(":")
        stack.enter_context(socket.create_server((host, int(port))))
        stack.enter_context(
            pytest.raises(MissingTaskError, match="cluster has lost worker 0: steps need")
        )
        with explain_lost_workers(chief, 60):
            raise tf.errors.InternalError(None, None, "Connection reset by peer")


def test_other_errors_stay_what_they_are(members, monkeypatch):
    monkeypatch.setattr(workers, "is_listening", lambda address: True)
    monkeypatch.setattr(task_watch, "is_listening", lambda address: True)
    with pytest.raises(tf.errors.InternalError), explain_lost_workers(members("chief", 0), 60):
        raise tf.errors.InternalError(None, None, "a bug")
    for message, name in (
        ("Error reported from /job:worker/task:1: heartbeat timeout", "worker 1"),
        ("Error reported from /job:worker/replica:0/task:0: heartbeat timeout", "worker 0"),
        ("Incarnation of /job:worker/replica:0/task:1 has changed", "a task"),
    ):
        raises = pytest.raises(MissingTaskError, match=f"has lost {name}, which hangs or has")
        with raises, explain_lost_workers(members("chief", 0), 60):
            raise tf.errors.UnavailableError(None, None, message)


def test_an_error_of_a_hook_is_no_lost_machine(members, monkeypatch, tmp_path):
    class Saving(Hook):
        def begin(self, context: RunContext, step: int) -> None:
            raise tf.errors.UnavailableError(None, None, "HTTP 503 of the storage")

    monkeypatch.setattr(workers, "is_listening", lambda address: True)
    monkeypatch.setattr(task_watch, "is_listening", lambda address: True)
    raises = pytest.raises(tf.errors.UnavailableError, match="503 of the storage")
    with raises, explain_lost_workers(members("chief", 0), 60):
        context, nothing = fake.run_context(tmp_path), [None] * 4
        training = _LoopTraining(context, *nothing, steps_per_call=1, agrees=False)
        training.run([Saving()], 0)
    raises = pytest.raises(tf.errors.UnavailableError, match="503 of the storage")
    with raises, explain_lost_workers(members("chief", 0), 60):  # as of a record that a step reads
        message = "{{node Next}} HTTP 503 of the storage"
        raise tf.errors.UnavailableError(None, None, message)
    lost = pytest.raises(MissingTaskError, match=r"has lost a task.*Socket closed")
    with lost, explain_lost_workers(members("chief", 0), 60):
        message = "Socket closed\nAdditional information from remote target /job:worker/task:1"
        raise tf.errors.UnavailableError(None, None, message)


def test_a_folder_that_a_worker_does_not_see(tmp_path):
    workers.check_folder(str(tmp_path))
    with pytest.raises(RunError, match="all tasks of a cluster need the same folder"):
        workers.check_folder(str(tmp_path / "model"))

from __future__ import annotations

import socket
import types
from typing import Any, List, Set

import pytest

from estimator_det.console.signals import Stop
from estimator_det.errors import MissingTaskError
from model_fn.runs import task_watch
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.task_watch import TaskWatch, is_listening
from tests import sinks

JOBS = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}
CLUSTER = Cluster(JOBS, Task("worker", 0))
OTHERS = [Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0)]


class World:
    """A clock, and what listens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now, self.there = 0.0, {"c:1", "w:2", "p:1"}
        self.left: List[MissingTaskError] = []
        self.asked: Set[str] = set()
        self.stop = Stop()
        monkeypatch.setattr(task_watch, "is_listening", self._is_there)
        monkeypatch.setattr(task_watch, "_end_process", self.left.append)
        monkeypatch.setattr(task_watch, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        self.watch = TaskWatch(CLUSTER, OTHERS, 10, self.stop, **options)

    def _is_there(self, address: str) -> bool:
        self.asked.add(address)
        return address in self.there

    def look_at(self, now: float) -> None:
        self.now = now
        self.watch.look()


def test_a_task_may_be_missing_for_a_while(monkeypatch):
    world = World(monkeypatch)
    world.there = set()  # Nobody has started yet.
    world.look_at(9)
    assert not world.stop.is_requested
    world.there = {"c:1", "w:2", "p:1"}
    for now in (10, 30):
        world.look_at(now)
        assert not world.stop.is_requested
    world.there.remove("w:2")
    world.look_at(39)
    world.there.add("w:2")  # started again
    world.look_at(41)
    world.stop.raise_if_requested()
    assert world.asked == {"c:1", "w:2", "p:1"} and not world.left  # not itself


@pytest.mark.parametrize(
    ("needs_all", "missing", "task", "ends_at"),
    [(False, "w:2", "worker 1", 20), (True, "w:2", "worker 1", 10), (False, "p:1", "ps 0", 10)],
)
def test_a_missing_task_ends_the_process(monkeypatch, needs_all, missing, task, ends_at):
    """A server at once, and a worker that is needed; of another, the stop comes first."""
    world = World(monkeypatch, needs_all=needs_all)
    world.there.remove(missing)
    world.look_at(10)
    told = f"^{task} of the cluster is missing: nothing has listened on {missing} for 10 seconds"
    with pytest.raises(MissingTaskError, match=f"{told}.*--task_timeout_secs"):
        world.stop.raise_if_requested()
    assert bool(world.left) == (ends_at == 10)
    world.look_at(19)
    assert bool(world.left) == (ends_at == 10)
    world.look_at(20)
    assert world.left[0] is world.stop.cause


def test_when_training_is_over_tasks_leave(monkeypatch):
    over: List[bool] = []
    world = World(monkeypatch, is_over=lambda: bool(over))
    over.append(True)
    world.there = set()
    world.look_at(50)
    assert world.stop.is_requested and not world.left
    world.stop.raise_if_requested()


MISSING_TASK = """
import logging, os, sys, threading
from estimator_det.compat import tf
from estimator_det.programs import console
from model_fn.runs import task_watch
from model_fn.runs.cluster import Cluster, Task
from estimator_det.console.signals import Stop
from tests import sinks

def is_over():
    raise tf.errors.UnavailableError(None, None, "storage is away")

sinks.use({sink!r})
console.quiet_logging()
servers = Cluster({{"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:1"]}}, Task("chief", 0))
watch = task_watch.TaskWatch(servers, [Task("ps", 0)], 0.1, Stop(), is_over)
with watch.watching():
    logging.error("a log line, which the process may wait to write")
    os.read(os.pipe()[0], 1)
"""


@pytest.mark.parametrize("sink", sinks.SINKS)
def test_a_missing_task_ends_a_process_that_cannot_write(forker, sink):
    assert forker.program(MISSING_TASK.format(sink=sink)).wait(60) == 1


def test_what_listens():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert not is_listening(address)
        server.listen()
        assert is_listening(address)
    assert not is_listening(address)
    assert not is_listening("host.invalid:1")

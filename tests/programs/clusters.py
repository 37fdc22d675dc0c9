"""Clusters of processes on the loopback interface."""

from __future__ import annotations

import json
import pathlib
import socket
import time
from typing import Any, Callable, Dict, List

from model_fn.checkpoints import repair
from tests.checkpoints import trained_steps
from tests.programs.forking import TIMEOUT, Run

Start = Callable[[Dict[str, str]], Run]  # from an environment
Make = Callable[..., "LocalCluster"]  # of the fixture fake_cluster

ENDLESS = 10**6
COORDINATOR = {"strategy": "parameter_server", "steps_per_call": 5}


_KEPT: List[socket.socket] = []  # until this process ends


def free_addresses(number: int) -> List[str]:
    """Addresses of this machine on which nothing listens, and which no other process gets.

    A socket stays bound to each, so that the system gives its port to nobody who asks for any. A
    server may still listen there: like it, the socket reuses addresses.
    """
    new = [socket.socket() for _ in range(number)]
    for each in new:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    _KEPT.extend(new)
    return [f"127.0.0.1:{each.getsockname()[1]}" for each in new]


class LocalCluster:
    """A chief, workers and parameter servers, and an evaluator beside them.

    Args:
        start: Starts a process with an environment.
        workers: Number of workers beside the chief.
        servers: Number of parameter servers.
        chief: Its job: chief or master, or worker, whose task 0 is the chief then.
    """

    def __init__(self, start: Start, workers: int = 2, servers: int = 1, chief: str = "chief"):
        addresses = free_addresses(1 + workers + servers)
        self.jobs: Dict[str, List[str]] = {chief: addresses[:1]}
        if workers:
            self.jobs.setdefault("worker", []).extend(addresses[1 : 1 + workers])
        if servers:
            self.jobs["ps"] = addresses[1 + workers :]
        self._start = start
        self.runs: Dict[str, Run] = {}

    def environment(self, job: str, index: int = 0) -> Dict[str, str]:
        """Environment of one task."""
        task: Dict[str, Any] = {"type": job, "index": index}
        return {"TF_CONFIG": json.dumps({"cluster": self.jobs, "task": task})}

    def start(self, job: str, index: int = 0) -> Run:
        """Starts one task, for the first time or once more."""
        run = self._start(self.environment(job, index))
        self.runs[f"{job}-{index}"] = run
        return run

    def start_all(self, *others: str) -> None:
        """Starts all tasks of the cluster, and others such as its evaluator."""
        for job in reversed(self.jobs):
            for index in range(len(self.jobs[job])):
                self.start(job, index)
        for job in others:
            self.start(job)

    def outputs(self) -> str:
        """What all tasks have printed."""
        return "\n".join(f"== {name}\n{run.output()}" for name, run in self.runs.items())

    def expect(self, code: int = 0) -> None:
        """Waits until all tasks have ended, with this exit code."""
        codes = {run.wait() for run in self.runs.values()}
        assert codes == {code}, self.outputs()

    def kill(self) -> None:
        """Ends whatever still runs."""
        for run in self.runs.values():
            if run.poll() is None:
                run.signal(9)


def saved_steps(folder: pathlib.Path) -> List[int]:
    """Steps of the checkpoints, by their names."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("model.ckpt-*.index"))


def last_evaluation(folder: pathlib.Path) -> Dict[str, Any]:
    """The last line of evaluations.jsonl."""
    return json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])


def check_whole(folder: pathlib.Path) -> None:
    """There are checkpoints, and all of them are whole."""
    assert saved_steps(folder)
    for index in folder.glob("model.ckpt-*.index"):
        assert repair.find_damage(str(index.with_suffix(""))) is None


def wait_for_step(folder: pathlib.Path, step: int, cluster: LocalCluster) -> None:
    """Waits for a checkpoint of a step, or of a later one."""
    end = time.monotonic() + TIMEOUT
    while trained_steps(str(folder)) < step:
        assert time.monotonic() < end, cluster.outputs()
        time.sleep(0.05)

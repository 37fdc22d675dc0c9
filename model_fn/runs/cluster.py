"""The part of this process in a cluster, as TF_CONFIG or CLUSTER_SPEC describe it.

Training services set TF_CONFIG for a job of one machine, too: a cluster whose only task is this
process. Such a process runs as if there were no TF_CONFIG. Vertex AI also sets CLUSTER_SPEC, which
has worker pools in the place of jobs; it is read where TF_CONFIG names no cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Tuple

from estimator_det.config.text import nearest
from estimator_det.errors import UsageError

VARIABLE = "TF_CONFIG"
VERTEX_VARIABLE = "CLUSTER_SPEC"
CHIEFS = ("chief", "master")
WORKER, PARAMETER_SERVER, EVALUATOR = "worker", "ps", "evaluator"
JOBS = (*CHIEFS, WORKER, PARAMETER_SERVER, EVALUATOR)
POOLS = {
    "workerpool0": "chief",
    "workerpool1": WORKER,
    "workerpool2": PARAMETER_SERVER,
    "workerpool3": EVALUATOR,
}

_CLUSTER, _TASK = "cluster", "task"
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):(\d+)")  # host:port
_LARGEST_PORT = 65535


class Task(NamedTuple):
    """A process of a cluster."""

    type: str  # one of JOBS; "" if the process is the only one
    number: int  # task.index, among the tasks of its type

    def __str__(self) -> str:
        return f"{self.type} {self.number}"

    @property
    def is_alone(self) -> bool:
        return not self.type

    @property
    def field(self) -> str:
        """Field of its address in TF_CONFIG."""
        return f"cluster.{self.type}[{self.number}]"

    @property
    def device(self) -> str:
        return f"/job:{self.type}/task:{self.number}"


ALONE = Task("", 0)


class Cluster(NamedTuple):
    """Processes that train together, and which one this is."""

    jobs: Mapping[str, List[str]]  # addresses of each job, evaluators left out
    task: Task

    def tasks(self, *types: str) -> List[Task]:
        return [Task(job, index) for job in types for index in range(len(self.jobs.get(job, [])))]

    def address(self, task: Task) -> str:
        return self.jobs[task.type][task.number]

    @property
    def readers(self) -> List[Task]:
        """The tasks that read records and compute steps: the chief first, then the workers."""
        return self.tasks(*CHIEFS, WORKER)

    @property
    def servers(self) -> List[Task]:
        return self.tasks(PARAMETER_SERVER)

    @property
    def is_chief(self) -> bool:
        """True if this process saves; without a chief, worker 0 does."""
        return self.task.is_alone or self.task == next(iter(self.readers), None)

    @property
    def is_evaluator(self) -> bool:
        """True if this process evaluates the checkpoints of the others."""
        return self.task.type == EVALUATOR

    @property
    def evaluates(self) -> bool:
        """True if the process that trains also evaluates; beside a chief an evaluator does."""
        return self.task.is_alone or self.task.type == "master"


SINGLE = Cluster({}, ALONE)


def read_cluster() -> Cluster:
    """The cluster in the environment of this process; `SINGLE` if it has no other task.

    A chief whose cluster names no other task is alone, even if evaluators run beside it: their
    TF_CONFIG names them, and the TF_CONFIG of the chief does not.
    """
    variable, settings = _read()
    jobs = _jobs(variable, settings)
    task = _part(variable, settings, _TASK)
    kind = task.get("type")
    num_tasks = sum(len(addresses) for addresses in jobs.values())
    if not num_tasks and kind == EVALUATOR:
        raise UsageError(f"{variable}: an evaluator needs a cluster with a chief; found none")
    is_alone = num_tasks <= 1 and kind != EVALUATOR
    if is_alone and (not task or not num_tasks or _is_task_of(jobs, task)):
        return SINGLE
    _check(variable, jobs, task)
    return Cluster(jobs, Task(str(kind), int(task["index"])))


@contextlib.contextmanager
def estimator_environment(cluster: Cluster) -> Iterator[None]:
    """Context manager: TF_CONFIG names this cluster, as `RunConfig` reads it.

    TensorFlow takes a cluster of one task for a cluster, refuses a task without a cluster, and does
    not read CLUSTER_SPEC.
    """
    before = os.environ.get(VARIABLE)
    settings = _parse(VARIABLE)
    for key in (_CLUSTER, _TASK):
        settings.pop(key, None)
    # RunConfig needs a chief; an evaluator of workers without one is on its own.
    if cluster.tasks(*CHIEFS):
        settings[_CLUSTER] = dict(cluster.jobs)
        settings[_TASK] = {"type": cluster.task.type, "index": cluster.task.number}
    os.environ[VARIABLE] = json.dumps(settings)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _read() -> Tuple[str, Dict[str, Any]]:
    """The variable that describes the cluster, and its content in terms of TF_CONFIG."""
    settings = _parse(VARIABLE)
    if settings.get(_CLUSTER) or not os.environ.get(VERTEX_VARIABLE, "").strip():
        return VARIABLE, settings
    found = _parse(VERTEX_VARIABLE)
    pools = _part(VERTEX_VARIABLE, found, _CLUSTER)
    for pool in pools:
        _check_known(VERTEX_VARIABLE, f"cluster.{pool}", pool, POOLS)
    task = dict(_part(VERTEX_VARIABLE, found, _TASK))
    if task.get("type") in POOLS:
        task["type"] = POOLS[task["type"]]
    cluster = {POOLS[pool]: addresses for pool, addresses in pools.items()}
    return VERTEX_VARIABLE, {_CLUSTER: cluster, _TASK: task}


def _parse(variable: str) -> Dict[str, Any]:
    text = os.environ.get(variable, "").strip()
    try:
        settings = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise UsageError(f"{variable} is not JSON: {error}. Correct or unset it") from error
    if not isinstance(settings, dict):
        raise UsageError(f"{variable} must be a JSON object; given {text}. Correct or unset it")
    return settings


def _part(variable: str, settings: Dict[str, Any], name: str) -> Dict[str, Any]:
    part = settings.get(name) or {}
    if not isinstance(part, dict):
        raise UsageError(f"{variable}: {name} must be an object; given {part!r}")
    return part


def _jobs(variable: str, settings: Dict[str, Any]) -> Dict[str, List[str]]:
    """Addresses by job; evaluators are checked and left out, because they serve nobody."""
    jobs: Dict[str, List[str]] = {}
    names: Dict[str, str] = {}  # address -> its field
    for job, tasks in _part(variable, settings, _CLUSTER).items():
        _check_known(variable, f"cluster.{job}", job, JOBS)
        jobs[job] = _addresses(variable, job, tasks)
        for index, address in enumerate(jobs[job]):
            field = f"cluster.{job}[{index}]"
            if address in names:
                raise UsageError(
                    f"{variable}: {field} is {address}, as {names[address]}. Give each task an "
                    "address of its own"
                )
            names[address] = field
    jobs.pop(EVALUATOR, None)
    return jobs


def _addresses(variable: str, job: str, tasks: Any) -> List[str]:
    """The addresses of a job; they are a list, or an object from index to address."""
    if isinstance(tasks, dict):
        if sorted(tasks) != sorted(str(index) for index in range(len(tasks))):
            raise UsageError(
                f"{variable}: cluster.{job} must have the indices 0 to {len(tasks) - 1}; given "
                f"{sorted(tasks)}"
            )
        tasks = [tasks[str(index)] for index in range(len(tasks))]
    if not isinstance(tasks, list):
        raise UsageError(
            f'{variable}: cluster.{job} must be a list of addresses such as ["host:2222"]; given '
            f"{tasks!r}"
        )
    for index, address in enumerate(tasks):
        parts = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if parts is None or not 0 < int(parts[2]) <= _LARGEST_PORT:
            raise UsageError(
                f"{variable}: cluster.{job}[{index}] must be an address such as host:2222; given "
                f"{address!r}"
            )
    return tasks


def _check_known(variable: str, what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        hint = nearest(name, list(known)) or "."
        raise UsageError(f"{variable}: {what} is not known{hint} Known: {', '.join(known)}")


def _is_task_of(jobs: Mapping[str, List[str]], task: Dict[str, Any]) -> bool:
    index = str(task.get("index", ""))
    return index.isdecimal() and int(index) < len(jobs.get(str(task.get("type")), []))


def _check(variable: str, jobs: Mapping[str, List[str]], task: Dict[str, Any]) -> None:
    """Refuses what TensorFlow's RunConfig would refuse with a traceback."""
    chiefs = sum(len(jobs.get(chief, [])) for chief in CHIEFS)
    counts = {job: len(addresses) for job, addresses in jobs.items()}
    if chiefs > 1:
        raise UsageError(
            f"{variable}: a cluster needs one chief (or master); given {chiefs}. Jobs: {counts}"
        )
    kind, index = task.get("type"), str(task.get("index", ""))
    if kind is not None:
        _check_known(variable, f"task.type {json.dumps(kind)}", str(kind), JOBS)
    if kind == EVALUATOR and index == "0":
        return
    if not _is_task_of(jobs, task):
        raise UsageError(
            f"{variable}: the task {json.dumps(task)} is not in the cluster; tasks of each job: "
            f"{json.dumps(counts)}. Set task.type and task.index"
        )

"""The part of this process in a cluster, as TF_CONFIG says.

Training services set TF_CONFIG for a job of one machine, too: a cluster whose only task is this
process. Such a process runs as if there were no TF_CONFIG.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, Iterator, NamedTuple

from estimator_det.config.text import ConfigError

VARIABLE = "TF_CONFIG"
CHIEFS = ("chief", "master")
EVALUATOR = "evaluator"

_CLUSTER, _TASK = "cluster", "task"


class Task(NamedTuple):
    """What TF_CONFIG makes of this process."""

    type: str  # "" where this process is the only one
    number: int  # task.index, among those of its type

    @property
    def is_alone(self) -> bool:
        """Whether no other process takes part."""
        return not self.type


ALONE = Task("", 0)


def read_task() -> Task:
    """The task of this process in TF_CONFIG; `ALONE` without a cluster or with one task in it.

    A chief whose cluster names no other task is alone, even if evaluators run beside it: their
    TF_CONFIG names them, that of the chief does not.

    Raises:
        ConfigError: if TF_CONFIG is malformed, or its task is none of its cluster.
    """
    settings = _read()
    jobs = {job: _addresses(job, tasks) for job, tasks in _part(settings, _CLUSTER).items()}
    task = _part(settings, _TASK)
    num_tasks = sum(jobs.values())
    if not num_tasks and task.get("type") == EVALUATOR:
        raise ConfigError(f"{VARIABLE}: an evaluator needs a cluster with a chief; found none")
    is_alone = num_tasks <= 1 and task.get("type") != EVALUATOR
    if is_alone and (not task or not num_tasks or _is_task_of(jobs, task)):
        return ALONE
    _check(jobs, task)
    return Task(task["type"], int(task["index"]))


def is_chief() -> bool:
    """Whether this process saves: it does unless TF_CONFIG gives it another part in a cluster."""
    task = read_task()
    return task.is_alone or task.type in CHIEFS


def is_evaluator() -> bool:
    """Whether TF_CONFIG makes this process the evaluator of a cluster."""
    return read_task().type == EVALUATOR


def is_in_cluster() -> bool:
    """Whether TF_CONFIG makes this process one of several."""
    return not read_task().is_alone


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """Within, TF_CONFIG names no cluster if this process is alone; for what makes a `RunConfig`.

    TensorFlow takes a cluster of one task for a cluster, and refuses a task without a cluster.

    Raises:
        ConfigError: as `read_task`.
    """
    text = os.environ.get(VARIABLE)
    if text is None or not read_task().is_alone:
        yield
        return
    others = {name: value for name, value in _read().items() if name not in (_CLUSTER, _TASK)}
    os.environ[VARIABLE] = json.dumps(others)
    try:
        yield
    finally:
        os.environ[VARIABLE] = text


def _read() -> Dict[str, Any]:
    text = os.environ.get(VARIABLE, "").strip()
    try:
        settings = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f"{VARIABLE} is not JSON: {error}. Correct or unset it") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{VARIABLE} must be a JSON object; given {text}. Correct or unset it")
    return settings


def _part(settings: Dict[str, Any], name: str) -> Dict[str, Any]:
    found = settings.get(name) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{VARIABLE}: {name} must be an object; given {found!r}")
    return found


def _addresses(job: str, tasks: Any) -> int:
    """How many tasks a job has; they are a list, or an object from index to address."""
    if not isinstance(tasks, (list, dict)):
        raise ConfigError(
            f'{VARIABLE}: cluster.{job} must be a list of addresses such as ["host:2222"]; given '
            f"{tasks!r}"
        )
    return len(tasks)


def _is_task_of(jobs: Dict[str, int], task: Dict[str, Any]) -> bool:
    index = str(task.get("index", ""))
    return index.isdecimal() and int(index) < jobs.get(str(task.get("type")), 0)


def _check(jobs: Dict[str, int], task: Dict[str, Any]) -> None:
    """Refuses what TensorFlow's RunConfig would refuse with a traceback."""
    chiefs = sum(jobs.get(chief, 0) for chief in CHIEFS)
    if chiefs != 1:
        raise ConfigError(
            f"{VARIABLE}: a cluster needs one chief (or master); given {chiefs}. Jobs: {jobs}"
        )
    if task.get("type") == EVALUATOR and "chief" in jobs and str(task.get("index")) == "0":
        return
    if not _is_task_of(jobs, task):
        raise ConfigError(
            f"{VARIABLE}: the task {json.dumps(task)} is none of its cluster, whose jobs have so "
            f"many tasks: {json.dumps(jobs)}. Set task.type and task.index"
        )

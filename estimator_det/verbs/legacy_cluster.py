"""The cluster flags of the old trainer of the Object Detection API (`legacy/train.py`).

There a cluster was started by a service, and flags counted its tasks; the addresses came from
TF_CONFIG. Here TF_CONFIG says all of it. The flags are compared with it, so that commands and
scripts of the old trainer work if they agree with it, and are refused otherwise.

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Dict, Mapping, NamedTuple, Union

from estimator_det.console import UsageError


class Flag(NamedTuple):
    """A flag of the old trainer."""

    default: Union[int, str, bool]
    help: str


FLAGS: Dict[str, Flag] = {
    "num_clones": Flag(1, "Old trainer: 1; for several devices use train --strategy mirrored."),
    "clone_on_cpu": Flag(False, "Old trainer: train on the CPU, even where there is a GPU."),
    "worker_replicas": Flag(1, "Old trainer: workers, chief included; must agree with TF_CONFIG."),
    "ps_tasks": Flag(0, "Old trainer: parameter servers; must agree with TF_CONFIG."),
    "task": Flag(0, "Old trainer: index of this task; must agree with TF_CONFIG."),
    "worker_job_name": Flag("", "Old trainer: job of this task; must agree with TF_CONFIG."),
    "master": Flag("", "Old trainer: empty; addresses are in TF_CONFIG."),
}
_NO_JOB = ("", "lonely_worker")  # what the old trainer called a single process
_NO_MASTER = ("", "local")
_PORT = 2222


def add_arguments(parser: Any) -> None:
    """Adds the flags to a group of arguments."""
    for name, flag in FLAGS.items():
        if flag.default is False:
            parser.add_argument(f"--{name}", action="store_true", help=flag.help)
        else:
            kind, default = type(flag.default), flag.default
            parser.add_argument(f"--{name}", type=kind, default=default, help=flag.help)


def apply_options(options: argparse.Namespace) -> None:
    """As `apply`, of parsed arguments."""
    apply({name: getattr(options, name) for name in FLAGS})


def apply(given: Mapping[str, Any]) -> None:
    """Does what the flags say as far as it can be done; call it before TensorFlow is imported.

    Args:
        given: The value of each of `FLAGS`.

    Raises:
        UsageError: for a flag that has another spelling now, or disagrees with TF_CONFIG.
        ConfigError: if TF_CONFIG is malformed.
    """
    if given["num_clones"] != 1:
        raise UsageError(
            f"--num_clones={given['num_clones']}: copies of the model on several devices of a "
            "machine have a new spelling. Remove the flag, and use estimator-det train --strategy "
            "mirrored, which trains on all GPUs that are visible"
        )
    if given["master"] not in _NO_MASTER:
        raise UsageError(
            f"--master={given['master']}: each task starts its own server. Remove the flag, and "
            f"give the addresses of all tasks in TF_CONFIG: {_proposal(given)}"
        )
    _compare(given)
    if given["clone_on_cpu"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def _compare(given: Mapping[str, Any]) -> None:
    from model_fn.runs import cluster

    found = cluster.read_cluster()
    if found.task.is_alone:
        if given["ps_tasks"] or given["worker_replicas"] != 1 or given["task"]:
            names = ("worker_replicas", "ps_tasks", "task")
            flags = " ".join(f"--{name}={given[name]}" for name in names)
            raise UsageError(
                f"{flags}: {cluster.VARIABLE} names no cluster, and a cluster needs the addresses "
                f"of its tasks. Remove the flags, or set in each task {_proposal(given)}"
            )
        return
    actual: Dict[str, Any] = {
        "worker_replicas": len(found.readers),
        "ps_tasks": len(found.servers),
        "task": found.task.number,
        "worker_job_name": found.task.type,
    }
    for name, value in actual.items():
        default = FLAGS[name].default
        if given[name] not in (default, value, *(_NO_JOB if name == "worker_job_name" else ())):
            raise UsageError(
                f"--{name}={given[name]}, but by {cluster.VARIABLE} it is {value}. Remove the "
                "flag, or correct the variable"
            )


def _proposal(given: Mapping[str, Any]) -> str:
    workers = max(int(given["worker_replicas"]) - 1, 0)
    servers = max(int(given["ps_tasks"]), 1)
    hosts = [f"HOST{number}:{_PORT}" for number in range(1 + workers + servers)]
    jobs = {"chief": hosts[:1], "worker": hosts[1 : 1 + workers], "ps": hosts[1 + workers :]}
    task: Dict[str, Any] = {"type": "chief", "index": 0}
    if given["worker_job_name"] == "ps":
        task = {"type": "ps", "index": given["task"]}
    elif given["task"]:
        task = {"type": "worker", "index": given["task"] - 1}
    settings = {"cluster": {job: own for job, own in jobs.items() if own}, "task": task}
    return f"TF_CONFIG='{json.dumps(settings)}'"

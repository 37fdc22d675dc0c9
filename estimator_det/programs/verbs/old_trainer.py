"""Flags of the old trainer of the Object Detection API (`legacy/train.py`): refused by name.

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

from typing import Sequence

from estimator_det.programs.console import UsageError

_CLUSTER = "describe the cluster in the TF_CONFIG of each task; see docs/distributed.md"
# Flag -> what replaces it.
FLAGS = {
    "num_clones": "use estimator-det train --strategy mirrored, which trains on all visible GPUs",
    "clone_on_cpu": "set CUDA_VISIBLE_DEVICES=-1 to train on the CPU",
    "worker_replicas": _CLUSTER,
    "ps_tasks": _CLUSTER,
    "task": _CLUSTER,
    "worker_job_name": _CLUSTER,
    "master": _CLUSTER,
}


def refuse(arguments: Sequence[str]) -> None:
    """Refuses the first flag of the old trainer among the arguments of a command.

    Raises:
        UsageError: with what to use instead.
    """
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0]
        if argument.startswith("-") and name in FLAGS:
            raise UsageError(f"--{name} is a flag of the old trainer. Instead, {FLAGS[name]}")

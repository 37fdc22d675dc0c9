"""A job for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from estimator_det.programs.cloud.jobs import Job, Machine, MachinePool

CPU = Machine("n1-standard-8")
GPU = Machine("n1-standard-8", "NVIDIA_TESLA_T4", 2)
CLUSTER = (
    MachinePool("chief", GPU, 1),
    MachinePool("worker", GPU, 2),
    MachinePool("ps", CPU, 1),
    MachinePool("evaluator", GPU, 1),
)

LONE = Job(
    name="first-job",
    region="us-central1",
    project="my-project",
    job_dir="gs://bucket/run",
    pools=(MachinePool("chief", CPU, 1),),
    package="estimator_det-0.3.0.tar.gz",
    image="us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest",
    flags=("--num_train_steps=1000",),
)


def job(**changes: Any) -> Job:
    """The job of one machine with changes."""
    return dataclasses.replace(LONE, **changes)

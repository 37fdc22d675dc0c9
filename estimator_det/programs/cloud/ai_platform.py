"""Training jobs of the classic AI Platform, which closed on January 31, 2025.

Its command and description are printed for comparison with scripts that still contain them.
"""

from __future__ import annotations

from typing import Any, Dict, List

from estimator_det.programs.cloud.jobs import (
    CHIEF,
    MODULE,
    ROLES,
    WORKER,
    Job,
    Machine,
    MachinePool,
)

CLOSED = (
    "AI Platform Training is closed since January 31, 2025: the command is printed, no job can be "
    "created. Use --platform vertex"
)

_FIELDS = dict(zip(ROLES, ("master", "worker", "parameterServer", "evaluator")))


def job_spec(job: Job) -> Dict[str, Any]:
    """The `Job` of the service."""
    training: Dict[str, Any] = {"scaleTier": "CUSTOM", "region": job.region}
    for pool in _pools(job):
        field, machine = _FIELDS[pool.role], pool.machine
        training[f"{field}Type"] = machine.machine_type
        if pool.role != CHIEF:
            training[f"{field}Count"] = pool.replicas
        config: Dict[str, Any] = {}
        if machine.accelerator_type:
            config["acceleratorConfig"] = {
                "count": machine.accelerator_count,
                "type": machine.accelerator_type,
            }
        if job.image_has_package:
            config["imageUri"] = job.image
        if config:
            training[f"{field}Config"] = config
    if job.image_has_package:
        training["useChiefInTfConfig"] = True
    if job.service_account:
        training["serviceAccount"] = job.service_account
    return {"trainingInput": training}


def _pools(job: Job) -> List[MachinePool]:
    """The pools; the host of a TPU is a chief of its own here, and the TPU its worker."""
    if not job.uses_tpu:
        return list(job.pools)
    (pool,) = job.pools
    tpu = pool.machine._replace(machine_type="cloud_tpu")
    return [MachinePool(CHIEF, Machine("n1-standard-8"), 1), MachinePool(WORKER, tpu, 1)]


def command(job: Job, spec_path: str) -> List[str]:
    """The `gcloud` command that submits the job."""
    project = [f"--project={job.project}"] if job.project else []
    code = [
        f"--module-name={MODULE}",
        f"--packages={job.package_uri}",
        "--runtime-version=2.11",  # the last one
        "--python-version=3.7",
    ]
    return [
        *("gcloud", "ai-platform", "jobs", "submit", "training", job.name.replace("-", "_")),
        *project,
        f"--region={job.region}",
        f"--job-dir={job.job_dir}",
        f"--config={spec_path}",
        *([] if job.image_has_package else code),
        "--",
        *job.arguments(),
    ]

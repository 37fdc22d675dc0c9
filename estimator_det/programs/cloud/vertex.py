"""Custom jobs of Vertex AI: the description of one and the command that creates it."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Sequence

from estimator_det.errors import UsageError
from estimator_det.programs.cloud.jobs import (
    MODULE,
    PARAMETER_SERVER,
    ROLES,
    Job,
    MachinePool,
    region_part,
)

# The newest images of the service for these machines:
# https://cloud.google.com/vertex-ai/docs/training/pre-built-containers.
_PREBUILT = {"cpu": "tf-cpu.2-17.py310", "gpu": "tf-gpu.2-17.py310", "tpu": "tf-tpu.2-15.cp310"}
# The last minor version of TensorFlow 2 whose Estimator has parameter servers; `compat.versions`,
# which says so too, imports TensorFlow.
_LAST_WITH_SERVERS = 15
_MINOR_VERSION = re.compile(r"(/tf-\w+\.2-)(\d+)(?=\.)")


def prebuilt_image(pools: Sequence[MachinePool], region: str) -> str:
    """URI of the newest image of the service that these pools can use, without estimator-det."""
    chief = pools[0].machine
    kind = "gpu" if chief.accelerator_type else "cpu"
    name = _PREBUILT["tpu" if chief.is_tpu else kind]
    image = f"{region_part(region)}-docker.pkg.dev/vertex-ai/training/{name}:latest"
    return _with_servers(image) if _serves(pools) else image


def check_image(image: str, pools: Sequence[MachinePool]) -> None:
    """Refuses parameter servers in an image of the service whose TensorFlow has none."""
    version = _MINOR_VERSION.search(image)
    if version and _serves(pools) and int(version[2]) > _LAST_WITH_SERVERS:
        raise UsageError(
            f"--executor_image {image} has TensorFlow 2.{version[2]}, and parameter servers need "
            f"2.{_LAST_WITH_SERVERS}. Give {_with_servers(image)}, or with --container_image an "
            "image of your own"
        )


def _with_servers(image: str) -> str:
    return _MINOR_VERSION.sub(rf"\g<1>{_LAST_WITH_SERVERS}", image)


def _serves(pools: Sequence[MachinePool]) -> bool:
    return any(pool.role == PARAMETER_SERVER for pool in pools)


def job_spec(job: Job) -> Dict[str, Any]:
    """The `CustomJobSpec` of a job."""
    spec: Dict[str, Any] = {
        "workerPoolSpecs": [_worker_pool(pool, job) for pool in job.pools],
        "baseOutputDirectory": {"outputUriPrefix": job.job_dir},
    }
    scheduling: Dict[str, Any] = {}
    if job.spot:
        scheduling["strategy"] = "SPOT"
    if job.spot or len(job.pools) > 1:
        scheduling["restartJobOnWorkerRestart"] = True  # The run resumes from its checkpoint.
    if scheduling:
        spec["scheduling"] = scheduling
    if job.service_account:
        spec["serviceAccount"] = job.service_account
    return spec


def _worker_pool(pool: MachinePool, job: Job) -> Dict[str, Any]:
    machine: Dict[str, Any] = {"machineType": pool.machine.machine_type}
    if pool.machine.accelerator_type:
        machine["acceleratorType"] = pool.machine.accelerator_type
        machine["acceleratorCount"] = pool.machine.accelerator_count
    if pool.machine.tpu_topology:
        machine["tpuTopology"] = pool.machine.tpu_topology
    spec: Dict[str, Any] = {"machineSpec": machine, "replicaCount": pool.replicas}
    if job.image_has_package:
        spec["containerSpec"] = {
            "imageUri": job.image,
            "command": ["python", "-m", MODULE],
            "args": job.arguments(),
        }
    else:
        spec["pythonPackageSpec"] = {
            "executorImageUri": job.image,
            "packageUris": [job.package_uri],
            "pythonModule": MODULE,
            "args": job.arguments(),
        }
    return spec


def command(job: Job, spec_path: str) -> List[str]:
    """The `gcloud` command that creates the job from its description."""
    project = [f"--project={job.project}"] if job.project else []
    return [
        *("gcloud", "ai", "custom-jobs", "create"),
        *project,
        f"--region={job.region}",
        f"--display-name={job.name}",
        f"--config={spec_path}",
    ]


def environment(
    job_dir: str, addresses: Mapping[str, Sequence[str]], role: str, index: int
) -> Dict[str, str]:
    """The variables that the service sets in a replica; addresses are host:port by role."""
    pools = {name: f"workerpool{ROLES.index(name)}" for name in addresses}
    cluster_spec = {
        "cluster": {pools[name]: list(hosts) for name, hosts in addresses.items()},
        "environment": "cloud",
        "task": {"type": pools[role], "index": index},
    }
    tf_config = {
        "cluster": {name: list(hosts) for name, hosts in addresses.items()},
        "environment": "cloud",
        "task": {"type": role, "index": index},
    }
    return {
        "AIP_MODEL_DIR": f"{job_dir}/model/",
        "AIP_CHECKPOINT_DIR": f"{job_dir}/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": f"{job_dir}/logs/",
        "CLUSTER_SPEC": json.dumps(cluster_spec),
        "TF_CONFIG": json.dumps(tf_config),
    }

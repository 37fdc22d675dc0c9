"""Environment variables of the jobs of a training service, and of its TPU.

Imports no TensorFlow.
"""

from __future__ import annotations

import json
from typing import Dict, List, Mapping, Optional, Tuple

from estimator_det.errors import UsageError

TENSORBOARD_VARIABLE = "AIP_TENSORBOARD_LOG_DIR"
# Variables for the folder of a job's files; the first that is set names the model_dir.
MODEL_DIR_VARIABLES = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "JOB_DIR")
# Set by Vertex AI, and AI Platform before it, whose standard error becomes log entries.
JOB_VARIABLES = ("CLOUD_ML_JOB_ID", "CLOUD_ML_JOB", *MODEL_DIR_VARIABLES[:2], TENSORBOARD_VARIABLE)

# Variables that name a TPU, in the order of TensorFlow's own client for Cloud TPU.
ENDPOINTS_VARIABLE = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
NAME_VARIABLE = "TPU_NAME"
CONFIG_VARIABLE = "TPU_CONFIG"
_PREFIX = "grpc://"


def find_model_dir(
    model_dir: Optional[str], job_dir: Optional[str], environment: Mapping[str, str]
) -> Tuple[Optional[str], List[str]]:
    """The folder of a run, and notes for the user; the first of these that is given counts.

    1. the flag --model_dir
    2. the flag --job-dir, which AI Platform adds
    3. AIP_MODEL_DIR and 4. AIP_CHECKPOINT_DIR, which Vertex AI sets from `baseOutputDirectory`
    5. JOB_DIR
    """
    candidates = [("--model_dir", model_dir), ("--job-dir", job_dir)]
    candidates += [(name, environment.get(name)) for name in MODEL_DIR_VARIABLES]
    named = [(source, path.rstrip("/") or path) for source, path in candidates if path]
    if not named:
        return None, []
    source, path = named[0]
    notes = [
        f"{other_source}={unused} has no effect: the run is saved in {path}, from {source}"
        for other_source, unused in named[1:]
        if unused != path
    ]
    if source in MODEL_DIR_VARIABLES:
        notes.insert(0, f"model_dir is {path}, from {source}")
    return path, notes


def is_cloud_job(environment: Mapping[str, str]) -> bool:
    """True if this process is a job of Vertex AI or AI Platform."""
    return any(environment.get(name) for name in JOB_VARIABLES)


def read_tpu_address(environment: Mapping[str, str]) -> Dict[str, Optional[str]]:
    """`tpu_name`, `tpu_zone` and `gcp_project` from the first of these variables that is set.

    * KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, set by Kubernetes Engine: addresses with commas between.
    * TPU_NAME, set on virtual machines: a name or an address.
    * TPU_CONFIG, set by training services: JSON with tpu_node_name, zone and project.
    """
    endpoints = environment.get(ENDPOINTS_VARIABLE, "").split(",")
    hosts = [endpoint.strip() for endpoint in endpoints if endpoint.strip()]
    if hosts:
        named = (host if host.startswith(_PREFIX) else _PREFIX + host for host in hosts)
        return {"tpu_name": ",".join(named)}
    if environment.get(NAME_VARIABLE):
        return {"tpu_name": environment[NAME_VARIABLE]}
    if environment.get(CONFIG_VARIABLE):
        return _read_config(environment[CONFIG_VARIABLE])
    return {}


def _read_config(text: str) -> Dict[str, Optional[str]]:
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{CONFIG_VARIABLE} is not JSON: {error}. Correct or unset it, or give --tpu_name"
        ) from error
    name = settings.get("tpu_node_name") if isinstance(settings, dict) else None
    if not name:
        raise UsageError(
            f"{CONFIG_VARIABLE} has no tpu_node_name: {text}. Required is a JSON object with "
            "tpu_node_name, zone and project. Correct or unset it, or give --tpu_name"
        )
    zone, project = settings.get("zone"), settings.get("project")
    return {"tpu_name": str(name), "tpu_zone": zone, "gcp_project": project}

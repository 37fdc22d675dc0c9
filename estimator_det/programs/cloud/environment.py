"""Environment variables of the jobs of a training service. Imports no TensorFlow."""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Optional

TENSORBOARD_VARIABLE = "AIP_TENSORBOARD_LOG_DIR"
# Folders for what a job writes; the first one that is set is its model_dir.
MODEL_DIR_VARIABLES = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "JOB_DIR")
# Set by Vertex AI, and AI Platform before it, whose standard error becomes log entries.
JOB_VARIABLES = ("CLOUD_ML_JOB_ID", "CLOUD_ML_JOB", *MODEL_DIR_VARIABLES[:2], TENSORBOARD_VARIABLE)


class ModelDir(NamedTuple):
    """Folder where a job saves its run."""

    path: Optional[str]  # None if nothing names a folder
    source: str  # the flag or variable that names it
    notes: List[str]  # for the user: what else names a folder, and has no effect


def find_model_dir(
    model_dir: Optional[str], job_dir: Optional[str], environment: Mapping[str, str]
) -> ModelDir:
    """The folder of a run: that of the first of these that is given.

    1. the flag --model_dir
    2. the flag --job-dir, which AI Platform adds
    3. AIP_MODEL_DIR and 4. AIP_CHECKPOINT_DIR, which Vertex AI sets from `baseOutputDirectory`
    5. JOB_DIR
    """
    candidates = [("--model_dir", model_dir), ("--job-dir", job_dir)]
    candidates += [(name, environment.get(name)) for name in MODEL_DIR_VARIABLES]
    named = [(source, path.rstrip("/") or path) for source, path in candidates if path]
    if not named:
        return ModelDir(None, "", [])
    source, path = named[0]
    notes = [
        f"{other_source}={unused} has no effect: the run is saved in {path}, from {source}"
        for other_source, unused in named[1:]
        if unused != path
    ]
    if source in MODEL_DIR_VARIABLES:
        notes.insert(0, f"model_dir is {path}, from {source}")
    return ModelDir(path, source, notes)


def is_cloud_job(environment: Mapping[str, str]) -> bool:
    """True if this process is a job of Vertex AI or AI Platform."""
    return any(environment.get(name) for name in JOB_VARIABLES)

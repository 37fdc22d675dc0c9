"""Checks a configuration, stages its data and uploads both, before its job is created."""

from __future__ import annotations

import glob
import os
import pathlib
import sys
from typing import Any, List, NamedTuple, Sequence

from estimator_det.config import printing
from estimator_det.config.check import CHECKPOINT_FIELD, named_paths
from estimator_det.config.files import is_remote
from estimator_det.config.problem import refuse
from estimator_det.config.text import ConfigError
from estimator_det.programs import console
from estimator_det.programs.cloud.jobs import Job


class Staged(NamedTuple):
    """A path of the configuration that the job reads from Cloud Storage."""

    field: str
    local: str  # a path, a pattern, or the prefix of a checkpoint
    files: List[str]  # the local files, or a folder
    folder: str  # gs:// folder that they are uploaded to

    @property
    def remote(self) -> str:
        """The path in the configuration of the job."""
        if os.path.isdir(self.local):
            return self.folder
        return f"{self.folder}/{os.path.basename(self.local)}"


def staged_paths(config: Any, job: Job, *, stages: bool) -> List[Staged]:
    """The local paths of a configuration, each with its place in Cloud Storage."""
    staged = []
    for field, path in named_paths(config):
        if not is_remote(path):
            name = field.replace("[", "-").replace("]", "")  # not a pattern
            staged.append(
                Staged(field, path, _local_files(field, path), f"{job.job_dir}/data/{name}")
            )
    if staged and not stages:
        named = "\n".join(f"  {each.field}: {printing.plain(each.local)}" for each in staged)
        raise ConfigError(
            None,
            "a job reads files of Cloud Storage only; the configuration names local "
            f"ones:\n{named}\nGive --stage_data to upload them, or --set FIELD=gs://…",
        )
    return staged


def _local_files(field: str, path: str) -> List[str]:
    if os.path.isdir(path):
        return [path]
    pattern = path
    if field == CHECKPOINT_FIELD:
        from model_fn.checkpoints.find import stem_of

        pattern = f"{stem_of(path)}.*"
    files = sorted(glob.glob(pattern))
    if not files:
        raise FileNotFoundError(
            f"{field}: no file matches {printing.quoted(path)} (from {os.getcwd()})"
        )
    return files


def check_config(config: Any, job: Job, *, reads_files: bool) -> None:
    """Checks a configuration and, if it may read them, the files that it names."""
    if not reads_files:
        console.print_line("files of the configuration are not checked: nothing is uploaded")
    depth = "files" if reads_files else "names"
    console.check_config(config, depth, ignore=console.FOR_TPU if job.uses_tpu else ())


def check_paths(config: Any, job: Job, staged: Sequence[Staged]) -> None:
    """Checks that the job can read its paths, but for those staged later, and write its folder."""
    from estimator_det.programs.cloud import checks

    later = {each.field for each in staged}
    problems = checks.check_paths(config, model_dir=job.job_dir, region=job.region)
    problems = [problem for problem in problems if problem.field not in later]
    errors = [problem for problem in problems if problem.severity == "error"]
    refuse(errors, "the configuration cannot be run")
    for problem in problems:
        printing.report(problem, sys.stderr)


def upload(
    job: Job, config_file: pathlib.Path, package: pathlib.Path, staged: Sequence[Staged]
) -> None:
    """Uploads what the job reads: data, configuration and package."""
    from estimator_det.programs.cloud import storage

    for each in staged:
        copied = storage.upload(each.files, each.folder)
        uploaded = printing.counted(copied.files, "file")
        were = "was" if copied.same == 1 else "were"
        console.print_line(f"{each.folder}: {uploaded} uploaded, {copied.same:,} {were} there")
    sources = [str(config_file)] if job.image_has_package else [str(config_file), str(package)]
    storage.upload(sources, job.staging)
    console.print_line(f"{job.staging}: {', '.join(map(os.path.basename, sources))} uploaded")

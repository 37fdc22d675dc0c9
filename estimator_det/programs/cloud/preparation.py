"""Checks a configuration, stages its data and uploads both, before its job is created."""

from __future__ import annotations

import glob
import os
import pathlib
import sys
import uuid
from typing import TYPE_CHECKING, Iterator, List, NamedTuple, Sequence, Set

from estimator_det.config.paths import CHECKPOINT_FIELD, named_paths
from estimator_det.console import printing
from estimator_det.console.printing import quoted
from estimator_det.errors import Problem, StorageError, UsageError, error, raise_errors, warning
from estimator_det.files import is_remote, matching
from estimator_det.programs import console
from estimator_det.programs.cloud import storage
from estimator_det.programs.cloud.connection import Connection, connect
from estimator_det.programs.cloud.jobs import Job
from estimator_det.programs.cloud.paths import CloudPath, is_cloud, parse
from estimator_det.programs.cloud.transfers import path_of

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

_MODEL_DIR = "--model_dir"
# Regions of a continent that its multi-region does not contain.
_OUTSIDE = {"EU": ("europe-west2", "europe-west6", "europe-west12")}
_MULTI_REGIONS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}


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


def staged_paths(
    config: pipeline_pb2.TrainEvalPipelineConfig, job: Job, *, stages: bool
) -> List[Staged]:
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
        raise UsageError(
            "a job reads files of Cloud Storage only; the configuration names local "
            f"ones:\n{named}\nGive --stage_data to upload them, or --set FIELD=gs://…"
        )
    return staged


def _local_files(field: str, path: str) -> List[str]:
    if os.path.isdir(path):
        return [path]
    pattern = path
    if field == CHECKPOINT_FIELD:
        from model_fn.checkpoints.find import stem_of

        pattern = f"{glob.escape(stem_of(path))}.*"
    files = matching(pattern)
    if not files:
        raise FileNotFoundError(
            f"{field}: no file matches {printing.quoted(path)} (from {os.getcwd()})"
        )
    return files


def check_config(
    config: pipeline_pb2.TrainEvalPipelineConfig, job: Job, *, reads_files: bool
) -> None:
    """Checks a configuration and, if it may read them, the files that it names."""
    if not reads_files:
        console.print_line("files of the configuration are not checked: nothing is uploaded")
    depth = "files" if reads_files else "names"
    console.check_config(config, depth, ignore=console.FOR_TPU if job.uses_tpu else ())


def check_paths(
    config: pipeline_pb2.TrainEvalPipelineConfig, job: Job, staged: Sequence[Staged]
) -> None:
    """Checks that the job can read its paths, but for those staged later, and write its folder."""
    later = {each.field for each in staged}
    problems = path_problems(config, model_dir=job.job_dir, region=job.region)
    problems = [problem for problem in problems if problem.field not in later]
    raise_errors(problems)
    for problem in problems:
        printing.report(problem, sys.stderr)


def path_problems(
    config: pipeline_pb2.TrainEvalPipelineConfig, *, model_dir: str, region: str
) -> List[Problem]:
    """Errors, then warnings, about paths that a job in the cloud could not read or write.

    One file of each path is read and, in `model_dir`, one is written and deleted. Buckets outside
    of `region` get a warning.
    """
    connection = connect()
    problems: List[Problem] = []
    buckets: Set[str] = set()
    for field, path in [*named_paths(config), (_MODEL_DIR, model_dir)]:
        if not is_cloud(path):
            what = f"{quoted(path)} is not in Cloud Storage: a job cannot use it"
            remedy = "estimator-det sync FILES gs://BUCKET/data uploads files; then --set "
            problems.append(error(field, what, f"{remedy}{field}=gs://BUCKET/data/NAME"))
            continue
        try:
            parsed = parse(path)
            if field == _MODEL_DIR:
                _write(connection, parsed)
            else:
                problems += _check_readable(connection, field, parsed)
            buckets.add(parsed.bucket)
        except UsageError as wrong:
            problems.append(error(field, str(wrong), "correct the path"))
        except StorageError as refused:
            problems.append(error(field, refused.what, refused.remedy))
    for bucket in sorted(buckets):
        problems += _check_region(connection, bucket, region)
    return sorted(problems, key=lambda problem: problem.severity != "error")


def _check_readable(connection: Connection, field: str, path: CloudPath) -> Iterator[Problem]:
    wanted = [path]
    if field == CHECKPOINT_FIELD:  # a prefix, one of the files that share it, or a folder
        from model_fn.checkpoints.find import stem_of

        patterns = (f"{stem_of(path.name)}.*", f"{path.folder}*.index")
        wanted = [CloudPath(path.bucket, pattern) for pattern in patterns]
    files = next(filter(None, map(connection.list_blobs, wanted)), [])
    if not files:
        yield error(
            field,
            f"no file matches {quoted(str(wanted[0]))}",
            f"correct the path; gcloud storage ls gs://{path.bucket} lists the bucket",
        )
    empty = [blob for blob in files if not blob.size]
    if empty:
        yield error(
            field,
            f"{path_of(empty[0])} is empty, as an interrupted upload leaves it",
            "upload it again: estimator-det sync FILE gs://BUCKET/FOLDER",
        )
    for blob in [blob for blob in files if blob.size][:1]:
        with connection.request(path_of(blob), "read") as sending:
            blob.download_as_bytes(start=0, end=0, raw_download=True, checksum=None, **sending)


def _write(connection: Connection, path: CloudPath) -> None:
    probe = path.join(f"estimator-det-write-check.{uuid.uuid4().hex}")
    with connection.request(probe, "write") as sending:
        connection.blob(probe).upload_from_string("written and deleted by a check", **sending)
        # A training deletes as well: old checkpoints, and files that it renames.
        connection.blob(probe).delete(**sending)


def _check_region(connection: Connection, bucket: str, region: str) -> Iterator[Problem]:
    where = connection.client.bucket(bucket)
    try:
        with connection.request(CloudPath(bucket, ""), "read") as sending:
            where.reload(**sending)
    except StorageError:
        yield warning(
            f"gs://{bucket}",
            "the region of the bucket cannot be read",
            "give your account roles/storage.legacyBucketReader, or check by: gcloud storage "
            f"buckets describe gs://{bucket} --format='value(location)'",
        )
        return
    parts = [part.lower() for part in where.data_locations or []]
    if not is_near(str(where.location), parts, region):
        here = " + ".join(parts) or str(where.location).lower()
        yield warning(
            f"gs://{bucket}",
            f"the bucket is in {here}, the job in {region}: reading is slower, and Google charges "
            "for traffic between regions",
            f"run the job in the region of the bucket, or copy the files to a bucket in {region}",
        )


def is_near(location: str, parts: List[str], region: str) -> bool:
    """True if a bucket in a region, a multi-region such as US, or two regions is in `region`."""
    if parts:
        return region in parts
    if location in _MULTI_REGIONS:
        inside = region.startswith(_MULTI_REGIONS[location])
        return inside and region not in _OUTSIDE.get(location, ())
    return location.lower() == region


def upload(
    job: Job, config_file: pathlib.Path, package: pathlib.Path, staged: Sequence[Staged]
) -> None:
    """Uploads what the job reads: data, configuration and package."""
    for each in staged:
        copied = storage.upload(each.files, each.folder)
        uploaded = printing.counted(copied.files, "file")
        were = "was" if copied.same == 1 else "were"
        console.print_line(f"{each.folder}: {uploaded} uploaded, {copied.same:,} {were} there")
    sources = [str(config_file)] if job.image_has_package else [str(config_file), str(package)]
    storage.upload(sources, job.staging)
    console.print_line(f"{job.staging}: {', '.join(map(os.path.basename, sources))} uploaded")

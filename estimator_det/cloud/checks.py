"""Checks before a job starts: whether it can read and write what its configuration names."""

from __future__ import annotations

import uuid
from typing import Any, Iterator, List, Optional, Set

from estimator_det.cloud import listing, uploads
from estimator_det.cloud.connection import Connection, Options, StorageError, call, connect
from estimator_det.cloud.paths import CloudPath, is_cloud, parse
from estimator_det.config.check import named_paths
from estimator_det.config.printing import quoted
from estimator_det.config.problem import Problem, error, warning
from estimator_det.config.text import ConfigError

_MODEL_DIR = "--model_dir"
_CHECKPOINT = "train_config.fine_tune_checkpoint"
# Regions of a continent that its multi-region does not contain.
_OUTSIDE = {"EU": ("europe-west2", "europe-west6", "europe-west12")}
_MULTI_REGIONS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}


def check_paths(
    config: Any,
    *,
    model_dir: str = "",
    region: str = "",
    options: Optional[Options] = None,
    connection: Optional[Connection] = None,
) -> List[Problem]:
    """What a job in the cloud could not read, or not write, of what its configuration names.

    A file is read and, in `model_dir`, one is written and deleted.

    Args:
        config: A `TrainEvalPipelineConfig` with all overrides.
        model_dir: Of the job; not checked if empty.
        region: Of the job, such as us-central1; buckets elsewhere get a warning.
        options: How requests are sent.
        connection: One that exists already, in place of `options`.

    Returns:
        Errors first, then warnings.

    Raises:
        StorageError: without credentials, or if the service keeps failing.
    """
    connection = connection or connect(options)
    problems: List[Problem] = []
    buckets: Set[str] = set()
    for field, path in [*named_paths(config), *([(_MODEL_DIR, model_dir)] if model_dir else [])]:
        if not is_cloud(path):
            problems.append(_local(field, path))
            continue
        try:
            parsed = parse(path)
            if field == _MODEL_DIR:
                _write(connection, parsed)
            else:
                problems += _check_readable(connection, field, parsed)
            buckets.add(parsed.bucket)
        except ConfigError as wrong:
            problems.append(error(field, str(wrong), "correct the path"))
        except StorageError as refused:
            problems.append(error(field, refused.what, refused.remedy))
    if region:
        for bucket in sorted(buckets):
            problems += _check_region(connection, bucket, region)
    return sorted(problems, key=lambda problem: problem.severity != "error")


def _local(field: str, path: str) -> Problem:
    if field == _MODEL_DIR:
        remedy = "give gs://BUCKET/FOLDER"
    else:
        remedy = (
            "estimator-det sync FILES gs://BUCKET/data uploads files; then --set "
            f"{field}=gs://BUCKET/data/NAME"
        )
    return error(field, f"{quoted(path)} is not in Cloud Storage: a job cannot use it", remedy)


def _check_readable(connection: Connection, field: str, path: CloudPath) -> Iterator[Problem]:
    wanted = [path]
    if field == _CHECKPOINT:  # a prefix, one of the files that share it, or a folder
        from model_fn.checkpoints.find import stem_of

        patterns = (f"{stem_of(path.name)}.*", f"{path.folder}*.index")
        wanted = [CloudPath(path.bucket, pattern) for pattern in patterns]
    files = next(filter(None, (listing.list_files(connection, each) for each in wanted)), [])
    if not files:
        yield error(
            field,
            f"no file matches {quoted(str(wanted[0]))}",
            f"correct the path; gcloud storage ls gs://{path.bucket} lists the bucket",
        )
    empty = [one for one in files if not one.size]
    if empty:
        yield error(
            field,
            f"{empty[0].path} is empty, as an interrupted upload leaves it",
            "upload it again: estimator-det sync FILE gs://BUCKET/FOLDER",
        )
    if any(one.size for one in files):
        listing.read_bytes(connection, next(one.path for one in files if one.size), 0, 1)


def _write(connection: Connection, path: CloudPath) -> None:
    probe = path.join(f"estimator-det-write-check.{uuid.uuid4().hex}")
    uploads.upload_bytes(connection, b"written and deleted by a check\n", probe)
    # A training deletes as well: old checkpoints, and files that it renames.
    call(
        connection,
        probe,
        "write",
        lambda: connection.blob(probe).delete(timeout=connection.options.timeout_secs, retry=None),
    )


def _check_region(connection: Connection, bucket: str, region: str) -> Iterator[Problem]:
    where = connection.bucket(CloudPath(bucket, ""))
    try:
        call(
            connection,
            CloudPath(bucket, ""),
            "read",
            lambda: where.reload(timeout=connection.options.timeout_secs, retry=None),
        )
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
    """Whether a bucket is in a region.

    Args:
        location: Of the bucket: a region, or a multi-region such as US.
        parts: Regions of a bucket in two regions; else empty.
        region: Such as us-central1.
    """
    if parts:
        return region in parts
    if location in _MULTI_REGIONS:
        inside = region.startswith(_MULTI_REGIONS[location])
        return inside and region not in _OUTSIDE.get(location, ())
    return location.lower() == region

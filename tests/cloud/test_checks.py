"""Checks of the paths of a job."""

from __future__ import annotations

from typing import Any, List

import pytest

from estimator_det.config import pipeline
from estimator_det.errors import Problem
from estimator_det.programs.cloud import preparation
from estimator_det.programs.cloud.connection import connect
from estimator_det.programs.cloud.paths import parse
from estimator_det.protos import pipeline_pb2
from tests.cloud.emulator import status

READER = "train_input_reader.tf_record_input_reader.input_path"
LABELS = "train_input_reader.label_map_path"
CHECKPOINT = "train_config.fine_tune_checkpoint"


def _config(**paths: str) -> Any:
    assignments = {
        READER: "[gs://data/train.record-*]",
        LABELS: "gs://data/map.pbtxt",
        CHECKPOINT: "gs://data/old/model.ckpt",
        **paths,
    }
    config = pipeline_pb2.TrainEvalPipelineConfig()
    return pipeline.apply_overrides(config, [f"{k}={v}" for k, v in assignments.items()])


def _fill() -> None:
    for name in ("train.record-0", "train.record-1", "map.pbtxt", "old/model.ckpt.index"):
        connect().blob(parse(f"gs://data/{name}")).upload_from_string(b"content")


def _check(config: Any, **settings: Any) -> List[Problem]:
    defaults = {"model_dir": "gs://data/run", "region": "us-central1"}
    return preparation.path_problems(config, **{**defaults, **settings})


def test_nothing_is_wrong(emulator):
    _fill()
    before = set(emulator.storage.objects["data"])
    assert _check(_config()) == []
    assert set(emulator.storage.objects["data"]) == before
    assert emulator.count("DELETE", "run%2Festimator-det-write-check") == 1


@pytest.mark.parametrize(
    ("field", "path", "message", "remedy"),
    [
        (f"{READER}[0]", "gs://data/val*", "no file matches 'gs://data/val*'", "gcloud storage ls"),
        (LABELS, "gs://none/map.pbtxt", "there is no bucket gs://none", "buckets create gs://none"),
        (LABELS, "data/map.pbtxt", "'data/map.pbtxt' is not in Cloud Storage", f"--set {LABELS}="),
        (CHECKPOINT, "gs://data/old/mod", "no file matches 'gs://data/old/mod.*'", "gcloud"),
        (LABELS, "gs://data/empty", "gs://data/empty is empty", "upload it again"),
    ],
)
def test_what_is_wrong(emulator, field, path, message, remedy):
    _fill()
    connect().blob(parse("gs://data/empty")).upload_from_string(b"")
    value = f"[{path}]" if field.endswith("]") else path
    (problem,) = _check(_config(**{field.partition("[")[0]: value}))
    assert (problem.severity, problem.field) == ("error", field)
    assert message in problem.message and remedy in problem.remedy


def test_no_permission_to_read(emulator):
    _fill()
    emulator.fail("GET", "alt=media", status(403, "no storage.objects.get access"), times=99)
    problems = _check(_config())
    assert {problem.field for problem in problems} == {f"{READER}[0]", LABELS, CHECKPOINT}
    assert all("no permission to read (HTTP 403: no sto" in one.message for one in problems)
    assert all("roles/storage.objectViewer" in one.remedy for one in problems)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_model_dir_that_cannot_be_written(emulator, method):
    _fill()
    emulator.fail(method, "", status(403))
    (problem,) = _check(_config())
    assert problem.field == "--model_dir" and "no permission to write" in problem.message
    assert "roles/storage.objectAdmin" in problem.remedy


def test_bucket_in_another_region(emulator):
    _fill()
    (problem,) = _check(_config(), region="europe-west4")
    assert (problem.severity, problem.field) == ("warning", "gs://data")
    assert "the bucket is in us-central1, the job in europe-west4" in problem.message
    assert "bucket in europe-west4" in problem.remedy


@pytest.mark.parametrize("path", ["old", "old/", "old/model.ckpt.index"])
def test_checkpoint_as_a_folder_or_one_of_its_files(emulator, path):
    _fill()
    assert not _check(_config(**{CHECKPOINT: f"gs://data/{path}"}))


def test_region_that_cannot_be_read(emulator):
    _fill()
    emulator.fail("GET", "/b/data?", status(403), times=99)
    (problem,) = _check(_config())
    assert problem.severity == "warning"
    assert problem.message == "the region of the bucket cannot be read"


@pytest.mark.parametrize(
    ("location", "parts", "region", "expected"),
    [
        ("US-CENTRAL1", [], "us-central1", True),
        ("US-CENTRAL1", [], "us-central2", False),
        ("US", [], "us-west4", True),
        ("US", [], "northamerica-northeast1", False),
        ("EU", [], "europe-west4", True),
        ("EU", [], "europe-west2", False),
        ("ASIA", [], "asia-east1", True),
        ("NAM4", ["us-central1", "us-east1"], "us-east1", True),
        ("NAM4", ["us-central1", "us-east1"], "us-west1", False),
    ],
)
def test_regions(location, parts, region, expected):
    assert preparation.is_near(location, parts, region) == expected

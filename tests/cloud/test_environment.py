"""Environment variables of training services."""

import pytest

from estimator_det.programs.cloud import environment

VERTEX = {
    "AIP_MODEL_DIR": "gs://b/out/model/",
    "AIP_CHECKPOINT_DIR": "gs://b/out/checkpoints/",
    "AIP_TENSORBOARD_LOG_DIR": "gs://b/out/logs/",
}


@pytest.mark.parametrize(
    ("model_dir", "job_dir", "variables", "expected"),
    [
        ("m", "j", VERTEX, ("m", "--model_dir")),
        (None, "gs://b/j/", VERTEX, ("gs://b/j", "--job-dir")),
        (None, None, {**VERTEX, "JOB_DIR": "x"}, ("gs://b/out/model", "AIP_MODEL_DIR")),
        ("", "", {**VERTEX, "AIP_MODEL_DIR": ""}, ("gs://b/out/checkpoints", "AIP_CHECKPOINT_DIR")),
        (None, None, {"JOB_DIR": "gs://b/x"}, ("gs://b/x", "JOB_DIR")),
        (None, None, {"AIP_TENSORBOARD_LOG_DIR": "gs://b/logs"}, (None, "")),
        (None, None, {"JOB_DIR": "/"}, ("/", "JOB_DIR")),
    ],
)
def test_order(model_dir, job_dir, variables, expected):
    found = environment.find_model_dir(model_dir, job_dir, variables)
    assert (found.path, found.source) == expected


def test_conflicts_are_named():
    found = environment.find_model_dir("m", "j/", {"JOB_DIR": "m/", "AIP_CHECKPOINT_DIR": "c"})
    assert found.notes == [
        "--job-dir=j has no effect: the run is saved in m, from --model_dir",
        "AIP_CHECKPOINT_DIR=c has no effect: the run is saved in m, from --model_dir",
    ]
    assert environment.find_model_dir("m", "m/", {}).notes == []
    found = environment.find_model_dir(None, None, VERTEX)
    assert found.notes == [
        "model_dir is gs://b/out/model, from AIP_MODEL_DIR",
        "AIP_CHECKPOINT_DIR=gs://b/out/checkpoints has no effect: the run is saved in "
        "gs://b/out/model, from AIP_MODEL_DIR",
    ]


@pytest.mark.parametrize("name", environment.JOB_VARIABLES)
def test_jobs_are_recognized(name):
    assert environment.is_cloud_job({name: "x"})
    assert not environment.is_cloud_job({name: "", "JOB_DIR": "x", "TPU_NAME": "x"})

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
        ("m", "j", VERTEX, "m"),
        (None, "gs://b/j/", VERTEX, "gs://b/j"),
        (None, None, {**VERTEX, "JOB_DIR": "x"}, "gs://b/out/model"),
        ("", "", {**VERTEX, "AIP_MODEL_DIR": ""}, "gs://b/out/checkpoints"),
        (None, None, {"JOB_DIR": "gs://b/x"}, "gs://b/x"),
        (None, None, {"AIP_TENSORBOARD_LOG_DIR": "gs://b/logs"}, None),
        (None, None, {"JOB_DIR": "/"}, "/"),
    ],
)
def test_order(model_dir, job_dir, variables, expected):
    assert environment.find_model_dir(model_dir, job_dir, variables)[0] == expected


def test_conflicts_are_named():
    variables = {"JOB_DIR": "m/", "AIP_CHECKPOINT_DIR": "c"}
    assert environment.find_model_dir("m", "j/", variables)[1] == [
        "--job-dir=j has no effect: the run is saved in m, from --model_dir",
        "AIP_CHECKPOINT_DIR=c has no effect: the run is saved in m, from --model_dir",
    ]
    assert environment.find_model_dir("m", "m/", {}) == ("m", [])


@pytest.mark.parametrize("name", environment.JOB_VARIABLES)
def test_jobs_are_recognized(name):
    assert environment.is_cloud_job({name: "x"})
    assert not environment.is_cloud_job({name: "", "JOB_DIR": "x", "TPU_NAME": "x"})

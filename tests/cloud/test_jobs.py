import pytest

from estimator_det.errors import UsageError
from estimator_det.programs.cloud import jobs
from estimator_det.programs.cloud.jobs import TPUS, MachinePool
from tests.cloud.some_job import CLUSTER, CPU, job


def test_a_given_folder_stays():
    flags = ("--model_dir", "gs://other/run")
    arguments = job(flags=flags).arguments()
    assert arguments[1:] == list(flags) and len(arguments) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "1st"}, "--name 1st: give a letter"),
        ({"job_dir": "run"}, "--job_dir: 'run' is not in Cloud Storage: give gs://BUCKET"),
        ({"pools": (*CLUSTER[:2], CLUSTER[3])}, "leave the pool of ps empty"),
        ({"pools": (*CLUSTER[:3], MachinePool("evaluator", CPU, 2))}, "one evaluator at most"),
        (
            {"pools": (MachinePool("chief", TPUS["v3-8"], 1), CLUSTER[1])},
            "a job with a TPU has one machine: remove --workers",
        ),
    ],
)
def test_jobs_that_no_service_runs_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        job(**changes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA_TESLA_T4", ("NVIDIA_TESLA_T4", 1)),
        ("NVIDIA_TESLA_T4:4", ("NVIDIA_TESLA_T4", 4)),
        ("nvidia-l4:2", ("NVIDIA_L4", 2)),
    ],
)
def test_accelerators_are_parsed(text, expected):
    assert jobs.parse_accelerator(text) == expected


@pytest.mark.parametrize("text", ["TPU_V3:8", "NVIDIA_L4:0", "NVIDIA_L4:", "NVIDIA_L4:two", "4"])
def test_other_accelerators_are_refused(text):
    expected = f"--accelerator {text}: give a type of Vertex AI.*TPUs are given by --tpu"
    with pytest.raises(UsageError, match=expected):
        jobs.parse_accelerator(text)


def test_shards_of_a_tpu_are_its_cores_unless_given():
    assert jobs.tpu_flags("v5litepod-4", []) == ["--use_tpu", "--num_shards=4"]
    assert jobs.tpu_flags("v2-8", ["--num_shards=4"]) == ["--use_tpu"]

import json

import pytest

from estimator_det.compat import versions
from estimator_det.programs.cloud import vertex
from estimator_det.programs.cloud.jobs import CHIEF, PARAMETER_SERVER, TPUS, MachinePool
from tests.cloud.some_job import CLUSTER, CPU, GPU, LONE, job

TPU_JOBS = [job(pools=(MachinePool("chief", tpu, 1),)) for tpu in TPUS.values()]
CONTAINER = "us-docker.pkg.dev/my-project/images/estimator-det:latest"


def test_a_lone_chief():
    assert vertex.job_spec(LONE) == {
        "workerPoolSpecs": [
            {
                "machineSpec": {"machineType": "n1-standard-8"},
                "replicaCount": 1,
                "pythonPackageSpec": {
                    "executorImageUri": LONE.image,
                    "packageUris": [LONE.package_uri],
                    "pythonModule": "estimator_det.model_main",
                    "args": LONE.arguments(),
                },
            }
        ],
        "baseOutputDirectory": {"outputUriPrefix": "gs://bucket/run"},
    }


def test_pools_of_a_cluster():
    spec = vertex.job_spec(job(pools=CLUSTER))
    pools = spec["workerPoolSpecs"]
    assert [pool["replicaCount"] for pool in pools] == [1, 2, 1, 1]
    assert ["acceleratorType" in pool["machineSpec"] for pool in pools] == [True, True, False, True]
    assert pools[1]["machineSpec"]["acceleratorCount"] == 2
    assert spec["scheduling"] == {"restartJobOnWorkerRestart": True}


def test_spot_machines_restart():
    spec = vertex.job_spec(job(spot=True, service_account="a@b.iam"))
    assert set(spec) == {*vertex.job_spec(LONE), "scheduling", "serviceAccount"}
    assert spec["serviceAccount"] == "a@b.iam"
    assert spec["scheduling"] == {"strategy": "SPOT", "restartJobOnWorkerRestart": True}


def test_tpus():
    (old,) = vertex.job_spec(TPU_JOBS[1])["workerPoolSpecs"]
    assert old["machineSpec"] == {
        "machineType": "cloud-tpu",
        "acceleratorType": "TPU_V3",
        "acceleratorCount": 8,
    }
    (new,) = vertex.job_spec(TPU_JOBS[3])["workerPoolSpecs"]
    assert new["machineSpec"] == {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"}


def test_a_container_needs_no_package():
    (pool,) = vertex.job_spec(job(image=CONTAINER, image_has_package=True))["workerPoolSpecs"]
    assert "pythonPackageSpec" not in pool
    assert pool["containerSpec"] == {
        "imageUri": CONTAINER,
        "command": ["python", "-m", "estimator_det.model_main"],
        "args": LONE.arguments(),
    }


@pytest.mark.parametrize(
    ("machine", "region", "image"),
    [
        (CPU, "us-central1", "us tf-cpu.2-17.py310"),
        (CPU, "northamerica-northeast1", "us tf-cpu.2-17.py310"),
        (GPU, "europe-west4", "europe tf-gpu.2-17.py310"),
        (TPUS["v2-8"], "asia-east1", "asia tf-tpu.2-15.cp310"),
        (CPU, "australia-southeast1", "asia tf-cpu.2-17.py310"),
    ],
)
def test_prebuilt_images(machine, region, image):
    place, name = image.split()
    expected = f"{place}-docker.pkg.dev/vertex-ai/training/{name}:latest"
    assert vertex.prebuilt_image([MachinePool(CHIEF, machine, 1)], region) == expected


def test_parameter_servers_need_an_older_image():
    assert versions.WITHOUT_ESTIMATOR[:2] == (2, vertex._LAST_WITH_SERVERS + 1)
    server = MachinePool(PARAMETER_SERVER, CPU, 1)
    for machine, name in ((CPU, "tf-cpu.2-15.py310"), (TPUS["v2-8"], "tf-tpu.2-15.cp310")):
        chief = MachinePool(CHIEF, machine, 1)
        chosen = vertex.prebuilt_image([chief, server], "us-central1")
        assert chosen.endswith(f"/vertex-ai/training/{name}:latest")
        vertex.check_image(chosen, [chief, server])
        vertex.check_image(vertex.prebuilt_image([chief], "us-central1"), [chief])
    for other in ("gcr.io/me/tf-cpu:2-17", "registry:5000/detector"):
        vertex.check_image(other, [server])


def test_variables_of_a_cluster():
    addresses = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"], "evaluator": ["e:1"]}
    variables = vertex.environment("gs://b/run", addresses, "worker", 1)
    assert variables["AIP_MODEL_DIR"] == "gs://b/run/model/"
    assert variables["AIP_CHECKPOINT_DIR"] == "gs://b/run/checkpoints/"
    assert variables["AIP_TENSORBOARD_LOG_DIR"] == "gs://b/run/logs/"
    assert json.loads(variables["TF_CONFIG"]) == {
        "cluster": addresses,
        "environment": "cloud",
        "task": {"type": "worker", "index": 1},
    }
    spec = json.loads(variables["CLUSTER_SPEC"])
    assert list(spec["cluster"]) == ["workerpool0", "workerpool1", "workerpool2", "workerpool3"]
    assert spec["task"] == {"type": "workerpool1", "index": 1}

from estimator_det.programs.cloud import ai_platform
from estimator_det.programs.cloud.jobs import TPUS, MachinePool
from tests.cloud.some_job import CLUSTER, LONE, job

TPU_JOB = job(pools=(MachinePool("chief", TPUS["v3-8"], 1),))


def test_the_command_of_a_lone_chief():
    assert ai_platform.command(LONE, "job.json") == [
        *("gcloud", "ai-platform", "jobs", "submit", "training", "first_job"),
        "--project=my-project",
        "--region=us-central1",
        "--job-dir=gs://bucket/run",
        "--config=job.json",
        "--module-name=estimator_det.model_main",
        f"--packages={LONE.package_uri}",
        "--runtime-version=2.11",
        "--python-version=3.7",
        "--",
        *LONE.arguments(),
    ]


def test_a_cluster():
    training = ai_platform.job_spec(job(pools=CLUSTER))["trainingInput"]
    gpu = {"acceleratorConfig": {"count": 2, "type": "NVIDIA_TESLA_T4"}}
    assert training == {
        "scaleTier": "CUSTOM",
        "region": "us-central1",
        "masterType": "n1-standard-8",
        "masterConfig": gpu,
        "workerType": "n1-standard-8",
        "workerCount": 2,
        "workerConfig": gpu,
        "parameterServerType": "n1-standard-8",
        "parameterServerCount": 1,
        "evaluatorType": "n1-standard-8",
        "evaluatorCount": 1,
        "evaluatorConfig": gpu,
    }


def test_a_tpu_is_the_worker_of_its_host():
    training = ai_platform.job_spec(TPU_JOB)["trainingInput"]
    assert (training["masterType"], training["workerType"]) == ("n1-standard-8", "cloud_tpu")
    tpu = {"acceleratorConfig": {"count": 8, "type": "TPU_V3"}}
    assert (training["workerCount"], training["workerConfig"]) == (1, tpu)


def test_an_image_with_the_package():
    image = "gcr.io/my-project/estimator-det"
    container_job = job(image=image, image_has_package=True, service_account="a@b.iam")
    assert ai_platform.job_spec(container_job)["trainingInput"] == {
        "scaleTier": "CUSTOM",
        "region": "us-central1",
        "masterType": "n1-standard-8",
        "masterConfig": {"imageUri": image},
        "useChiefInTfConfig": True,
        "serviceAccount": "a@b.iam",
    }
    assert "--module-name" not in " ".join(ai_platform.command(container_job, "job.json"))

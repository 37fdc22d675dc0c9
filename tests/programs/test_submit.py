"""`estimator-det submit`: what it refuses, prints, rehearses and runs."""

import json
import os
import shlex

import pytest

from estimator_det import errors
from estimator_det.config import pipeline
from estimator_det.config.paths import CHECKPOINT_FIELD
from estimator_det.programs import cli
from estimator_det.programs.cloud import preparation, storage
from tests.cloud.some_job import LONE
from tests.programs.forking import small_config
from tests.programs.test_cli import CONFIG

REMOTE = [
    "train_input_reader.label_map_path=gs://data/map.pbtxt",
    "train_input_reader.tf_record_input_reader.input_path=[gs://data/train-*]",
    "eval_input_reader.label_map_path=gs://data/map.pbtxt",
    "eval_input_reader.tf_record_input_reader.input_path=[gs://data/eval-*]",
]


@pytest.fixture(scope="module")
def config_path(tmp_path_factory):
    """A small configuration of real records."""
    return small_config(tmp_path_factory.mktemp("small"), 2)


@pytest.fixture
def submit(tmp_path, source_distribution, monkeypatch, no_tpu):
    """Runs the verb on a remote configuration, without gcloud, in a folder of its own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, config=None):
        given = [config] if config else [str(CONFIG), *(f"--set={text}" for text in REMOTE)]
        if not any(text.startswith("--package") for text in arguments):
            given.append(f"--package={source_distribution}")
        given += ["--job_dir=gs://bucket/run/", "--region=us-central1", "--name=first"]
        return cli.main(["submit", *given, "--output_dir=job", *arguments])

    return run


def _pools(folder):
    """The pools in the description of the job."""
    return json.loads((folder / "job" / "job.json").read_text())["workerPoolSpecs"]


def test_a_dry_run_prints_the_command_and_writes_what_it_needs(submit, tmp_path, capsys):
    assert submit("--project=mine", "--", "--num_train_steps=10", "--mode=train") == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("gcloud ai")]
    assert shlex.split(line) == [
        *("gcloud", "ai", "custom-jobs", "create", "--project=mine", "--region=us-central1"),
        *("--display-name=first", f"--config={tmp_path}/job/job.json"),
    ]
    (pool,) = _pools(tmp_path)
    arguments = pool["pythonPackageSpec"]["args"]
    assert "--pipeline_config_path=gs://bucket/run/jobs/first/pipeline.config" in arguments
    assert arguments[-2:] == ["--num_train_steps=10", "--mode=train"]
    config = pipeline.read_pipeline(tmp_path / "job" / "pipeline.config")
    assert config.train_input_reader.label_map_path == "gs://data/map.pbtxt"
    assert list((tmp_path / "job").glob("estimator_det-*.tar.gz"))


def test_without_gcloud_nothing_is_uploaded(submit, capsys):
    assert submit() == 0
    output = capsys.readouterr().out
    assert "gcloud is not in PATH: --dry_run, nothing is uploaded" in output
    assert "files of the configuration are not checked" in output


def test_a_cluster_with_gpus(submit, tmp_path):
    machines = ["--workers=2", "--parameter_servers=1", "--evaluators=1"]
    machines += ["--accelerator=NVIDIA_TESLA_T4:2", "--parameter_server_machine_type=n1-highmem-4"]
    assert submit(*machines) == 0
    pools = _pools(tmp_path)
    machines = [pool["machineSpec"]["machineType"] for pool in pools]
    assert machines == ["n1-standard-8", "n1-standard-8", "n1-highmem-4", "n1-standard-8"]
    assert [pool["machineSpec"].get("acceleratorCount") for pool in pools] == [2, 2, None, 2]
    images = {pool["pythonPackageSpec"]["executorImageUri"] for pool in pools}
    assert all("tf-gpu.2-15.py310" in uri for uri in images), "later ones have no such servers"


def test_a_tpu_without_an_image_of_the_service(submit, tmp_path, capsys):
    assert submit("--tpu=v5litepod-4") == 0
    expected = "warning: Vertex AI has no image for ct5lp-hightpu-4t. Give --container_image"
    assert expected in capsys.readouterr().err
    assert submit("--tpu=v5litepod-4", "--container_image=gcr.io/p/i") == 0
    assert "warning" not in capsys.readouterr().err
    container = _pools(tmp_path)[0]["containerSpec"]
    assert container["imageUri"] == "gcr.io/p/i"
    assert container["args"][-3:] == ["--use_tpu", "--num_shards=4", "--tpu_name=local"]


def test_the_classic_service_prints_its_command_and_says_that_it_is_closed(submit, capsys):
    assert submit("--platform=ai-platform", "--tpu=v2-8") == 0
    captured = capsys.readouterr()
    assert "gcloud ai-platform jobs submit training first " in captured.out
    assert " -- --pipeline_config_path=gs://" in captured.out and "--use_tpu" in captured.out
    assert "AI Platform Training is closed since January 31, 2025" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "--num_train_stps=5"], "after the --: Unknown command line flag 'num_train_stps'"),
        (["--", "--num_train_steps=many"], "after the --: flag --num_train_steps=many"),
        (["--", "5"], "unknown arguments: 5"),
        (["--", "--run_once"], "--run_once requires --checkpoint_dir or --mode=eval"),
        (["--", "--job-dir=x"], "--job-dir=x after the --: submit sets this flag"),
        (["--", "-use_tpu"], "-use_tpu after the --: submit sets this flag"),
        (["--num_train_steps=5"], "unknown option --num_train_steps"),
        (["--machines=5"], "unknown option --machines; did you mean"),
        (["--accelerator=NVIDIA_L4:0"], "--accelerator NVIDIA_L4:0: give a type"),
        (["--tpu=v2-8", "--accelerator=NVIDIA_L4:1"], "exclude each other"),
        (["--tpu=v5litepod-4", "--platform=ai-platform"], "--tpu v5litepod-4: AI Platform has"),
        (["--evaluators=1"], "leave the pool of worker empty"),
        (["--workers=-1"], "1 or more"),
        (["--run", "--dry_run"], "exclude each other"),
        (["--run"], "--run needs gcloud"),
        (["--run", "--platform=ai-platform"], "--run: AI Platform Training is closed"),
        (["--rehearse", "--rehearse_steps=0"], "argument --rehearse_steps: '0' is not allowed"),
        (["--rehearse_steps=5"], "--rehearse_steps requires --rehearse: add it, or remove"),
        (["--rehearse_records=5"], "--rehearse_records requires --rehearse"),
        (["--reuse_packages"], "--reuse_packages requires --rehearse"),
        (["--parameter_server_machine_type=n1-standard-4"], "requires --parameter_servers"),
        (["--tpu=v2-8", "--machine_type=n1-standard-4"], "--tpu and --machine_type exclude"),
        (
            [
                *("--workers=1", "--parameter_servers=1"),
                "--executor_image=us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest",
            ],
            "parameter servers need 2.15. Give us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-15.py",
        ),
        (["--container_image=a", "--executor_image=b"], "--executor_image exclude each other"),
        (["--spot", "--platform=ai-platform"], "--spot is for --platform vertex"),
        (["--rehearse", "--platform=ai-platform"], "--rehearse is for --platform vertex"),
        (["--set=train_config.batch_size=-1"], "batch_size"),
    ],
)
def test_what_is_refused(submit, arguments, message, tmp_path, capsys):
    assert submit(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "job").exists(), "nothing is built before that is known"


def test_local_paths_are_named(submit, config_path, capsys):
    assert submit(config=config_path) == 2
    error = capsys.readouterr().err
    assert "a job reads files of Cloud Storage only" in error
    assert "train_input_reader.label_map_path: /" in error and "--stage_data" in error


def test_staged_paths_are_in_the_configuration_of_the_job(submit, config_path, tmp_path):
    assert submit("--stage_data", config=config_path) == 0
    config = pipeline.read_pipeline(tmp_path / "job" / "pipeline.config")
    reader = config.train_input_reader
    folder = "gs://bucket/run/data/train_input_reader"
    assert reader.label_map_path == f"{folder}.label_map_path/label_map.pbtxt"
    assert "[" not in config.eval_input_reader[0].tf_record_input_reader.input_path[0]
    (pattern,) = reader.tf_record_input_reader.input_path
    assert pattern == (f"{folder}.tf_record_input_reader.input_path-0/train.record-?????-of-00002")


def test_names_with_quotes_and_blanks_are_staged(submit, config_path, tmp_path):
    label_map = tmp_path / "labels' "
    label_map.write_text('item { id: 1 name: "one" }')
    assignment = f'train_input_reader.label_map_path="{label_map}"'
    assert submit("--stage_data", f"--set={assignment}", config=config_path) == 0
    config = pipeline.read_pipeline(tmp_path / "job" / "pipeline.config")
    assert config.train_input_reader.label_map_path.endswith("/labels' ")


def test_a_checkpoint_may_be_named_by_one_of_its_files(submit, config_path, tmp_path):
    for end in ("index", "data-00000-of-00001"):
        (tmp_path / f"model.ckpt-5.{end}").write_text(end)
    files = sorted(str(each) for each in tmp_path.glob("model.ckpt-5.*"))
    for name in ("model.ckpt-5", "model.ckpt-5.index"):
        assignment = f"{CHECKPOINT_FIELD}={tmp_path}/{name}"
        assert submit("--stage_data", f"--set={assignment}", config=config_path) == 0
        config = pipeline.apply_overrides(pipeline.read_pipeline(config_path), [assignment])
        staged = preparation.staged_paths(config, LONE, stages=True)
        assert staged[0].files == files


def test_a_missing_record_file_is_named(submit, config_path, tmp_path, capsys):
    path = "train_input_reader.tf_record_input_reader.input_path[0]"
    arguments = ["--stage_data", "--rehearse", f"--set={path}={tmp_path}/none-*"]
    assert submit(*arguments, config=config_path) == 3
    assert f"{path}: no file matches '{tmp_path}/none-*'" in capsys.readouterr().err


@pytest.fixture
def service(tmp_path, monkeypatch):
    """A gcloud that records its arguments, and records instead of uploads and checks."""
    program = tmp_path / "gcloud"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/called\necho started\nexit ${{GCLOUD_CODE:-0}}\n'
    )
    program.chmod(0o755)
    calls = []

    def upload(sources, destination):
        calls.append(([os.path.basename(source) for source in sources], destination))
        return storage.Copied(len(sources), 0, 0)

    def check_paths(config, *, model_dir, region):
        calls.append((model_dir, region))
        return [] if region == "us-central1" else [errors.error("--model_dir", "is full", "go")]

    monkeypatch.setattr(storage, "upload", upload)
    monkeypatch.setattr(preparation, "path_problems", check_paths)
    return calls


def test_run_executes_the_printed_command(submit, service, tmp_path, config_path, capfd):
    assert submit("--run", "--stage_data", config=config_path) == 0
    called = (tmp_path / "called").read_text().split()
    assert called[:3] == ["ai", "custom-jobs", "create"]
    assert called[-1] == f"--config={tmp_path}/job/job.json"
    assert service[0] == ("gs://bucket/run", "us-central1"), "paths are checked first"
    (package,) = (path.name for path in (tmp_path / "job").glob("*.tar.gz"))
    assert service[-1] == (["pipeline.config", package], "gs://bucket/run/jobs/first")
    records = [f"train.record-0000{shard}-of-00002" for shard in (0, 1)]
    folder = "gs://bucket/run/data/train_input_reader.tf_record_input_reader.input_path-0"
    assert (records, folder) in service
    output = capfd.readouterr().out
    assert f"{folder}: 2 files uploaded, 0 were there" in output
    assert ".label_map_path: 1 file uploaded, 0 were there" in output and "started\n" in output
    assert submit("--run", "--stage_data", "--json", config=config_path) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["command"] == ["gcloud", *called] and result["started"] and result["uploaded"]
    assert result["job"]["workerPoolSpecs"] == _pools(tmp_path)


def test_a_failing_gcloud_is_reported(submit, service, config_path, monkeypatch, capsys):
    monkeypatch.setenv("GCLOUD_CODE", "7")
    assert submit("--run", "--stage_data", config=config_path) == 1
    assert "gcloud ended with exit code 7" in capsys.readouterr().err


def test_nothing_is_uploaded_if_a_path_cannot_be_used(submit, service, config_path, capsys):
    assert submit("--stage_data", "--region=us-west1", config=config_path) == 2
    assert "--model_dir: is full" in capsys.readouterr().err
    assert service == [("gs://bucket/run", "us-west1")]


def test_with_an_image_that_has_the_package_only_the_configuration_is_uploaded(
    submit, service, config_path, tmp_path
):
    assert submit("--stage_data", "--container_image=gcr.io/p/i", config=config_path) == 0
    assert service[-1] == (["pipeline.config"], "gs://bucket/run/jobs/first")
    assert not (tmp_path / "called").exists(), "without --run, gcloud is not called"


# Rehearsals: each makes an environment and processes that import TensorFlow.


@pytest.mark.exhaustive
def test_a_rehearsal_trains_with_the_package_in_an_environment_of_its_own(
    submit, config_path, tmp_path, capsys
):
    arguments = ["--stage_data", "--rehearse", "--reuse_packages"]
    assert submit(*arguments, config=config_path) == 0, capsys.readouterr().err
    folder = tmp_path / "job" / "rehearsal"
    log = (folder / "logs" / "chief-0.log").read_text()
    assert "step 2/2" in log
    assert (folder / "output" / "model.ckpt-2.index").exists()
    assert list((folder / "environment").glob("lib/*/site-packages/inputs/pipeline.py"))

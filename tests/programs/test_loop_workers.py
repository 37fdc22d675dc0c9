"""Real processes that train together by the TF2 loop: `--strategy multi_worker_mirrored`."""

import json
import re
import signal

import pytest

from estimator_det.files import json_lines
from estimator_det.programs import console
from model_fn.events import PROGRESS_FILE
from model_fn.runs import training_end
from tests.checkpoints import trained_steps
from tests.programs.clusters import (
    ENDLESS,
    LocalCluster,
    check_whole,
    last_evaluation,
    saved_steps,
    wait_for_step,
)
from tests.programs.forking import small_config

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

STRATEGY = "multi_worker_mirrored"
WORKERS = {"strategy": STRATEGY, "servers": 0}


@pytest.mark.parametrize(
    ("chief", "evaluator"), [("chief", "evaluator"), ("worker", "evaluator"), ("master", None)]
)
def test_two_workers(fake_cluster, tmp_path, chief, evaluator):
    cluster = fake_cluster(workers=1, chief=chief, num_steps=12, **WORKERS)
    folder = tmp_path / "model"
    cluster.start_all(*([evaluator] if evaluator else []))
    cluster.expect()
    assert trained_steps(str(folder)) == 12
    check_whole(folder)
    # Only the chief reports.
    reported = json_lines.read(str(folder / PROGRESS_FILE), ("Loss/total_loss",))
    assert [line["step"] for line in reported] == list(range(1, 13))
    other = "worker-1" if chief == "worker" else "worker-0"
    assert "step 12/12" in cluster.runs[f"{chief}-0"].output()
    assert "step 1" not in cluster.runs[other].output()
    assert last_evaluation(folder)["step"] == 12


@pytest.mark.parametrize("killed", ["worker", "chief"])
def test_a_worker_that_is_lost_ends_the_others(fake_cluster, tmp_path, killed):
    folder = tmp_path / "model"
    cluster = fake_cluster(num_steps=60, step_secs=0.3, task_timeout_secs=30, **WORKERS)
    cluster.start_all()
    wait_for_step(folder, 20, cluster)
    cluster.runs.pop(f"{killed}-0").signal(signal.SIGKILL)
    cluster.expect(console.EXIT_FAILED)
    for run in cluster.runs.values():
        assert re.search(f"error: the cluster has lost .*{killed} 0", run.output())
        assert "Traceback" not in run.output()
    check_whole(folder)
    cluster.start_all()
    cluster.expect()
    assert trained_steps(str(folder)) == 60
    assert "Resuming at step" in cluster.runs["chief-0"].output()


@pytest.mark.parametrize("signalled", [["worker-0"], ["chief-0", "worker-0"]])
def test_sigterm(fake_cluster, tmp_path, signalled):
    folder = tmp_path / "model"
    settings = {"workers": 1, "save_steps": ENDLESS, "step_secs": 0.1, **WORKERS}
    cluster = fake_cluster(num_steps=ENDLESS, **settings)
    cluster.start_all()
    cluster.runs["chief-0"].wait_for("step 5")
    for name in signalled:
        cluster.runs[name].signal(signal.SIGTERM)
    cluster.expect(console.EXIT_TERMINATED)
    first, stopped = saved_steps(folder)
    assert first == 0
    text = f"stopped by SIGTERM at step {stopped}, which is saved in {folder}"
    assert text in cluster.runs["chief-0"].output()
    assert training_end.last_step(str(folder)) is None

    # All of it resumes, each worker with its next record.
    again = fake_cluster(num_steps=stopped + 5, **settings)
    again.start_all()
    again.expect()
    assert trained_steps(str(folder)) == stopped + 5
    assert f"Resuming at step {stopped}" in again.runs["chief-0"].output()
    assert "new epoch" not in again.outputs() and "come again" not in again.outputs()
    position = json.loads((folder / "data_position-worker-0.json").read_text())
    assert position[str(stopped + 5)]["count"] == 2 * (stopped + 5)


PARAMETER_SERVER = ["parameter_server", "--save_checkpoints_steps=10", "--eval_throttle_secs=0"]


@pytest.mark.parametrize(
    ("strategy", "jobs", "first", "missing", "readers"),
    [
        (
            *([STRATEGY, "--eval_every_steps=10"], {"workers": 1, "servers": 0, "chief": "master"}),
            *("worker", "master 0", ["master 0", "worker 0"]),
        ),
        (PARAMETER_SERVER, {}, "chief", "worker 0, worker 1, ps 0", ["worker 0", "worker 1"]),
    ],
)
def test_the_command(forker, tmp_path, strategy, jobs, first, missing, readers):
    config, folder = small_config(tmp_path, num_steps=20), tmp_path / "model"
    arguments = ["train", config, "--model_dir", str(folder), "--seed=1"]
    arguments += ["--best_metric", "DetectionBoxes_Precision/mAP"]
    loop = ["--strategy", *strategy, "--steps_per_call=5", "--precision=mixed_float16"]
    cluster = LocalCluster(
        lambda environment: forker.command(*arguments, *loop, environment=environment), **jobs
    )
    try:
        waiting = cluster.start(first)
        waiting.wait_for(f"{first} 0 waits for {missing}")
        waiting.signal(signal.SIGTERM)
        assert waiting.wait() == console.EXIT_TERMINATED
        cluster.start_all(*([] if "master" in cluster.jobs else ["evaluator"]))
        cluster.expect()
    finally:
        cluster.kill()
    assert saved_steps(folder) == [0, 10, 20]
    split = json_lines.read(str(folder / PROGRESS_FILE), ("streams",))[0]
    assert split["workers"] == readers
    assert f"{readers[1]}: worker 2 of 2 reads" in cluster.outputs()
    assert list((folder / "export" / "Servo").iterdir())
    assert list((folder / "export" / "best").iterdir())
    # An Estimator on one machine resumes from that.
    estimator = forker.command(*arguments, "--num_train_steps=22")
    assert estimator.wait() == 0, estimator.output()
    assert trained_steps(str(folder)) == 22 and "Resuming at step 20" in estimator.output()

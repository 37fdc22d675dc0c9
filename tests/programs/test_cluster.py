"""Clusters of real processes: parameter servers, workers, a chief and an evaluator.

Training ends at its last step, or up to one step later for each worker beside the chief: that
worker may be in the middle of a step.
"""

from __future__ import annotations

import os
import re
import signal

import pytest

from estimator_det.files import json_lines
from estimator_det.programs import console
from model_fn.checkpoints.find import newest_step
from model_fn.events import PROGRESS_FILE
from tests.checkpoints import trained_steps
from tests.programs.clusters import (
    COORDINATOR,
    ENDLESS,
    LocalCluster,
    check_whole,
    saved_steps,
    wait_for_step,
)
from tests.programs.forking import Forker, small_config

pytestmark = pytest.mark.slow


def test_chief_worker_and_server(fake_cluster, tmp_path):
    cluster = fake_cluster(workers=1, num_steps=12, meeting=2)
    cluster.start_all()
    cluster.expect()
    assert 12 <= trained_steps(str(tmp_path / "model")) <= 13
    assert "Training has ended: ps 0 ends" in cluster.runs["ps-0"].output()
    steps = [
        re.findall(r"^step (\d+)/12", cluster.runs[name].output(), re.MULTILINE)
        for name in ("chief-0", "worker-0")
    ]
    assert all(steps), cluster.outputs()
    check_whole(tmp_path / "model")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "engine",
    [{}, {"sync_replicas": 3}, {**COORDINATOR, "num_steps": 300, "step_secs": 0.4}],
    ids=["async", "sync", "coordinator"],
)
@pytest.mark.parametrize("killed", ["worker", "ps", "chief", "evaluator"])
def test_a_task_is_killed_and_started_again(fake_cluster, tmp_path, killed, engine):
    folder = tmp_path / "model"
    settings = {"num_steps": 120, "step_secs": 0.2, **engine}
    cluster = fake_cluster(**settings)
    cluster.start_all("evaluator")
    wait_for_step(folder, 30, cluster)
    run = cluster.runs[f"{killed}-0"]
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    again = cluster.start(killed)
    cluster.expect()
    last, num_steps = trained_steps(str(folder)), settings["num_steps"]
    assert num_steps <= last <= num_steps + (0 if "strategy" in engine else 2)
    assert f"step {last}" in cluster.outputs() or killed == "chief"
    if killed == "chief":
        assert "Resuming at step" in again.output()
    if killed == "ps":
        assert "training begins again at the last checkpoint" in cluster.runs["chief-0"].output()
    check_whole(folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize("engine", [{}, COORDINATOR], ids=["estimator", "coordinator"])
@pytest.mark.parametrize("killed", ["worker", "ps", "chief"])
def test_a_task_that_stays_away_ends_the_others(fake_cluster, tmp_path, killed, engine):
    folder = tmp_path / "model"
    cluster = fake_cluster(num_steps=ENDLESS, step_secs=0.2, task_timeout_secs=15, **engine)
    cluster.start_all("evaluator")
    wait_for_step(folder, 20, cluster)
    gone = cluster.runs.pop(f"{killed}-0")
    gone.signal(signal.SIGKILL)
    cluster.expect(console.EXIT_FAILED)
    for name, run in cluster.runs.items():
        # The evaluator knows of the chief, which ended with an error.
        missing = "chief" if name.startswith("evaluator") else killed
        assert f"error: {missing} 0 of the cluster is missing" in run.output(), cluster.outputs()
        assert "Traceback" not in run.output()
    check_whole(folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "engine", [{}, {"sync_replicas": 3}, COORDINATOR], ids=["async", "sync", "coordinator"]
)
def test_sigterm_to_all(fake_cluster, tmp_path, engine):
    folder = tmp_path / "model"
    settings = {"num_steps": ENDLESS, "step_secs": 0.1, "save_steps": ENDLESS, **engine}
    cluster = fake_cluster(**settings)
    cluster.start_all("evaluator")
    # A task that has taken no step has no position yet. Workers of a coordinator report nothing.
    reporting = ("chief",) if "strategy" in engine else ("chief", "worker")
    for name, run in cluster.runs.items():
        if name.startswith(reporting):
            run.wait_for("| localization")
    for run in cluster.runs.values():
        run.signal(signal.SIGTERM)
    cluster.expect(console.EXIT_TERMINATED)
    assert len(saved_steps(folder)) == 2, cluster.outputs()
    # Its name has the step at which the chief began to save; others took steps meanwhile.
    named, step = newest_step(str(folder)), trained_steps(str(folder))
    assert f"stopped by SIGTERM at step {named}, which is saved in {folder}" in cluster.outputs()
    check_whole(folder)

    # All of it resumes, each worker with its next record.
    again = fake_cluster(**{**settings, "num_steps": step + 20})
    again.start_all()
    again.expect()
    assert f"Resuming at step {step}" in again.runs["chief-0"].output()
    assert "new epoch" not in again.outputs()
    if "strategy" in engine:
        assert trained_steps(str(folder)) == step + 20 and "come again" not in again.outputs()


def _command_cluster(forker: Forker, *arguments: str, workers: int = 2) -> LocalCluster:
    return LocalCluster(
        lambda environment: forker.command("train", *arguments, environment=environment), workers
    )


@pytest.mark.exhaustive
def test_the_command_divides_the_records(forker, tmp_path):
    config, folder = small_config(tmp_path, num_steps=20), tmp_path / "model"
    arguments = [config, "--model_dir", str(folder), "--save_checkpoints_steps=5"]
    arguments += ["--set", "train_config.startup_delay_steps=2", "--eval_throttle_secs=0"]
    arguments += ["--best_metric", "DetectionBoxes_Precision/mAP"]
    cluster = _command_cluster(forker, *arguments)
    try:
        cluster.start_all("evaluator")
        cluster.expect()
        assert 20 <= trained_steps(str(folder)) <= 22
        split = json_lines.read(str(folder / PROGRESS_FILE), ("streams",))[0]
        assert split["workers"] == ["chief 0", "worker 0", "worker 1"]
        assert "worker 0: worker 2 of 3 reads" in cluster.runs["worker-0"].output()
        assert "worker 0 starts at step 2 (startup_delay_steps)" in cluster.outputs()
        assert os.listdir(folder / "export" / "Servo") and os.listdir(folder / "export" / "best")
        assert "has no effect" not in cluster.outputs()
        check_whole(folder)
    finally:
        cluster.kill()


@pytest.mark.exhaustive
def test_a_port_that_is_taken(forker, tmp_path):
    config = small_config(tmp_path, num_steps=3)
    cluster = _command_cluster(forker, config, "--model_dir", str(tmp_path / "model"), workers=0)
    try:
        first = cluster.start("ps")
        first.wait_for("serves at")
        second = cluster.start("ps")
        assert second.wait() == console.EXIT_FAILED
        assert "where another process listens already" in second.output()
        first.signal(signal.SIGKILL)
        first.wait()
    finally:
        cluster.kill()

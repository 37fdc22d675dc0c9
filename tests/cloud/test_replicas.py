import json
import os
import sys

import pytest

from estimator_det.errors import RunError
from estimator_det.programs.cloud import replicas
from tests.cloud.some_job import CLUSTER, LONE, job

READ = """
import json, os, pathlib, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
pathlib.Path(name).write_text(json.dumps(dict(os.environ)))
"""


def _run(program, folder, one=LONE):
    path = folder / "program.py"
    path.write_text(READ + program)
    replicas.run(one, [sys.executable, str(path)], folder)
    return {path.name: json.loads(path.read_text()) for path in (folder / "work").iterdir()}


def test_a_lone_process_has_the_variables_of_the_service_only(tmp_path, monkeypatch):
    for name in ("AIP_MODEL_DIR", "TPU_NAME", "JOB_DIR", "PYTHONPATH"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("OTHER", "mine")
    found = _run("", tmp_path)["chief-0"]
    assert found["AIP_MODEL_DIR"] == f"{tmp_path}/output/model/"
    assert found["OTHER"] == "mine"
    assert not {"TPU_NAME", "JOB_DIR", "PYTHONPATH"} & set(found)
    assert len(json.loads(found["TF_CONFIG"])["cluster"]["chief"]) == 1


def test_all_processes_of_a_cluster_run_and_servers_end_with_the_chief(tmp_path):
    program = """
if task["type"] == "ps":
    print(os.getpid(), flush=True)
    time.sleep(600)
while not pathlib.Path("ps-0").exists():
    time.sleep(0.01)
"""
    found = _run(program, tmp_path, job(pools=CLUSTER))
    assert set(found) == {"chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"}
    clusters = [json.loads(each["TF_CONFIG"])["cluster"] for each in found.values()]
    assert all(cluster == clusters[0] for cluster in clusters)
    assert len({address for hosts in clusters[0].values() for address in hosts}) == 5
    server = int((tmp_path / "logs" / "ps-0.log").read_text().splitlines()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_process_that_fails_ends_all_and_is_named(tmp_path):
    program = """
if task["type"] != "worker" or task["index"] != 1:
    time.sleep(600)
print("[1, 2]")
print(json.dumps({"severity": "ERROR", "message": "error: no such file: a.record"}), flush=True)
sys.exit(3)
"""
    with pytest.raises(RunError, match=r"worker 1 failed with exit code 3") as error:
        _run(program, tmp_path, job(pools=CLUSTER[:2]))
    assert str(error.value).endswith(":\n[1, 2]\nerror: no such file: a.record")
    assert "TF_CONFIG" not in str(error.value), "the first line of the log is the command"


def test_a_killed_process_is_reported_as_out_of_memory(tmp_path):
    with pytest.raises(RunError, match="system killed chief 0, mostly because memory was used up"):
        _run("os.kill(os.getpid(), 9)", tmp_path)


def test_a_chief_that_does_not_end_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(replicas, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(RunError, match="the chief has not ended in 0 s"):
        _run("time.sleep(600)", tmp_path)


def test_a_worker_that_outlives_the_chief_is_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(replicas, "_GRACE_SECONDS", 0.1)
    _run("time.sleep(600 * (task['type'] == 'worker'))", tmp_path, job(pools=CLUSTER[:2]))
    assert "worker 0, worker 1 did not end with the chief" in capsys.readouterr().out

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Dict

import pytest

from estimator_det.console import UsageError
from estimator_det.verbs import legacy_cluster
from model_fn.runs import cluster

JOBS = {"master": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}


def _given(**flags: Any) -> Dict[str, Any]:
    return {**{name: flag.default for name, flag in legacy_cluster.FLAGS.items()}, **flags}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def test_defaults_change_nothing() -> None:
    legacy_cluster.apply(_given(worker_job_name="lonely_worker", master="local"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_clone_on_cpu_hides_gpus() -> None:
    legacy_cluster.apply(_given(clone_on_cpu=True))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_clones": 2}, r"--num_clones=2: .* estimator-det train --strategy mirrored"),
        ({"master": "grpc://h:1"}, r"--master=grpc://h:1: each task starts its own server"),
        ({"ps_tasks": 1}, r"--worker_replicas=1 --ps_tasks=1 --task=0: TF_CONFIG names no cluster"),
    ],
)
def test_refused_with_the_new_spelling(flags: Dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        legacy_cluster.apply(_given(**flags))


@pytest.mark.parametrize(
    ("flags", "task"),
    [
        ({}, ("chief", 0)),
        ({"task": 2, "worker_job_name": "worker"}, ("worker", 1)),
        ({"task": 1, "worker_job_name": "ps"}, ("ps", 1)),
    ],
)
def test_the_proposed_variable_works(
    monkeypatch: pytest.MonkeyPatch, flags: Dict[str, Any], task: Any
) -> None:
    flags = _given(worker_replicas=3, ps_tasks=2, **flags)
    with pytest.raises(UsageError) as caught:
        legacy_cluster.apply(flags)
    proposed = str(caught.value).partition("TF_CONFIG='")[2].rstrip("'")
    monkeypatch.setenv(cluster.VARIABLE, proposed)
    found = cluster.read_cluster()
    assert found.task == task and len(found.readers) == 3 and len(found.servers) == 2
    cluster.check_for_parameter_servers(found)


def test_flags_that_agree_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv(cluster.VARIABLE, json.dumps({"cluster": JOBS, "task": task}))
    agreeing = {"worker_replicas": 3, "ps_tasks": 1, "task": 1, "worker_job_name": "worker"}
    legacy_cluster.apply(_given(**agreeing))
    for name, wrong in (("worker_replicas", 2), ("ps_tasks", 4), ("task", 3)):
        with pytest.raises(UsageError, match=rf"--{name}={wrong}, but by TF_CONFIG it is"):
            legacy_cluster.apply(_given(**{**agreeing, name: wrong}))


def test_as_arguments() -> None:
    parser = argparse.ArgumentParser()
    legacy_cluster.add_arguments(parser)
    legacy_cluster.apply_options(parser.parse_args([]))
    with pytest.raises(UsageError, match="--num_clones=3"):
        legacy_cluster.apply_options(parser.parse_args(["--num_clones", "3"]))

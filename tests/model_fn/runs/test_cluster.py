from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

import pytest

from estimator_det.compat import estimator
from estimator_det.errors import UsageError
from model_fn.runs import cluster

LONE = [
    {"cluster": {"chief": ["h:1"]}, "task": {"type": "chief", "index": 0}},
    {"cluster": {"master": ["h:1"]}, "task": {"type": "master", "index": 0}},
    {"cluster": {"worker": ["h:1"]}, "task": {"type": "worker", "index": "0"}},
    {"cluster": {"chief": {"0": "h:1"}}, "task": {"type": "chief", "index": 0}},
    {"cluster": {}, "task": {"type": "master", "index": 0}, "environment": "cloud"},
    {"cluster": {"chief": ["h:1"]}},
    {"task": {"type": "worker", "index": 0}},
    {},
]
POOLS = {
    "workerpool0": ["h:1"], "workerpool1": ["h:2", "h:3"], "workerpool2": ["h:4"],
    "workerpool3": ["h:5"],
}  # fmt: skip
MANY = {"chief": ["h:1"], "worker": ["h:2", "h:3"]}


def _set(monkeypatch: pytest.MonkeyPatch, settings: Optional[Dict[str, Any]]) -> None:
    monkeypatch.setenv(cluster.VARIABLE, json.dumps(settings))


@pytest.mark.parametrize("settings", LONE)
def test_a_cluster_of_one_is_none(monkeypatch, settings):
    _set(monkeypatch, settings)
    single = cluster.read_cluster()
    assert single == cluster.SINGLE
    assert single.is_chief and single.task.is_alone and not single.is_evaluator
    before = os.environ[cluster.VARIABLE]
    with cluster.estimator_environment(single):
        made = estimator.RunConfig()
    assert os.environ[cluster.VARIABLE] == before
    assert made.is_chief and not made.cluster_spec.jobs and made.master == ""


@pytest.mark.parametrize("jobs", [{"worker": ["h:1", "h:2"]}, {"chief": ["h:1"]}])
def test_an_evaluator_is_in_a_cluster(monkeypatch, jobs):
    _set(monkeypatch, {"cluster": jobs, "task": {"type": "evaluator", "index": 0}})
    members = cluster.read_cluster()
    assert members.is_evaluator and not members.task.is_alone and not members.is_chief
    with cluster.estimator_environment(members):
        assert not estimator.RunConfig().cluster_spec.jobs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"cluster": ["h:1"]}', "cluster must be an object"),
        ('{"cluster": {"chief": "h:1"}}', r"cluster\.chief must be a list of addresses"),
        ('{"cluster": {"chief": ["h:1"]}, "task": {"type": "chef"}}', "did you mean 'chief'"),
        ('{"cluster": {"chef": ["h:1"]}}', "cluster.chef is not known; did you mean 'chief'"),
        ('{"cluster": {"chief": ["h"]}}', r"cluster\.chief\[0\] must be an address .*given 'h'"),
        ('{"cluster": {"chief": ["h:0"]}}', r"cluster\.chief\[0\] must be an address"),
        ('{"cluster": {"ps": {"1": "h:1"}}}', r"cluster\.ps must have the indices 0 to 0; given"),
        ('{"cluster": {"chief": ["h:1"], "ps": ["g:1", "h:1"]}}', r"ps\[1\] is h:1, as .*chief\[0"),
        ('{"cluster": {"chief": ["h:1"], "master": ["h:2"]}, "task": {}}', "one chief .*; given 2"),
        (json.dumps({"cluster": MANY}), "task .* is not in the cluster"),
        (
            json.dumps({"cluster": MANY, "task": {"type": "worker", "index": 2}}),
            "not in the cluster",
        ),
        ('{"cluster": {}, "task": {"type": "evaluator", "index": 0}}', "an evaluator needs"),
    ],
)
def test_malformed(monkeypatch, text, message):
    monkeypatch.setenv(cluster.VARIABLE, text)
    with pytest.raises(UsageError, match=message):
        cluster.read_cluster()


def test_pools_of_vertex_ai(monkeypatch):
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    task = {"type": "workerpool1", "index": 1, "trial": "3"}
    settings = {"cluster": POOLS, "environment": "cloud", "task": task, "job": "{}"}
    monkeypatch.setenv(cluster.VERTEX_VARIABLE, json.dumps(settings))
    found = cluster.read_cluster()
    assert found.jobs == {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}
    assert found.task == ("worker", 1) and not found.is_chief
    assert [str(task) for task in found.readers] == ["chief 0", "worker 0", "worker 1"]
    with cluster.estimator_environment(found):
        made = estimator.RunConfig()
    assert cluster.VARIABLE not in os.environ
    assert (made.task_type, made.task_id, made.master) == ("worker", 1, "grpc://h:3")

    _set(monkeypatch, {"cluster": MANY, "task": {"type": "chief", "index": 0}})
    assert cluster.read_cluster().task == ("chief", 0)  # TF_CONFIG wins
    _set(monkeypatch, {"environment": "cloud"})
    assert cluster.read_cluster().task == ("worker", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "CLUSTER_SPEC is not JSON"),
        ('{"cluster": {"pool0": ["h:1"]}}', "cluster.pool0 is not known; did you mean 'worker"),
        ('{"cluster": {"workerpool0": ["h:1", "h:2"]}, "task": {}}', "one chief .*; given 2"),
        ('{"cluster": {"workerpool0": ["h:1"], "workerpool2": ["h:2"]}, "task": {}}', "is not in"),
    ],
)
def test_malformed_pools(monkeypatch, text, message):
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    monkeypatch.setenv(cluster.VERTEX_VARIABLE, text)
    with pytest.raises(UsageError, match=message):
        cluster.read_cluster()


def test_who_evaluates(monkeypatch):
    for chief, evaluates in (("chief", False), ("master", True)):
        jobs = {chief: ["h:1"], "ps": ["h:2"]}
        _set(monkeypatch, {"cluster": jobs, "task": {"type": chief, "index": 0}})
        members = cluster.read_cluster()
        assert members.is_chief and members.evaluates == evaluates

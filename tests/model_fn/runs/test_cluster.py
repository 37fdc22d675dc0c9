from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

import pytest

from estimator_det.compat import estimator
from estimator_det.config.text import ConfigError
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
MANY = {"chief": ["h:1"], "worker": ["h:2", "h:3"]}


def _set(monkeypatch: pytest.MonkeyPatch, settings: Optional[Dict[str, Any]]) -> None:
    monkeypatch.setenv(cluster.VARIABLE, json.dumps(settings))


@pytest.mark.parametrize("settings", LONE)
def test_a_cluster_of_one_is_none(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    _set(monkeypatch, settings)
    assert cluster.read_task() == cluster.ALONE
    assert cluster.is_chief() and not cluster.is_in_cluster() and not cluster.is_evaluator()
    before = os.environ[cluster.VARIABLE]
    with cluster.environment():
        made = estimator.RunConfig()
    assert os.environ[cluster.VARIABLE] == before
    assert made.is_chief and not made.cluster_spec.jobs and made.master == ""


def test_without_the_variable_or_with_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cluster.VARIABLE, raising=False)
    assert cluster.read_task() == cluster.ALONE
    with cluster.environment():
        assert cluster.VARIABLE not in os.environ
    monkeypatch.setenv(cluster.VARIABLE, "")
    with cluster.environment():
        assert estimator.RunConfig().is_chief


@pytest.mark.parametrize(
    ("kind", "index", "is_chief", "is_evaluator"),
    [
        ("chief", 0, True, False),
        ("worker", 1, False, False),
        ("evaluator", 0, False, True),
    ],
)
def test_tasks_of_several(
    monkeypatch: pytest.MonkeyPatch, kind: str, index: int, is_chief: bool, is_evaluator: bool
) -> None:
    _set(monkeypatch, {"cluster": MANY, "task": {"type": kind, "index": index}})
    assert cluster.read_task() == (kind, index)
    assert cluster.is_in_cluster()
    assert (cluster.is_chief(), cluster.is_evaluator()) == (is_chief, is_evaluator)
    with cluster.environment():
        made = estimator.RunConfig()
    assert (made.task_type, made.task_id, made.is_chief) == (kind, index, is_chief)


def test_the_evaluator_of_a_lone_chief_is_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"type": "evaluator", "index": 0}
    _set(monkeypatch, {"cluster": {"chief": ["h:1"]}, "task": task})
    assert cluster.is_evaluator() and cluster.is_in_cluster() and not cluster.is_chief()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"cluster": ["h:1"]}', "cluster must be an object"),
        ('{"cluster": {"chief": "h:1"}}', r"cluster\.chief must be a list of addresses"),
        ('{"cluster": {"chief": ["h:1"]}, "task": {"type": "chef", "index": 0}}', '"chef"'),
        (json.dumps({"cluster": MANY}), "task .* is none of its cluster"),
        (json.dumps({"cluster": MANY, "task": {"type": "worker", "index": 2}}), "is none of its"),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}',
            "needs one chief",
        ),
        ('{"cluster": {}, "task": {"type": "evaluator", "index": 0}}', "an evaluator needs"),
    ],
)
def test_malformed(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setenv(cluster.VARIABLE, text)
    with pytest.raises(ConfigError, match=message):
        cluster.is_in_cluster()

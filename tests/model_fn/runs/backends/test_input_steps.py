"""Backends give the input function the step at which training starts, if they know it."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List

import pytest

from inputs import pipeline as input_pipeline
from inputs.bad_records.log import FaultLog
from model_fn.runs.options import TpuOptions
from tests.conftest import estimator_servers
from tests.model_fn import fake

CLUSTER = {"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> List[Dict[str, Any]]:
    calls: List[Dict[str, Any]] = []

    def create(*_: Any, **options: Any) -> Any:
        calls.append(options)
        return lambda: None

    monkeypatch.setattr(input_pipeline, "build_train_input_fn", create)
    fake.install(monkeypatch)
    return calls


def input_fn(model_dir: pathlib.Path, on_tpu: Any = None) -> None:
    config = fake.pipeline_config()
    config.train_config.batch_size = 6
    context = fake.run_context(model_dir, config, num_train_steps=9, tpu=on_tpu)
    fake.make_backend(context).input_fn([], 4, FaultLog())


def test_one_process_and_the_cores_of_a_tpu(asked, tmp_path):
    input_fn(tmp_path)
    input_fn(tmp_path, TpuOptions(num_shards=2, rehearses=True))
    alone, shared = asked
    assert alone["first_step"] == 4 and "images_per_step" not in alone
    assert (shared["first_step"], shared["images_per_step"]) == (4, 6)


@estimator_servers
def test_a_cluster_does_not_know_the_step(asked, tmp_path, monkeypatch):
    for task in ("chief", "worker"):
        fake.set_cluster(monkeypatch, CLUSTER, task)
        input_fn(tmp_path)
        call = asked.pop()
        assert call["first_step"] is None
        assert call["shard"] == (2, int(task == "worker"))

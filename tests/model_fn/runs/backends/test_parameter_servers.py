from __future__ import annotations

import pathlib

import pytest

from estimator_det.compat import tf
from estimator_det.errors import ConfigError, UsageError
from model_fn.runs import roles
from model_fn.runs.backends import parameter_servers
from model_fn.runs.context import RunContext
from tests.conftest import estimator_servers
from tests.model_fn import fake

JOBS = {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}


def _context(folder: pathlib.Path, text: str = "") -> RunContext:
    return fake.run_context(folder, fake.pipeline_config(text), num_train_steps=100)


def test_newer_tensorflow_is_refused(monkeypatch, tmp_path):
    fake.set_cluster(monkeypatch, JOBS, "chief")
    monkeypatch.setattr(tf, "__version__", "2.16.1")
    with pytest.raises(UsageError, match=r"need TensorFlow 2\.15; this is 2\.16\.1.*--strategy"):
        roles.find_role(_context(tmp_path))


@estimator_servers
def test_data_that_end_are_refused(monkeypatch, tmp_path):
    fake.set_cluster(monkeypatch, JOBS, "worker")
    text = "train_input_reader { num_epochs: 2 }"
    with pytest.raises(ConfigError, match=r"num_epochs: is 2: in a cluster data"):
        roles.find_role(_context(tmp_path, text))
    fake.set_cluster(monkeypatch, JOBS, "ps")
    with pytest.raises(ConfigError, match=r"^train_input_reader\.num_epochs"):
        roles.find_role(_context(tmp_path, text))


@estimator_servers
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "train_config { sync_replicas: true startup_delay_steps: 3 }",
            "startup_delay_steps has no",
        ),
        ("train_config { replicas_to_aggregate: 3 }", "no effect: sync_replicas is not set"),
        ("train_config { startup_delay_steps: 3 }", ""),
        ("train_config { sync_replicas: true replicas_to_aggregate: 3 }", ""),
    ],
)
def test_fields_without_effect_beside_others(monkeypatch, tmp_path, caplog, text, message):
    fake.set_cluster(monkeypatch, JOBS, "chief")
    roles.find_role(_context(tmp_path, text))
    assert message in caplog.text and bool(message) == bool(caplog.text)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", 15),  # the default of the field
        ("train_config { startup_delay_steps: 40 }", 40),
        ("train_config { startup_delay_steps: 400 }", 100),  # training ends before
        ("train_config { startup_delay_steps: 40 sync_replicas: true }", 0),
    ],
)
def test_when_workers_start(tmp_path, text, first):
    assert parameter_servers._first_step(_context(tmp_path, text)) == first

"""What a process does in a run, by the options and its task."""

from __future__ import annotations

from typing import Any

import pytest

from model_fn.runs import roles
from model_fn.runs.cluster import SINGLE, Cluster, Task
from model_fn.runs.options import EvaluationOptions, LoopOptions, TpuOptions
from tests.conftest import estimator_servers
from tests.model_fn import fake

JOBS = {"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]}
TPU = {"tpu": TpuOptions(rehearses=True)}
ALONE, CHIEF, WORKER, SERVER, EVALUATOR = "", "chief", "worker", "ps", "evaluator"


def _loop(strategy: str) -> Any:
    return {"loop": LoopOptions(strategy)}


@pytest.mark.parametrize(
    ("options", "by_task"),
    [
        pytest.param(
            {},
            [roles.ESTIMATOR, roles.PARAMETER_SERVERS, roles.PARAMETER_SERVERS, roles.SERVES],
            marks=estimator_servers,
        ),
        (TPU, [roles.TPU_ESTIMATOR]),
        (_loop("mirrored"), [roles.LOOP]),
        (_loop("multi_worker_mirrored"), [None, roles.LOOP, roles.LOOP]),
        (_loop("parameter_server"), [None, roles.COORDINATOR, roles.SERVES, roles.SERVES]),
    ],
)
def test_options_and_task_decide(tmp_path, options, by_task):
    """Alone, as a chief, a worker and a server; an evaluator always evaluates."""
    tasks = (ALONE, CHIEF, WORKER, SERVER)
    jobs = {job: JOBS[job] for job in tasks[1 : max(3, len(by_task))]}
    for task, role in [*zip(tasks, by_task), (EVALUATOR, roles.EVALUATES)]:
        cluster = Cluster(jobs, Task(task, 0)) if task else SINGLE
        context = fake.run_context(tmp_path, cluster=cluster, **options)
        assert role is None or roles.find_role(context) == role


@pytest.mark.parametrize("name, steps", [("every", 5), ("eval_config.eval_interval", None)])
@estimator_servers
def test_evaluations_beside_an_evaluator(tmp_path, caplog, name, steps):
    config = fake.pipeline_config("eval_config { eval_interval_steps: 5 }")
    evaluation = EvaluationOptions(every_steps=steps, on_training_data=True)
    for task, evaluates, count in ((WORKER, True, 1), (WORKER, False, 0), (EVALUATOR, False, 2)):
        caplog.clear()
        cluster = Cluster(JOBS, Task(task, 0))
        context = fake.run_context(tmp_path, config, cluster, evaluation=evaluation)
        roles.find_role(context, evaluates=evaluates)
        assert len(caplog.records) == count
    assert f"{name}_steps has no effect in a cluster: its evaluator evaluates" in caplog.text

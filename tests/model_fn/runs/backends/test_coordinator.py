"""Which steps of workers a call of the coordinator has, and what it returns of them."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, List
from unittest import mock

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.errors import ConfigError, MissingTaskError, RunError, UsageError
from inputs import schema
from model_fn.runs import roles, runner, task_watch
from model_fn.runs.backends import coordinator
from model_fn.runs.cluster import read_cluster
from model_fn.runs.options import PARAMETER_SERVER, CheckpointOptions, LoopOptions
from model_fn.training.loop_step import Outcome
from tests.model_fn import fake

JOBS = {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}
IN_LOOP = LoopOptions(PARAMETER_SERVER)


@pytest.fixture(autouse=True)
def _in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.set_cluster(monkeypatch, JOBS, "chief")


def _backend(folder: pathlib.Path, text: str = "", **settings: Any) -> Any:
    config = fake.pipeline_config(text)
    checkpoints = CheckpointOptions(steps=10)
    return fake.make_backend(
        fake.run_context(folder, config, checkpoints=checkpoints, loop=IN_LOOP, **settings)
    )


def _outcome(first: int, size: int, *, is_finite: bool = True, has_batch: bool = False) -> Outcome:
    numbers = tf.range(first, first + size, dtype=tf.int64)
    images = tf.ones([size if has_batch else 0, 1]) * float(first)
    return Outcome(
        num_taken=tf.constant(int(is_finite)),
        is_finite=tf.constant(is_finite),
        stops=tf.constant([False, False]),
        scalars={"loss": tf.constant(float(first))},
        counts={},
        gradients={},
        checks={},
        batches=(({schema.IMAGE: images}, {}),),
        input_wait=tf.constant(1.0, tf.float64),
        positions=(
            {schema.STREAM_INDEX: numbers, schema.AUGMENTATION_SEED: tf.stack([numbers] * 2, 1)},
        ),
    )


class _Steps:
    """Workers take turns, and end a step when the test says so."""

    def __init__(self, make: Callable[[int, bool], Outcome]) -> None:
        self._make = make
        self.begun: List[Any] = []
        self.most = 0
        self.ends = True

    def begin(self, wants_batch: bool) -> Any:
        number = len(self.begun)
        self.begun.append(_Result((number % 2, self._make(number, wants_batch))))
        self.most = max(self.most, sum(not each.is_over for each in self.begun))
        return self.begun[-1]

    def has_ended(self, result: Any) -> bool:
        result.is_over = self.ends
        return self.ends

    def outcome(self, result: Any) -> Any:
        return result.value


class _Result:
    def __init__(self, value: Any) -> None:
        self.value, self.is_over = value, False


def _good(number: int, wants_batch: bool) -> Outcome:
    return _outcome(10 * number, 2, has_batch=wants_batch)


def test_a_call_has_its_steps(tmp_path):
    backend, steps = _backend(tmp_path), _Steps(_good)
    assert backend._steps_per_call == 32
    taken = backend._steps_of_workers(steps, 7)
    assert [worker for worker, _ in taken] == [0, 1, 0, 1, 0, 1, 0]
    assert steps.most == 4  # two for each worker
    merged = coordinator._merged(taken, 2)
    assert int(merged.num_taken) == 7 and float(merged.scalars["loss"]) == 60
    assert float(merged.input_wait) == 3.5
    first, second = (each[schema.STREAM_INDEX].numpy().tolist() for each in merged.positions)
    assert first == [0, 1, 20, 21, 40, 41, 60, 61] and second == [10, 11, 30, 31, 50, 51]
    # Only the first step returns its batch.
    np.testing.assert_array_equal(merged.batches[0][0][schema.IMAGE], [[0.0], [0.0]])


def test_no_step_begins_after_one_that_is_not_finite(tmp_path):

    def bad(number: int, wants_batch: bool) -> Outcome:
        is_finite = number != 1
        return _outcome(number, 2, is_finite=is_finite, has_batch=wants_batch or not is_finite)

    steps = _Steps(bad)
    taken = _backend(tmp_path)._steps_of_workers(steps, 20)
    assert len(taken) == 4  # the steps that had begun
    merged = coordinator._merged(taken, 2)
    assert int(merged.num_taken) == 3 and not bool(merged.is_finite)
    assert float(merged.scalars["loss"]) == 1
    np.testing.assert_array_equal(merged.batches[0][0][schema.IMAGE], [[1.0], [1.0]])


def test_no_step_begins_while_a_task_is_missing(tmp_path, monkeypatch):
    backend, steps = _backend(tmp_path), _Steps(_good)
    sleep = coordinator.time.sleep

    def notice(secs: float) -> None:
        backend._context.stop.request(MissingTaskError("worker 0 is missing"))
        sleep(secs)

    monkeypatch.setattr(coordinator.time, "sleep", notice)
    steps.ends = False
    has_ended = steps.has_ended

    def end_later(result: Any) -> bool:
        steps.ends = steps.ends or backend._context.stop.is_requested
        return has_ended(result)

    monkeypatch.setattr(steps, "has_ended", end_later)
    # It waits for running steps, so that a checkpoint has all of them or none.
    assert len(backend._steps_of_workers(steps, 20)) == 4
    assert backend._steps_of_workers(steps, 20) == []


@pytest.mark.parametrize(
    ("missing", "message"),
    [("worker 0 is missing", "^worker 0 is missing"), (None, "no step of the workers has ended")],
)
def test_steps_that_do_not_end(tmp_path, monkeypatch, missing, message):
    backend, steps = _backend(tmp_path, task_timeout_secs=0.1), _Steps(_good)
    steps.ends = False

    def look(_: float) -> None:
        backend._watch._missing = MissingTaskError(missing) if missing else None

    monkeypatch.setattr(coordinator.time, "sleep", look)

    def leave(error: MissingTaskError) -> None:
        raise error

    monkeypatch.setattr(task_watch, "_end_process", leave)
    with pytest.raises(MissingTaskError, match=message):
        backend._steps_of_workers(steps, 20)


def test_a_step_that_another_worker_took_over():
    taken = [(1, _good(number, number == 0)) for number in (1, 2, 3, 0)]  # as they ended
    merged = coordinator._merged(taken, 2)
    found = merged.positions[1][schema.STREAM_INDEX].numpy().tolist()
    assert found == [10, 11, 20, 21, 30, 31, 0, 1]
    assert len(merged.batches[0][0][schema.IMAGE]) == 2


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({"worker": ["h:1", "h:2"], "ps": ["h:3"]}, "cluster.chief is missing"),
        ({"chief": ["h:1"], "worker": ["h:2"]}, "cluster.ps is missing, and workers share"),
        ({"chief": ["h:1"], "ps": ["h:2"]}, "cluster.worker is missing"),
    ],
)
def test_clusters_that_cannot_train(monkeypatch, jobs, message):
    fake.set_cluster(monkeypatch, jobs, next(iter(jobs)))
    with pytest.raises(UsageError, match=message):
        roles.check_loop(fake.pipeline_config(), IN_LOOP, read_cluster())


def test_fields_of_synchronous_replicas(tmp_path, caplog):
    with pytest.raises(ConfigError, match="sync_replicas: is true"):
        _backend(tmp_path, "train_config { sync_replicas: true }")
    assert not caplog.records
    _backend(tmp_path, "train_config { startup_delay_steps: 3 replicas_to_aggregate: 2 }")
    for field in ("startup_delay_steps", "replicas_to_aggregate"):
        assert f"train_config.{field} has no effect with strategy parameter_server" in caplog.text
    assert "a record that cannot be used ends the run" in caplog.text


def test_a_worker_that_cannot_use_a_record(tmp_path, monkeypatch):
    message = "Graph execution error:\n\nDetected at node x\n\nUnknown image file format."

    def fail(*_: object) -> None:
        raise tf.errors.InvalidArgumentError(None, None, message)

    backend = _backend(tmp_path)
    monkeypatch.setattr(coordinator, "_WorkerSteps", mock.Mock())
    monkeypatch.setattr(backend, "_steps_of_workers", fail)
    take, _ = backend._make_call(mock.Mock(global_step=tf.Variable(0)), None)
    with pytest.raises(RunError, match=r"worker failed: Unknown image file format\. If a rec"):
        take(1, ())


@pytest.mark.parametrize("job", ["chief", "worker", "ps"])
def test_a_data_service_is_refused_in_every_task(tmp_path, monkeypatch, job):
    fake.set_cluster(monkeypatch, JOBS, job)
    fake.install(monkeypatch)
    with pytest.raises(UsageError, match="tf_data_service works with Estimator alone"):
        runner.train(fake.pipeline_config(), str(tmp_path), loop=IN_LOOP, data_service="h:1")

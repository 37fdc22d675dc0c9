from __future__ import annotations

import datetime
import io
import json
import math
import os
import pathlib
import re
import threading
import types
from typing import Any, Callable, Dict, List, Optional, Set

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from model_fn.evaluation import report
from model_fn.runs import progress
from model_fn.runs.backends import estimator
from model_fn.runs.backends.estimator import HookAdapter
from model_fn.runs.context import StepResult
from model_fn.training import step as training_step
from tests.model_fn import fake


def _result(step: int, loss: float) -> StepResult:
    return StepResult(step, 1, {"Loss/total_loss": loss, "learning_rate": 0.25}, input_wait=0.0)


def _run(values: List[float], steps: int, num_steps: Optional[int] = None, **options: Any) -> None:
    """A training whose loss takes such values; options are those of a `TrainingReport`."""
    report = progress.TrainingReport(8, **options)
    config = fake.pipeline_config("train_config { num_steps: 0 }")
    report.begin(fake.run_context("", config, num_train_steps=num_steps), 0)
    for step in range(steps):
        report.before_step(step)
        is_taken = math.isfinite(values[step])
        report.after_step(_result(step + is_taken, values[step]))
    report.end(steps)


def test_lines_tell_step_losses_rate_and_time() -> None:
    stream = io.StringIO()
    _run([4.0, 3.0, 2.0, 1.0], 4, 4, every_steps=2, stream=stream)
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(r"step 1/4 \| total 4 learning_rate 0.25 \| \d\.\d\d GB", lines[0])
    assert [line.split(" | ")[0] for line in lines] == ["step 1/4", "step 2/4", "step 4/4"]
    assert re.fullmatch(
        r"step 4/4 \| total 1 learning_rate 0.25 \| [\d.]+ images/s \| input wait 0% \| "
        r"\d\.\d\d GB \| 0:00:00 left",
        lines[2],
    )


@pytest.mark.parametrize("num_steps", [5, None])
@pytest.mark.parametrize("steps", [4, 5])
def test_the_last_step_has_its_line_once(steps: int, num_steps: Optional[int]) -> None:
    moments: List[progress.ProgressReport] = []
    options: Any = {"every_steps": 2, "silent": True, "listeners": [moments.append]}
    _run([5.0, 4.0, 3.0, 2.0, 1.0], steps, num_steps, **options)
    assert [report.step for report in moments] == [1, 2, 4, 5][: steps - 1]
    last = moments[-1]
    assert last.values == {"Loss/total_loss": 6.0 - steps, "learning_rate": 0.25}
    assert last.images_per_second is not None


def test_steps_of_other_workers_count() -> None:
    """Three workers take turns: each of this worker's runs finds the step three further."""
    moments: List[progress.ProgressReport] = []
    report = progress.TrainingReport(8, every_steps=5, silent=True, listeners=[moments.append])
    report.begin(fake.run_context("", num_train_steps=11), 0)
    for step in (3, 6, 9, 12):
        report.before_step(step - 3)
        report.after_step(_result(step, 1.0))
    assert [moment.step for moment in moments] == [3, 6, 12]
    assert moments[-1].seconds_left == 0 and (moments[1].seconds_left or 0) > 0


def test_bar_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    _run([4.0, 3.0, 2.0], 3, 3, stream=stream)
    assert "3/3" in stream.getvalue() and "total" in stream.getvalue()


def test_lines_on_a_terminal_without_size() -> None:
    parent, child = os.openpty()  # Nobody has given it a size.
    with os.fdopen(child, "w") as stream:
        assert stream.isatty()
        _run([4.0, 3.0, 2.0], 3, 3, stream=stream)
    told = ""
    while "step 3/3" not in told:  # A terminal may hand it out in parts.
        told += os.read(parent, 1 << 16).decode()
    os.close(parent)
    assert "step 1/3" in told and "step 3/3" in told and "%|" not in told


def test_evaluation_tells_how_far_it_is() -> None:
    stream = io.StringIO()
    reporter = report.EvaluationReport(4, every_secs=0.0, stream=stream)
    with tf.Graph().as_default():
        value = tf.constant(1.0)
        with tf1.train.SingularMonitoredSession(hooks=[reporter]) as session:
            session.run(value)
            session.run(value)
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(r"evaluating: 8 images \| [\d.]+ images/s", lines[-1])


def test_bad_loss_is_named_though_silent() -> None:
    stream = io.StringIO()
    with pytest.raises(
        progress.NotFiniteLossError, match=r"step 2: not finite: {'Loss/total_loss': nan}"
    ):
        _run([4.0, float("nan"), 2.0], 3, silent=True, stream=stream)
    assert stream.getvalue() == ""


class _Clock:
    """A clock that only `pass_time` moves; the graph reads it twice a step, around its batch."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_reads = self.num_batches = 0
        self._changed = threading.Condition()

    def read(self) -> np.float64:
        with self._changed:
            self.num_reads += 1
            self._changed.notify_all()
            return np.float64(self.now)

    def pass_time(self, seconds: float, once: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(once, timeout=60)
            self.now += seconds
            self._changed.notify_all()

    def make_batch(self, seconds: float, num_reads: int) -> None:
        """Makes the next batch, once the graph has read the clock so often in its step."""
        before = 2 * self.num_batches + num_reads
        self.pass_time(seconds, lambda: self.num_reads >= before)
        with self._changed:
            self.num_batches += 1
            self._changed.notify_all()


class _Computing(tf1.train.SessionRunHook):
    """Seconds that a step takes once its batch is there, and until the next one is made."""

    def __init__(self, clock: _Clock, seconds: float, num_ahead: int) -> None:
        self._clock, self._seconds, self._num_ahead = clock, seconds, num_ahead
        self._num_steps = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._num_steps += 1
        made = self._num_steps + self._num_ahead
        self._clock.pass_time(self._seconds, lambda: self._clock.num_batches >= made)


def _share_of_input(
    monkeypatch: pytest.MonkeyPatch, batch_secs: float, compute_secs: float, num_ahead: int
) -> Optional[float]:
    """What a training reports whose batches are made when it asks for them, or one ahead."""
    clock = _Clock()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(tf, "timestamp", lambda: tf.numpy_function(clock.read, [], tf.float64))

    def make(value: Any) -> Any:
        clock.make_batch(batch_secs, num_reads=1 - num_ahead)
        return value

    moments: List[progress.ProgressReport] = []
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        dataset = tf.data.Dataset.from_tensors(1.0).repeat()
        dataset = dataset.map(lambda value: tf.numpy_function(make, [value], tf.float32))
        dataset = dataset.prefetch(num_ahead) if num_ahead else dataset
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        iterator = tf1.data.make_initializable_iterator(dataset.with_options(options))
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        batch = iterator.get_next()
        wait = training_step.measure_input_wait([batch])
        report = progress.TrainingReport(1, every_steps=4, silent=True, listeners=[moments.append])
        train_op = tf1.assign_add(step, 1)
        graph = fake.graph_with(train_op, wait, **{"Loss/total_loss": tf.reshape(batch, [])})
        adapter = HookAdapter(fake.run_context("nowhere"), graph, [report])
        hooks = [_Computing(clock, compute_secs, num_ahead), adapter]
        with tf1.train.MonitoredTrainingSession(
            hooks=[*hooks, tf1.train.StopAtStepHook(last_step=4)]
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    return moments[-1].input_wait


def test_input_wait_is_the_time_without_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _share_of_input(monkeypatch, 6.0, 2.0, num_ahead=0) == pytest.approx(6 / (6 + 2))
    assert _share_of_input(monkeypatch, 0.0, 2.0, num_ahead=0) == 0
    # A batch that is made while the step before computes is there in time.
    assert _share_of_input(monkeypatch, 6.0, 2.0, num_ahead=1) == 0


def test_journal_goes_on_over_runs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / progress.PROGRESS_FILE
    for first in (0.5, 0.25):
        listeners = [progress.RunFiles(str(tmp_path), None)]
        options: Any = {"every_steps": 2, "silent": True, "listeners": listeners}
        _run([first, 3.0, 2.0, 1.0], 4, 4, stream=io.StringIO(), **options)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [1, 2, 4] * 2
    assert entries[3]["Loss/total_loss"] == 0.25 and entries[0]["memory_bytes"] > 1e7
    last = entries[-1]
    assert last["images_per_second"] > 0 and last["seconds_left"] == 0
    times = [datetime.datetime.fromisoformat(entry["time"]) for entry in entries]
    assert times == sorted(times) and times[0].tzinfo is not None


def test_figures_and_faults_of_the_data_in_tensorboard(tmp_path: pathlib.Path) -> None:
    class Faults:
        def counts(self) -> Dict[str, int]:
            return {"box_nan": 3}

    events = progress.RunFiles(str(tmp_path), Faults())
    with tf.Graph().as_default():
        events(progress.ProgressReport(7, None, {}, images_per_second=5.0, input_wait=0.25))
        tf1.summary.FileWriterCache.get(str(tmp_path)).flush()
    (path,) = tmp_path.glob("events.*")
    written = {
        (event.step, value.tag): value.simple_value
        for event in tf1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    tf1.summary.FileWriterCache.clear()
    assert written == {
        (7, "run/images_per_second"): 5.0,
        (7, "run/input_wait_share"): 0.25,
        (7, "bad_records/box_nan"): 3.0,
    }


def test_names_of_losses_are_short() -> None:
    names = ("Loss/total_loss", "Loss/RPNLoss/objectness_loss", "learning_rate")
    assert [progress._short(name) for name in names] == ["total", "RPN/objectness", "learning_rate"]


PICTURE = "Training_Inputs/0"


def _events(folder: pathlib.Path) -> List[Any]:
    return [
        event
        for path in sorted(folder.glob("events.*"))
        for event in tf1.train.summary_iterator(str(path))
    ]


def _steps_by_tag(folder: pathlib.Path) -> Dict[str, List[int]]:
    steps: Dict[str, List[int]] = {}
    for event in _events(folder):
        for value in event.summary.value:
            steps.setdefault(value.tag, []).append(event.step)
    return steps


def test_summaries_come_every_so_many_steps_of_one_set_of_fetches(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimator, "SUMMARY_STEPS", 2)
    run, fetched = tf1.Session.run, set()

    def recording_run(
        self: Any, fetches: Any, feed_dict: Any = None, *others: Any, **named: Any
    ) -> Any:
        tensors = {str(getattr(each, "name", each)) for each in _flat(fetches)}
        if any("train_op" in name for name in tensors):
            fetched.add(frozenset(tensors))
        return run(self, fetches, feed_dict, *others, **named)

    def _flat(fetches: Any) -> Set[Any]:
        if isinstance(fetches, dict):
            fetches = list(fetches.values())
        if not isinstance(fetches, (list, tuple)):
            return {fetches}
        return {leaf for each in fetches for leaf in _flat(each)}

    monkeypatch.setattr(tf1.Session, "run", recording_run)
    config = fake.pipeline_config("train_config { summarize_gradients: true }")
    fake.train(tmp_path, 4, config)

    assert len(fetched) == 1
    steps = _steps_by_tag(tmp_path)
    for tag in (PICTURE, "Loss/total_loss", "loss", "global_norm/gradient_norm"):
        assert steps[tag] == [1, 3], tag
    # Tags have no name of a branch of the graph.
    assert "gradients/BoxPredictor/All/biases" in steps
    assert steps["global_step/sec"] == [3]


def test_a_resumed_run_says_so_to_tensorboard(readers: List[Any], tmp_path: pathlib.Path) -> None:
    fake.train(tmp_path, 2)
    fake.train(tmp_path, 4)
    is_start = {event.step: event.session_log.status for event in _events(tmp_path)}
    assert [step for step, status in is_start.items() if status == tf1.SessionLog.START] == [1, 3]
    assert _steps_by_tag(tmp_path)[PICTURE] == [1, 3]

from __future__ import annotations

import datetime
import io
import json
import math
import os
import re
import sys
import time
import types
from typing import Any, List, Optional, Set

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import NotFiniteLossError
from model_fn import events
from model_fn.evaluation import report
from model_fn.events import PROGRESS_FILE
from model_fn.runs import progress
from model_fn.runs.backends import estimator
from model_fn.runs.context import StepResult
from model_fn.training import step as training_step
from tests.model_fn import fake


def _result(step: int, loss: float) -> StepResult:
    return StepResult(step, 1, {"Loss/total_loss": loss, "learning_rate": 0.25}, input_wait=0.0)


def _run(values: List[float], steps: int, num_steps: Optional[int] = None, **options: Any) -> None:
    """A training whose loss has these values; `options` go to `TrainingReport`."""
    report = progress.TrainingReport(8, **options)
    config = fake.pipeline_config("train_config { num_steps: 0 }")
    report.begin(fake.run_context("", config, num_train_steps=num_steps), 0)
    for step in range(steps):
        report.before_step(step)
        is_taken = math.isfinite(values[step])
        report.after_step(_result(step + is_taken, values[step]))
    report.end(steps)


def test_lines_tell_step_losses_rate_and_time(capsys):
    _run([4.0, 3.0, 2.0, 1.0], 4, 4, every_steps=2)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"step 1/4 \| total 4 learning_rate 0.25 \| \d\.\d\d GB", lines[0])
    assert [line.split(" | ")[0] for line in lines] == ["step 1/4", "step 2/4", "step 4/4"]
    assert re.fullmatch(
        r"step 4/4 \| total 1 learning_rate 0.25 \| [\d.]+ images/s \| input wait 0% \| "
        r"\d\.\d\d GB \| 0:00:00 left",
        lines[2],
    )


def test_time_left_of_a_resumed_run_whose_steps_other_workers_share(monkeypatch):
    """Three workers: of six steps this one takes two. Its calls take 50, 6, 8 and 12 s."""
    clock = iter([0.0, 0.0, 50.0, 50.0, 56.0, 56.0, 64.0, 64.0, 76.0])
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    moments: List[events.ProgressReport] = []
    report = progress.TrainingReport(8, every_steps=1, silent=True, listener=moments.append)
    report.begin(fake.run_context("", num_train_steps=130), 100)
    for step in (106, 112, 118, 124):
        report.before_step(step - 6)
        report.after_step(_result(step, 1.0)._replace(num_taken=2))
    # Seconds a step: not known at first, then 3, the median of 3 and 4, the median of 4 and 6.
    found = [(each.step, each.images_per_second, each.seconds_left) for each in moments]
    expected = ((112, 3.0, 18 / 3 * 3.0), (118, 3.5, 12 / 3 * 3.5), (124, 5.0, 6 / 3 * 5.0))
    assert found[0] == (106, None, None)
    assert found[1:] == [(step, 8 / secs, pytest.approx(left)) for step, secs, left in expected]


def test_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    _run([4.0, 3.0, 2.0], 3, 3)
    assert "3/3" in stream.getvalue() and "total" in stream.getvalue()


def test_lines_on_a_terminal_without_size(monkeypatch):
    parent, child = os.openpty()  # Nobody has given it a size.
    with os.fdopen(child, "w") as stream:
        assert stream.isatty()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            _run([4.0, 3.0, 2.0], 3, 3)
    told = ""
    while "step 3/3" not in told:  # A terminal may hand it out in parts.
        told += os.read(parent, 1 << 16).decode()
    os.close(parent)
    assert "step 1/3" in told and "step 3/3" in told and "%|" not in told


def test_evaluation_tells_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(report, "REPORT_SECS", 0.0)
    reporter = report.EvaluationProgress(4)
    with tf.Graph().as_default():
        value = tf.constant(1.0)
        with tf1.train.SingularMonitoredSession(hooks=[reporter]) as session:
            session.run(value)
            session.run(value)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"evaluating: 8 images \| [\d.]+ images/s", lines[-1])


def test_bad_loss_is_named_though_silent(capsys):
    with pytest.raises(NotFiniteLossError, match=r"step 2: not finite: {'Loss/total_loss': nan}"):
        _run([4.0, float("nan"), 2.0], 3, silent=True)
    assert capsys.readouterr().err == ""


def test_a_step_waits_for_its_batch():
    def make() -> np.float32:
        time.sleep(0.2)
        return np.float32(1)

    with tf.Graph().as_default(), tf1.Session() as session:
        batch = tf.numpy_function(make, [], tf.float32)
        waits = [training_step.measure_input_wait([each]) for each in (batch, tf.zeros([]))]
        late = session.run(waits[0])
        # Another process may hold one of them up.
        soon = min(session.run(waits[1]) for _ in range(5))
    assert late >= 0.2 > soon


def test_journal_goes_on_over_runs(tmp_path):
    path = tmp_path / PROGRESS_FILE
    for first in (0.5, 0.25):

        def listener(report: events.ProgressReport) -> None:
            events.write_report(str(tmp_path), report, {})

        _run([first, 3.0, 2.0, 1.0], 4, 4, every_steps=2, silent=True, listener=listener)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [1, 2, 4] * 2
    assert entries[3]["Loss/total_loss"] == 0.25 and entries[0]["memory_bytes"] > 1e7
    last = entries[-1]
    assert last["images_per_second"] > 0 and last["seconds_left"] == 0
    times = [datetime.datetime.fromisoformat(entry["time"]) for entry in entries]
    assert times == sorted(times) and times[0].tzinfo is not None


def test_figures_and_faults_of_the_data_in_tensorboard(tmp_path):
    report = events.ProgressReport(7, None, {}, images_per_second=5.0, input_wait_share=0.25)
    with tf.Graph().as_default():
        events.write_report(str(tmp_path), report, {"box_nan": 3})
        tf1.summary.FileWriterCache.get(str(tmp_path)).flush()
    written = {(step, tag): value for tag, ((step, value),) in fake.figures(tmp_path).items()}
    tf1.summary.FileWriterCache.clear()
    assert written == {
        (7, "run/images_per_second"): 5.0,
        (7, "run/input_wait_share"): 0.25,
        (7, "bad_records/box_nan"): 3.0,
    }


PICTURE = "Training_Inputs/0"


def test_summaries_come_every_so_many_steps_of_one_set_of_fetches(readers, tmp_path, monkeypatch):
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
    steps = {tag: [step for step, _ in values] for tag, values in fake.figures(tmp_path).items()}
    for tag in (PICTURE, "Loss/total_loss", "loss", "global_norm/gradient_norm"):
        assert steps[tag] == [1, 3], tag
    # Tags have no name of a branch of the graph.
    assert "gradients/BoxPredictor/All/biases" in steps
    assert steps["global_step/sec"] == [3]


def test_a_resumed_run_says_so_to_tensorboard(readers, tmp_path):
    fake.train(tmp_path, 2)
    fake.train(tmp_path, 4)
    statuses = [(event.session_log.status, event.step) for event in fake.events(tmp_path)]
    assert [step for status, step in statuses if status == tf1.SessionLog.START] == [1, 3]
    assert fake.steps_with(tmp_path, PICTURE) == [1, 3]

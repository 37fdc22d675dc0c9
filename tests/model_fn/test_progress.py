from __future__ import annotations

import io
import re

import pytest

from estimator_det.compat import tf, tf1
from model_fn import progress, results


def _run(values: tf.Tensor, steps: int, report: progress.TrainingReport) -> None:
    with tf.Graph().as_default():
        global_step = tf1.train.get_or_create_global_step()
        loss = tf.gather(tf.constant(values), tf.cast(global_step, tf.int32))
        progress.watch("Loss/total_loss", loss)
        progress.watch("learning_rate", tf.constant(0.25))
        with tf.control_dependencies([loss]):
            train_op = tf1.assign_add(global_step, 1)
        with tf1.train.MonitoredTrainingSession(
            hooks=[report, tf1.train.StopAtStepHook(last_step=steps)]
        ) as session:
            while not session.should_stop():
                session.run(train_op)


def test_lines_tell_step_losses_rate_and_time() -> None:
    stream = io.StringIO()
    _run([4.0, 3.0, 2.0, 1.0], 4, progress.TrainingReport(8, 4, every_steps=2, stream=stream))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 1/4 | total 4 learning_rate 0.25"
    assert [line.split(" | ")[0] for line in lines] == ["step 1/4", "step 2/4", "step 4/4"]
    assert re.fullmatch(
        r"step 4/4 \| total 1 learning_rate 0.25 \| [\d.]+ images/s \| 0:00:00 left", lines[2]
    )


def test_bar_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    _run([4.0, 3.0, 2.0], 3, progress.TrainingReport(8, 3, stream=stream))
    assert "3/3" in stream.getvalue() and "total" in stream.getvalue()


def test_evaluation_tells_how_far_it_is() -> None:
    stream = io.StringIO()
    report = results.EvaluationReport(4, every_secs=0.0, stream=stream)
    with tf.Graph().as_default():
        value = tf.constant(1.0)
        with tf1.train.SingularMonitoredSession(hooks=[report]) as session:
            session.run(value)
            session.run(value)
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(r"evaluating: 8 images \| [\d.]+ images/s", lines[-1])


def test_bad_loss_is_named_though_silent() -> None:
    stream = io.StringIO()
    with pytest.raises(
        progress.NotFiniteLossError, match=r"step 2: not finite: {'Loss/total_loss': nan}"
    ):
        _run([4.0, float("nan"), 2.0], 3, progress.TrainingReport(8, silent=True, stream=stream))
    assert stream.getvalue() == ""

"""Copies of event files for a hosted TensorBoard."""

from __future__ import annotations

import threading
import time
from typing import Any

from estimator_det.compat import tf, tf1
from estimator_det.programs.cloud import event_files


def test_event_files_are_copied_while_they_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(event_files, "EVERY_SECS", 0.01)
    run, logs = tmp_path / "run", tmp_path / "logs"
    (run / "eval_0").mkdir(parents=True)
    (run / "eval_0" / "events.out.tfevents.2").write_bytes(b"eval")
    (run / "model.ckpt-1.index").write_bytes(b"index")
    with event_files.copied(f"{run}/", f"{logs}/"):
        copy = logs / "eval_0" / "events.out.tfevents.2"
        while not copy.exists():
            time.sleep(0.01)
        (run / "events.out.tfevents.1").write_bytes(b"one")
        while not (logs / "events.out.tfevents.1").exists():
            time.sleep(0.01)
    monkeypatch.undo()
    with event_files.copied(str(run), str(logs)):  # only at the end
        (run / "events.out.tfevents.1").write_bytes(b"one and two")
    found = {str(p.relative_to(logs)): p.read_bytes() for p in logs.rglob("*") if p.is_file()}
    assert found == {
        "eval_0/events.out.tfevents.2": b"eval",
        "events.out.tfevents.1": b"one and two",
    }


def test_the_last_events_are_copied(tmp_path):
    run, logs = tmp_path / "run", tmp_path / "logs"
    with event_files.copied(str(run), str(logs)), tf1.Graph().as_default():
        writer = tf1.summary.FileWriterCache.get(str(run))
        writer.add_summary(tf1.Summary(value=[tf1.Summary.Value(tag="a", simple_value=1.0)]), 1)
    (written,) = run.iterdir()
    values = [
        event.summary.value[0].simple_value
        for event in tf1.train.summary_iterator(str(logs / written.name))
        if event.summary.value
    ]
    assert values == [1.0]


def test_copies_are_not_copied_where_their_folder_is_inside_of_the_run(tmp_path):
    run, logs = tmp_path / "run", tmp_path / "run" / "logs"
    (run / "eval_0").mkdir(parents=True)
    (run / "eval_0" / "events.out.tfevents.1").write_bytes(b"one")
    (run / "logs_of_others").mkdir()
    (run / "logs_of_others" / "events.out.tfevents.2").write_bytes(b"two")
    for _ in range(3):
        with event_files.copied(f"{run}/", f"{logs}/"):
            pass
    found = {str(path.relative_to(logs)) for path in logs.rglob("*") if path.is_file()}
    assert found == {"eval_0/events.out.tfevents.1", "logs_of_others/events.out.tfevents.2"}


def test_the_copies_go_on_after_an_error_of_any_kind(tmp_path, monkeypatch, caplog):
    run, logs = tmp_path / "run", tmp_path / "logs"
    run.mkdir()
    (run / "events.out.tfevents.1").write_bytes(b"one")
    copy, failed = tf.io.gfile.copy, threading.Event()

    def copy_late(*arguments: Any, **options: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("Transport endpoint is not connected")
        copy(*arguments, **options)

    monkeypatch.setattr(tf.io.gfile, "copy", copy_late)
    monkeypatch.setattr(event_files, "EVERY_SECS", 0.01)
    with event_files.copied(str(run), str(logs)):
        failed.wait(60)
        (thread,) = [each for each in threading.enumerate() if each.name == "event files"]
        while thread.is_alive() and not (logs / "events.out.tfevents.1").exists():
            time.sleep(0.01)
        assert thread.is_alive()
    assert "Transport endpoint is not connected" in caplog.text

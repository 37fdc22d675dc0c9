"""Copies of event files for a hosted TensorBoard."""

from __future__ import annotations

import pathlib
import time

import pytest

from estimator_det.cloud import event_files


def test_event_files_are_copied_while_they_grow(tmp_path: pathlib.Path) -> None:
    run, logs = tmp_path / "run", tmp_path / "logs"
    (run / "eval_0").mkdir(parents=True)
    (run / "eval_0" / "events.out.tfevents.2").write_bytes(b"eval")
    (run / "model.ckpt-1.index").write_bytes(b"index")
    with event_files.copied(f"{run}/", f"{logs}/", every_secs=0.01):
        copy = logs / "eval_0" / "events.out.tfevents.2"
        while not copy.exists():
            time.sleep(0.01)
        (run / "events.out.tfevents.1").write_bytes(b"one")
        while not (logs / "events.out.tfevents.1").exists():
            time.sleep(0.01)
    with event_files.copied(str(run), str(logs)):  # only at the end
        (run / "events.out.tfevents.1").write_bytes(b"one and two")
    found = {str(p.relative_to(logs)): p.read_bytes() for p in logs.rglob("*") if p.is_file()}
    assert found == {
        "eval_0/events.out.tfevents.2": b"eval",
        "events.out.tfevents.1": b"one and two",
    }


def test_a_failing_copy_does_not_end_the_training(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.out.tfevents.1").write_bytes(b"one")
    (tmp_path / "file").write_bytes(b"")
    with event_files.copied(str(tmp_path / "run"), str(tmp_path / "file" / "logs")):
        pass
    assert "event files could not be copied to" in caplog.text

"""The comparison of two environments; `make versions` runs it on two TensorFlows."""

import json
import sys

import numpy as np
import pytest

from benchmarks.versions import agreement, environment
from benchmarks.versions.environment import Environment


def test_relative():
    assert agreement.relative([1.0, 4.0], [1.0, 5.0]) == pytest.approx(0.2)
    assert agreement.relative([np.nan], [1.0]) == float("inf")


def test_losses_of_other_steps_are_not_compared(tmp_path):
    for name, steps in (("a", [1, 2]), ("b", [1, 3])):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"step": step, agreement.TOTAL_LOSS: 2.0}) for step in steps]
        (tmp_path / name / "progress.jsonl").write_text("\n".join(lines))
    one, other = tmp_path / "a", tmp_path / "b"
    assert agreement._compare_losses("", one, one, 1e-5).value == 0
    with pytest.raises(ValueError, match="different steps"):
        agreement._compare_losses("", one, other, 1e-5)


def test_a_task_that_fails_shows_its_message(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "no such task: $3" >&2\nexit 1\n')
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match=r'(?s)ended with 1.*no such task: \[\["command", "a"'):
        environment.run_tasks([(Environment(str(python), "one"), [["command", "a"]])])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_environment_agrees_with_itself(tmp_path, monkeypatch):
    names = iter(("one", "other"))
    monkeypatch.setattr(environment, "find", lambda python: Environment(python, next(names)))
    lines, agrees = agreement.report(tmp_path / "runs", [sys.executable] * 2, steps=2)
    assert agrees, lines
    assert len(lines) == 8 and "one and other" in lines

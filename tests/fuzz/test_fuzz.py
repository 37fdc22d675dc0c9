"""Damaged inputs end in an error of ours or in success: no traceback, no signal, little memory."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from estimator_det.errors import UsageError
from tests.fuzz import runner

FEW = {
    "records": 300, "images": 400, "label_maps": 400, "configurations": 30, "checkpoints": 300,
}  # fmt: skip
MANY = {name: 20 * count for name, count in FEW.items()}


def test_the_runner_reports_what_goes_wrong(tmp_path, monkeypatch):
    def target(seed: int, folder: pathlib.Path) -> None:
        if seed == 1:
            raise UsageError(None, "an error of ours")
        if seed == 2:
            raise KeyError("a bug")
        if seed == 4:
            os.kill(os.getpid(), 9)

    monkeypatch.setattr(runner, "BATCH", 3)
    found = runner.run_target("some", target, range(6), tmp_path)
    assert [(one["seed"], one["what"].splitlines()[-1]) for one in found] == [
        (2, "KeyError: 'a bug'"),
        (4, "killed by SIGKILL"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "counts", [FEW, pytest.param(MANY, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
def test_damaged_inputs_end_well(forker, tmp_path, counts):
    arguments = [str(tmp_path / "fuzz"), *(f"{name}:{count}" for name, count in counts.items())]
    run = forker.program(f"from tests.fuzz import runner; runner.main({arguments!r})")
    assert run.wait(timeout=sum(counts.values())) == 0, run.output()  # a second each, at most
    lines = [line for line in run.output().splitlines() if line.startswith("{")]
    *problems, last = map(json.loads, lines or ["{}"])
    text = "\n".join(f"{one['target']}, seed {one['seed']}: {one['what']}" for one in problems)
    assert not problems, text
    assert last == {"inputs": sum(counts.values())}, run.output()

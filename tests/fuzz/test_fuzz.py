"""Damaged inputs end in an error of ours or in success: no traceback, no signal, little memory."""

from __future__ import annotations

import pytest

FEW = {"records": 100, "images": 130, "label_maps": 130, "configurations": 10, "checkpoints": 100}

# Each seed is printed before its use, so that the output names it if the process ends.
PROGRAM = """
import pathlib, resource
from estimator_det.programs import console
from tests.fuzz import targets

folder = pathlib.Path({folder!r})
prefix = folder / "whole" / "model.ckpt"
prefix.parent.mkdir()
targets.save_checkpoint(str(prefix))
target = targets.make_targets(targets.make_inputs(str(prefix)))[{name!r}]
for seed in range({count}):
    print("seed", seed, flush=True)
    console.run(lambda: target(seed, folder) or 0)
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2e6, "kB of memory"
print("all seeds")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "times", [1, pytest.param(60, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
@pytest.mark.parametrize("name", FEW)
def test_damaged_inputs_end_well(forker, tmp_path, name, times):
    count = times * FEW[name]
    run = forker.program(PROGRAM.format(folder=str(tmp_path), name=name, count=count))
    code = run.wait(timeout=60 + count)  # a second each, at most
    assert code == 0 and "all seeds" in run.output(), run.output()[-5000:]

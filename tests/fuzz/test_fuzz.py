"""Damaged inputs end in an error of ours or in success: no traceback, no signal, little memory."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Dict

import pytest

from tests.conftest import TESTS
from tests.fuzz.mutate import mutate_bytes, mutate_text

FEW = {
    "records": 300, "images": 400, "label_maps": 400, "configurations": 30, "checkpoints": 300,
}  # fmt: skip
MANY = {name: 20 * count for name, count in FEW.items()}


def test_the_same_seed_gives_the_same_damage() -> None:
    data = bytes(range(200))
    assert mutate_bytes(data, 3) == mutate_bytes(data, 3) != mutate_bytes(data, 4)
    assert mutate_text("a: 1 b: 2", 3) == mutate_text("a: 1 b: 2", 3)
    assert len({mutate_text("a: 1 b: 2 c { d: 3 }", seed) for seed in range(20)}) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "counts", [FEW, pytest.param(MANY, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
def test_damaged_inputs_end_well(tmp_path: pathlib.Path, counts: Dict[str, int]) -> None:
    arguments = [f"{name}:{count}" for name, count in counts.items()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.runner", str(tmp_path / "fuzz"), *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    *problems, last = map(json.loads, done.stdout.splitlines() or ["{}"])
    text = "\n".join(f"{one['target']}, seed {one['seed']}: {one['what']}" for one in problems)
    assert not problems, text
    assert last == {"inputs": sum(counts.values())}, done.stderr

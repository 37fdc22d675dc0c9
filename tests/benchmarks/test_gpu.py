"""Cases, turns and tables of the measurement on GPUs; speeds are not checked."""

from __future__ import annotations

import fcntl
import itertools
import types

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import case as cases
from benchmarks.gpu.case import PRECISIONS, TF32, TORCHVISION, Case, Clock, Plan

FILES = ("--configs", "c", "--record", "r", "--label_map", "l", "--batch_sizes", "64", "8")


def test_every_precision_and_trainer_has_a_column():
    chosen = program.cases(program._parse([*FILES, "--models", "small", "--torch", "python3"]))
    figures = {"images_per_second": 123.4, "input_wait": 0.1, "memory_gb": 2.0}
    results = {case: figures for case in chosen if case.trainer != TORCHVISION}
    results[Case("small", 64, TF32)] = {"error": "of a process"}
    heading, _, least, largest = program.table(results)
    others = ["TF32, 10 steps a call", "TF32, Estimator", "TF32, mirrored"]
    assert heading == f"| {' | '.join(['Model', 'Batch', *PRECISIONS, *others])} |"
    cell = "123, 10%, 2 GB"
    assert least == f"| `small` | 8 |  | {cell} |  |  | {cell} |  |  |"
    assert largest == f"| `small` | 64 | {cell} | failed | {cell} | {cell} |  | {cell} | {cell} |"
    assert {case.batch_size for case in chosen if case.trainer == TORCHVISION} == {8, 64}


def test_a_process_that_fails_is_an_error(tmp_path):
    plan = Plan("c", "r", "l", str(tmp_path / "lock"), calls=1)
    figures = program.measure("false", plan, Case("small", 2, trainer=TORCHVISION))
    assert figures == {"error": "exit code 1"}


def test_the_clock_times_calls_after_the_first_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(cases.signal, "alarm", lambda seconds: None)
    monkeypatch.setattr(
        cases, "time", types.SimpleNamespace(perf_counter=itertools.count(0.0, 0.5).__next__)
    )
    plan = Plan("c", "r", "l", str(tmp_path / "lock"), calls=4, warm_up=2)
    clock = Clock(plan)
    clock.start()
    with open(plan.lock, "w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [clock.tick() for _ in range(6)] == [False] * 5 + [True]
    assert clock.figures(Case("small", 8, steps_per_call=10))["images_per_second"] == 160.0

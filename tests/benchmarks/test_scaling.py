"""Figures of two replicas against one."""

from __future__ import annotations

from typing import Dict, List

import pytest

from benchmarks.scaling import turns
from benchmarks.scaling.turns import APART, ONE, TWO, Turn


def _rounds() -> List[turns.Round]:
    """Two calm ones, and one in which something else ran beside the two replicas."""
    calm = {
        ONE: Turn(50.0, 0.02, 1.0, others=0.01),
        TWO: Turn(90.0, 0.021, 0.96, others=0.0),
        APART: Turn(95.0, 0.02, 1.0, others=0.0),
    }
    disturbed = {**calm, TWO: Turn(40.0, 0.021, 0.9, others=0.5)}
    return [calm, disturbed, {**calm, ONE: Turn(40.0, 0.02, 1.0, others=0.02)}]


def test_calmest() -> None:
    calm, disturbed, other = _rounds()
    assert turns.calmest([disturbed, other, calm], 2) == [calm, other]


def test_report() -> None:
    calm = turns.calmest(_rounds(), 1)
    assert turns.report(calm) == [
        "1 replica on one core: 50.0 images/s, 20.0 ms of processor time an image, "
        "1.00 threads of a replica ready; others used 1% of the cores",
        "2 replicas on two cores: 90.0 images/s, 21.0 ms of processor time an image, "
        "0.96 threads of a replica ready; others used 0% of the cores",
        "2 programs of 1 replica, each on a core of its own: 95.0 images/s, 20.0 ms of processor "
        "time an image, 1.00 threads of a replica ready; others used 0% of the cores",
        "efficiency: 0.90",
        "of two programs: 0.95, the most that the cores allow",
    ]


def test_take(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        replicas, step_images = 1, 8

        def start(self, num_steps: int) -> None:
            assert num_steps == 5

        def wait(self) -> Dict[str, float]:
            return {"seconds": 2.0, "cpu_seconds": 1.6, "ready_seconds": 1.9}

    busy, clock = iter([100.0, 104.2]), iter([7.0, 9.0])
    monkeypatch.setattr(turns, "_busy_seconds", lambda cores: next(busy))
    monkeypatch.setattr(turns.time, "perf_counter", lambda: next(clock))
    found = turns.take([Fake(), Fake()], [0, 1], 5)
    # Two programs of 40 images in 2 s; of 4 s of two cores, 4.2 - 3.2 s are not theirs.
    assert found == pytest.approx((40.0, 0.04, 0.95, 0.25))

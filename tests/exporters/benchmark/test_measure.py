from __future__ import annotations

import itertools
from typing import List, Tuple

import numpy as np
import pytest

from exporters.benchmark import measure


class _Model:
    """Takes a stated time for each run; the clock moves only by that."""

    def __init__(self, *seconds: float) -> None:
        self.shapes: List[Tuple[int, ...]] = []
        self.first: List[int] = []
        self._seconds = itertools.cycle(seconds)
        self._now = 0.0

    def run(self, images: np.ndarray) -> None:
        self.shapes.append(images.shape)
        self.first.append(int(images[0, 0, 0, 0]))
        self._now += next(self._seconds)

    def clock(self) -> float:
        return self._now


def _images(count: int) -> List[np.ndarray]:
    return [np.full((4, 6, 3), number, np.uint8) for number in range(count)]


def test_latency_and_throughput():
    model = _Model(0.1)
    found = measure.time_batches(model.run, _images(4), 2, 3.0, model.clock)
    assert found == measure.Timing(2, 30, pytest.approx(100), pytest.approx(100), pytest.approx(20))
    assert set(model.shapes) == {(2, 4, 6, 3)}
    assert len(model.shapes) == 30 + measure.WARM_UP_RUNS
    assert set(model.first) == {0, 2}  # batches of different images


def test_slow_models_run_a_few_times():
    model = _Model(5.0)
    found = measure.time_batches(model.run, _images(1), 8, 1.0, model.clock)
    assert found.runs == measure.MIN_RUNS
    assert model.shapes[0] == (8, 4, 6, 3)
    model = _Model(*[0.01] * 9, 0.09)
    found = measure.time_batches(model.run, _images(1), 1, 2.0, model.clock)
    assert (found.median_ms, found.p95_ms) == (pytest.approx(10), pytest.approx(90))

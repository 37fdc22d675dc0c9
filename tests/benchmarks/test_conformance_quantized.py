"""Simulated quantization against all numbers that the Object Detection API's rewriter gave."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import numpy as np
import pytest

from benchmarks.conformance import goldens, quantized, quantized_training
from benchmarks.conformance.compare import Check
from benchmarks.conformance.goldens import Case
from tests.conftest import MODELS

NAMES = (
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_coco14_sync",
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_pets_sync",
    "ssd_mobilenet_v2_quantized_300x300_coco",
)
PARTS: Dict[str, Callable[[Case, quantized.Record, Check], None]] = {
    "inference": quantized.check_inference,
    "training": quantized_training.check_training,
    "steps": quantized_training.check_steps,
}
EVERYDAY = (NAMES[2], "inference")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(name, part, marks=() if (name, part) == EVERYDAY else pytest.mark.exhaustive)
        for name in NAMES
        for part in PARTS
    ],
)
def test_golden_numbers(name, part):
    case = goldens.read(MODELS, name)
    record = quantized.read(case)
    assert record is not None
    check = Check()
    PARTS[part](case, record, check)
    assert check.ok, check


def test_values_of_ranges():
    values = quantized.range_values({"a/act_quant": (-1.0, 2.0)})
    assert values["a/act_quant/min"] == values["a/act_quant/a/act_quant/min/biased"] == -1.0
    assert values["a/act_quant/a/act_quant/max/local_step"] == quantized.LONG_AGO
    assert quantized.is_weight("a/weights_quant") and not quantized.is_weight("a/act_quant")
    seeded = quantized.with_ranges(lambda name, shape: np.full(shape, 7.0), values)
    assert seeded("a/act_quant/max", []) == 2.0 and seeded("a/weights", [1]) == [7.0]


def _compared(runs: List[List[float]], expected: List[float], tolerance: float = 0.01) -> str:
    def named(values: List[float]) -> Dict[str, Any]:
        return {str(index): value for index, value in enumerate(values)}

    check = Check()
    quantized_training.compare_runs(
        check, [named(run) for run in runs], named(expected), tolerance, "number"
    )
    return str(check)


def test_numbers_that_repeats_agree_on_are_held_to_their_tolerance():
    exact = [[1.0, 2.0, 4.0, 0.5]] * 3
    assert _compared(exact, [1.009, 2.0, 4.0, 0.5]).startswith("ok")
    assert _compared(exact, [1.02, 2.0, 4.0, 0.5]) == "rel 2.0e-02 at number of 0"


def test_numbers_that_repeats_differ_in_may_lie_outside_by_three_times_that():
    runs = [[1.0] * 30, [1.1] * 30, [0.9] * 30]
    assert _compared(runs, [1.5, *[1.0] * 29]).startswith("ok")
    assert _compared(runs, [9.0, *[1.0] * 29]).startswith("ok")  # one of thirty
    found = _compared(runs, [9.0, 7.0, *[1.0] * 28])
    assert found == "rel 6.7e-02 at number, the share that is far from the repeats, as 0"
    # What agrees by chance among noisy numbers is no less noisy.
    runs = [[*run[:-1], 1.0] for run in runs]
    assert _compared(runs, [*[1.0] * 29, 1.2]).startswith("ok")


def test_half_of_the_numbers_must_lie_where_repeats_do():
    """Each alone is within three times the noise, but all are to one side."""
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, (3, 50))
    assert _compared((1 + noise).tolist(), [1.0] * 50).startswith("ok")
    assert "median number" in _compared((1 + noise).tolist(), [0.87] * 50)

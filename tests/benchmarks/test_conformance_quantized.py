"""Simulated quantization against every number that was measured with the reference's rewriter."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from typing import Callable, Dict

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


def _checked(name: str, part: str) -> str:
    case = goldens.read(MODELS, name)
    record = quantized.read(case)
    assert record is not None
    check = Check()
    PARTS[part](case, record, check)
    return str(check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(name, part, marks=() if (name, part) == EVERYDAY else pytest.mark.exhaustive)
        for name in NAMES
        for part in PARTS
    ],
)
def test_golden_numbers(monkeypatch, name, part):
    # A process has as many threads as its first session: that of these numbers has one.
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as process:
        found = process.submit(_checked, name, part).result()
    assert found.startswith("ok"), found

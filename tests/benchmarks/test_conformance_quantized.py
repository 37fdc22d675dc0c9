"""Simulated quantization against every number that was measured with the reference's rewriter."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks.conformance import goldens, quantized
from benchmarks.conformance.case import Case
from benchmarks.conformance.compare import Check
from estimator_det.config import pipeline

NAMES = (
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_coco14_sync",
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_pets_sync",
    "ssd_mobilenet_v2_quantized_300x300_coco",
)


def _case(shared: pathlib.Path, name: str) -> Case:
    config = pipeline.read_pipeline(shared / "data" / "configs" / f"{name}.config")
    return Case(goldens.read(shared / "golden", name), config, shared / "golden")


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", ["inference", "training", "own", "fixed"])
@pytest.mark.parametrize("name", NAMES)
def test_golden_numbers(shared: pathlib.Path, name: str, part: str) -> None:
    case = _case(shared, name)
    record = quantized.read(shared / "golden", name)
    assert record is not None
    check = Check()
    if part == "inference":
        quantized.check_inference(case, record, check)
    elif part == "training":
        quantized.check_training(case, record, check)
    else:
        quantized.check_steps(case, record, part, check)
    assert check.ok, str(check)


def test_float_configurations_have_no_record(shared: pathlib.Path) -> None:
    assert quantized.read(shared / "golden", "ssd_mobilenet_v1_pets") is None


def test_values_of_ranges() -> None:
    values = quantized.range_values({"a/act_quant": (-1.0, 2.0)})
    assert values["a/act_quant/min"] == values["a/act_quant/a/act_quant/min/biased"] == -1.0
    assert values["a/act_quant/a/act_quant/max/local_step"] == quantized.LONG_AGO
    assert quantized.is_weight("a/weights_quant") and not quantized.is_weight("a/act_quant")

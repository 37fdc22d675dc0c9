"""Simulated quantization against every number that was measured with the reference's rewriter."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

from benchmarks.conformance import goldens, quantized, quantized_training
from benchmarks.conformance.compare import Check
from benchmarks.conformance.goldens import Case
from estimator_det.compat import tf
from estimator_det.detectors import ssd
from estimator_det.nets.quantization import INITIAL_LIMIT, Quantization, Quantizer
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


def test_numbers_of_one_run_may_share_a_factor_that_runs_differ_in():
    """As gradients do below a layer that rounding changes much."""
    numbers = np.linspace(1, 9, 50)
    runs = (np.linspace(0.8, 1.25, 25)[:, np.newaxis] * numbers).tolist()
    assert _compared(runs, (1.25 * numbers).tolist()).startswith("ok")
    assert "median number" in _compared(runs, (1.6 * numbers).tolist())


def test_what_many_runs_agree_on_is_exact_among_noisy_numbers():
    noisy = 1 + np.random.default_rng(0).uniform(-0.3, 0.3, (25, 30))
    runs = np.concatenate([noisy, np.ones([25, 1])], axis=1).tolist()
    assert _compared(runs, [1.0] * 31).startswith("ok")
    assert _compared(runs, [1.0] * 30 + [1.02]) == "rel 2.0e-02 at number of 30"


def test_training_that_is_compared_rounds_before_the_recorded_activations():
    record = quantized.Record({"eval": {"fake_quant_differs": {"moved": []}}}, {})
    with quantized_training.rounding_as_the_reference(record), tf.Graph().as_default():
        quantizer = ssd.Quantizer(Quantization(delay=0), is_training=True)
        normalized = tf.constant([-7.0, -1.0, 2.0, 9.0])
        outputs = {
            scope: quantizer.activation(scope, tf.nn.relu6(normalized), least=0.0)
            for scope in ("moved", "other")
        }
    moved, other = quantizer.tensors
    assert moved.values is normalized and other.values.op.type == "Relu6"
    assert outputs["moved"].op.type == "Relu6" and outputs["other"].op.type != "Relu6"
    assert ssd.Quantizer is Quantizer


def test_ranges_before_an_activation_start_on_both_sides_of_zero():
    recorded = {
        "fixed": {"ranges": [[0.0, 6.0], [0.0, 6.0]]},
        "fake_quant_differs": {"a/act_quant": []},
    }
    record = quantized.Record(
        {"quant_scopes": ["a/act_quant", "b/act_quant"], "eval": recorded}, {}
    )
    start = quantized_training.fixed_start(record)
    assert start["a/act_quant/min"] == -INITIAL_LIMIT and start["b/act_quant/min"] == 0.0


def test_kernels_that_the_reference_folds_with_updated_averages():
    once = [[-1.0, 2.0], [-1.0, 2.0], [0.0, 6.0]]
    record = quantized.Record(
        {
            "quant_scopes": ["a/weights_quant", "b/weights_quant", "b/act_quant"],
            "train": {"active": {"ranges_after": once}},
        },
        {},
    )
    found = quantized_training.kernels_with_updated_averages(
        record, [[-1.0, 2.000001], [-1.01, 2.02], [0.0, 5.0]]
    )
    assert found == ["b/weights_quant"]

"""Train traces: changes since the start show a wrong optimizer, and rounding is no difference."""

from __future__ import annotations

import pathlib
from typing import Any, Dict

import pytest

from benchmarks.conformance import goldens, trace
from benchmarks.conformance.case import Case, moved
from benchmarks.conformance.compare import Check
from estimator_det.config import pipeline
from tests.benchmarks.small_case import make_case

MOMENTUM = "train_config.optimizer.momentum_optimizer"
LEARNING_RATE = f"{MOMENTUM}.learning_rate.constant_learning_rate.learning_rate"
DECAY = "model.ssd.feature_extractor.conv_hyperparams.batch_norm.decay"
STEPS = 12
WRONG = {
    "learning rate 3 % off": (f"{LEARNING_RATE} = {{}}", 1.03),
    "no momentum": (f"{MOMENTUM}.momentum_optimizer_value = 0.0", 0),
    "decay 0.99 for 0.97": (f"{DECAY} = 0.99", 0),
}


def _wrong(name: str, learning_rate: float) -> str:
    line, factor = WRONG[name]
    return line.format(factor * learning_rate)


def _checked(case: Case) -> Check:
    cells = {"train trace": Check()}
    trace.check_trace(case, cells)
    return cells["train trace"]


def _record(case: Case, value: goldens.SeededValue) -> Dict[str, Any]:
    """The record of a first run."""
    with trace.optimizer_steps(case) as run:
        steps = run(value)
    norms = {part: {n: v for n, v in steps.end.items() if part in n} for part in ("/w", "moving")}
    return {
        "overrides": [],
        "steps": STEPS,
        "total_loss_per_step": steps.losses.tolist(),
        "global_step_after": steps.step,
        "num_slots": len(steps.slots) - 1,
        "slot_names_sample": ["FeatureExtractor/First/weights/Momentum"],
        "weight_norms_after": norms["/w"],
        "bn_norms_after": norms["moving"],
    }


@pytest.fixture
def small(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The small network with the record of weights moved by one unit in the last place."""
    recorded: Dict[str, Any] = {"overrides": [], "steps": STEPS}
    case = make_case(tmp_path, monkeypatch, recorded)
    recorded.update(_record(case, moved(goldens.seeded_value(tmp_path, "det_value"), 99)))
    return case


def test_the_same_steps_agree(small: Case) -> None:
    assert str(_checked(small)).startswith("ok")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_are_refused(small: Case, name: str) -> None:
    assert small.golden.trace is not None
    small.golden.trace["overrides"].append(_wrong(name, 0.001))
    check = _checked(small)
    assert not check.ok and "change" in str(check), check


NAME = "ssd_mobilenet_v1_300x300_coco14_sync"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["right", *WRONG])
def test_real_steps(shared: pathlib.Path, name: str) -> None:
    """Batch norm of two images on a 1x1 map is chaotic; what is wrong shows all the same."""
    config = pipeline.read_pipeline(shared / "data" / "configs" / f"{NAME}.config")
    case = Case(goldens.read(shared / "golden", NAME), config, shared / "golden")
    assert case.golden.trace is not None
    if name != "right":
        case.golden.trace["overrides"].append(_wrong(name, 1e-5))
    check = _checked(case)
    assert check.ok == (name == "right"), check

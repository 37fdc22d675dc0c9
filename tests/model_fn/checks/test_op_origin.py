"""Advice about TPU is for files that exist, and names fields of the schema."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from estimator_det.compat import tf
from model_fn.checks import op_origin
from tests.conftest import ROOT
from tests.detectors.two_stage import configs as two_stage_configs
from tests.model_fn.checks.small import small_config

ADVICE = op_origin.ADVICE


def _configs() -> Dict[str, Any]:
    """A configuration of each kind of detector."""
    two_stage = small_config()
    two_stage.model.CopyFrom(two_stage_configs.small_config("hard_example_miner {}"))
    return {
        "ssd": small_config(
            "model.ssd.loss.hard_example_miner={}", "model.ssd.loss.random_example_sampler={}"
        ),
        "faster_rcnn": two_stage,
    }


@pytest.mark.parametrize("place", ADVICE)
def test_every_advice_is_for_a_place_that_exists_and_a_field_of_a_detector(place):
    assert (ROOT / place).is_dir() or (ROOT / f"{place}.py").is_file()
    fields = set()
    for kind, config in _configs().items():
        for path, _ in op_origin.advice_for(place, config):
            assert path.startswith(("train_config", f"model.{kind}."))
            fields.add(path.removeprefix(f"model.{kind}."))
    for field in ADVICE[place]:  # The path may end with the option that is chosen there.
        assert any(f"{path}.".startswith(f"{field}.") for path in fields), field


def test_a_file_without_advice_has_that_of_its_folder():
    config = _configs()["ssd"]
    (folder, *_) = ADVICE["estimator_det/predictors"].items()
    field, remedy = next(op_origin.advice_for("estimator_det/predictors/base.py", config))
    assert field.startswith(f"model.ssd.{folder[0]}") and remedy == folder[1]
    assert not list(op_origin.advice_for("estimator_det/nets/necks/fpn.py", config))


@pytest.mark.parametrize("kind", ["ssd", "faster_rcnn"])
def test_rules_have_the_remedies_that_are_said_to_be_theirs(kind):
    config = _configs()[kind]
    by_rule = {
        (place, f"model.{kind}.{field}")
        for place, remedies in ADVICE.items()
        for field, remedy in remedies.items()
        if remedy == op_origin.BY_RULE
    }
    remedies = {
        (place, path): remedy
        for place, _ in by_rule
        for path, remedy in op_origin.advice_for(place, config)
    }
    present = by_rule & remedies.keys()
    assert len(present) >= 3
    for place, path in present:
        assert remedies[place, path].startswith(f"--set {path}"), path


def test_operations_of_other_code_have_no_location():
    with tf.Graph().as_default():
        origin = op_origin.origin_of(tf.constant(1).op, small_config())
    assert origin.location == "" and origin.field == "model.ssd"

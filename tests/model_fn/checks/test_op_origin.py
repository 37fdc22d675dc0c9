"""Advice about TPU names a field of the schema, and each module declares it once."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from estimator_det.compat import tf
from estimator_det.config import tpu_advice
from model_fn.checks import op_origin
from tests.detectors.two_stage import configs as two_stage_configs
from tests.model_fn.checks.small import small_config

ADVICE = tpu_advice.DECLARED


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


def test_modules_and_packages_declare_advice():
    assert "loss.localization_loss" in ADVICE["estimator_det.losses.localization"]
    assert "use_matmul_crop_and_resize" in ADVICE["estimator_det.nets.roi"]
    assert "feature_extractor" in ADVICE["estimator_det.extractors.ssd"]


def test_a_module_that_has_declared_advice_declares_no_other():
    with pytest.raises(ValueError, match="declares advice about TPU twice"):
        tpu_advice.declare("estimator_det.boxes.coders", {"box_coder": "use another"})


@pytest.mark.parametrize("module", ADVICE)
def test_every_advice_names_a_field_of_a_detector(module):
    fields = set()
    for kind, config in _configs().items():
        for path, _ in op_origin.advice_for(module.replace(".", "/"), config):
            assert path.startswith(("train_config", f"model.{kind}."))
            fields.add(path.removeprefix(f"model.{kind}."))
    for field in ADVICE[module]:  # The path may end with the option that is chosen there.
        assert any(f"{path}.".startswith(f"{field}.") for path in fields), field


def test_a_file_without_advice_has_that_of_its_folder():
    config = _configs()["ssd"]
    (folder, *_) = ADVICE["estimator_det.predictors"].items()
    field, remedy = next(op_origin.advice_for("estimator_det/predictors/base.py", config))
    assert field.startswith(f"model.ssd.{folder[0]}") and remedy == folder[1]
    assert not list(op_origin.advice_for("estimator_det/nets/necks/fpn.py", config))


@pytest.mark.parametrize("kind", ["ssd", "faster_rcnn"])
def test_rules_have_the_remedies_that_are_declared_as_theirs(kind):
    config = _configs()[kind]
    by_rule = {
        (module, f"model.{kind}.{field}")
        for module, remedies in ADVICE.items()
        for field, remedy in remedies.items()
        if remedy == tpu_advice.BY_RULE
    }
    remedies = {
        (module, path): remedy
        for module, _ in by_rule
        for path, remedy in op_origin.advice_for(module.replace(".", "/"), config)
    }
    present = by_rule & remedies.keys()
    assert len(present) >= 3
    for module, path in present:
        assert remedies[module, path].startswith(f"--set {path}"), path


def test_operations_of_other_code_have_no_location():
    with tf.Graph().as_default():
        origin = op_origin.origin_of(tf.constant(1).op, small_config())
    assert origin.location == "" and origin.field == "model.ssd"

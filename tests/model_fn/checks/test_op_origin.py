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


def _descriptor(config: Any) -> Any:
    return getattr(config.model, config.model.WhichOneof("model")).DESCRIPTOR


def test_modules_and_packages_declare_advice() -> None:
    assert "loss.localization_loss" in ADVICE["estimator_det.losses.localization"]
    assert "use_matmul_crop_and_resize" in ADVICE["estimator_det.nets.roi"]
    assert "feature_extractor" in ADVICE["estimator_det.extractors.ssd"]


def test_a_module_that_has_declared_advice_declares_no_other() -> None:
    with pytest.raises(ValueError, match="declares advice about TPU twice"):
        tpu_advice.declare("estimator_det.boxes.coders", {"box_coder": "use another"})


@pytest.mark.parametrize("module", ADVICE)
def test_every_advice_names_a_field_of_a_detector(module: str) -> None:
    file = module.replace(".", "/")
    known = set()
    for kind, config in _configs().items():
        descriptor = _descriptor(config)
        known |= {field for field in ADVICE[module] if op_origin._is_in(field, descriptor)}
        advice = op_origin._advice_of(file, descriptor)
        if advice is None:
            continue
        field = op_origin._full_field(advice[0], config)
        assert field.startswith(("train_config", f"model.{kind}.{advice[0]}"))
        message = config
        for part in field.split("."):
            message = getattr(message, part)
    assert known == set(ADVICE[module])


def test_a_file_without_advice_has_that_of_its_folder() -> None:
    ssd = _descriptor(_configs()["ssd"])
    (folder, *_) = ADVICE["estimator_det.predictors"].items()
    assert op_origin._advice_of("estimator_det/predictors/base.py", ssd) == folder
    assert op_origin._advice_of("estimator_det/nets/necks/fpn.py", ssd) is None


@pytest.mark.parametrize("kind", ["ssd", "faster_rcnn"])
def test_rules_have_the_remedies_that_are_declared_as_theirs(kind: str) -> None:
    config = _configs()[kind]
    advice = [entry for remedies in ADVICE.values() for entry in remedies.items()]
    fields = {field for field, remedy in advice if remedy == tpu_advice.BY_RULE}
    fields = {field for field in fields if op_origin._is_in(field, _descriptor(config))}
    assert len(fields) >= 3
    for field in fields:
        path = f"model.{kind}.{field}"
        assert op_origin._remedy_of_rule(path, config).startswith(f"--set {path}"), path


def test_operations_of_other_code_have_no_location() -> None:
    with tf.Graph().as_default():
        origin = op_origin.origin_of(tf.constant(1).op, small_config())
    assert origin.location == "" and origin.field == "model.ssd"

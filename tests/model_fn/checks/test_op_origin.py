"""Advice about TPU is for files that exist, and names a field of the schema."""

from __future__ import annotations

import pathlib
from typing import Any, Dict

import pytest

import estimator_det
from estimator_det.compat import tf
from estimator_det.config import tpu_advice
from model_fn.checks import op_origin
from tests.detectors.two_stage import configs as two_stage_configs
from tests.model_fn.checks.small import small_config

ROOT = pathlib.Path(estimator_det.__file__).parent.parent


def _configs() -> Dict[str, Any]:
    """A configuration of each kind of detector."""
    two_stage = small_config()
    two_stage.model.CopyFrom(two_stage_configs.small_config("hard_example_miner {}"))
    return {
        "ssd": small_config("model.ssd.loss.hard_example_miner={}"),
        "faster_rcnn": two_stage,
    }


def _descriptor(config: Any) -> Any:
    return getattr(config.model, config.model.WhichOneof("model")).DESCRIPTOR


ADVICE = {
    str(pathlib.Path(place).relative_to(ROOT)): advice.remedies
    for place, advice in tpu_advice.DECLARED.items()
}


def test_parts_with_and_without_a_registry_declare_advice() -> None:
    assert "loss.localization_loss" in ADVICE["estimator_det/losses/localization.py"]
    assert "hard_example_miner" in ADVICE["estimator_det/losses/mining.py"]
    assert "use_matmul_crop_and_resize" in ADVICE["estimator_det/nets/roi.py"]
    assert "loss.random_example_sampler" in ADVICE["estimator_det/boxes/sampling.py"]


@pytest.mark.parametrize("place", ADVICE)
def test_every_advice_is_of_a_file_and_names_a_field_of_a_detector(place: str) -> None:
    assert (ROOT / place).exists()
    known = set()
    for kind, config in _configs().items():
        descriptor = _descriptor(config)
        known |= {field for field in ADVICE[place] if op_origin._is_in(field, descriptor)}
        advice = op_origin._advice_of(place, descriptor)
        if advice is None:
            continue
        field = op_origin._full_field(advice[0], config)
        assert field.startswith(("train_config", f"model.{kind}.{advice[0]}"))
        message = config
        for part in field.split("."):
            message = getattr(message, part)
    assert known == set(ADVICE[place])


def test_a_file_without_advice_has_that_of_its_folder() -> None:
    ssd = _descriptor(_configs()["ssd"])
    (folder, *_) = ADVICE["estimator_det/predictors"].items()
    assert op_origin._advice_of("estimator_det/predictors/base.py", ssd) == folder
    assert op_origin._advice_of("estimator_det/nets/necks/fpn.py", ssd) is None


def test_operations_of_other_code_have_no_location() -> None:
    with tf.Graph().as_default():
        origin = op_origin.origin_of(tf.constant(1).op, small_config())
    assert origin.location == "" and origin.field == "model.ssd"

"""Advice about TPU is in the module of its component, and names a field of the schema."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any, Dict, Iterator

import pytest

import estimator_det
import model_fn.training
from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from model_fn.checks import op_origin
from tests.detectors.two_stage import configs as two_stage_configs
from tests.model_fn.checks.small import small_config


def _modules() -> Iterator[str]:
    for package in (estimator_det, model_fn.training):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(("estimator_det.protos", "estimator_det.compat")):
                yield module.name


ADVISED = [name for name in _modules() if hasattr(importlib.import_module(name), "TPU")]


def _configs() -> Dict[str, Any]:
    """A configuration of each kind of detector."""
    two_stage = small_config()
    two_stage.model.CopyFrom(two_stage_configs.small_config("hard_example_miner {}"))
    return {
        "ssd": small_config("model.ssd.loss.hard_example_miner={}"),
        "faster_rcnn": two_stage,
    }


def _message(config: Any) -> Any:
    return getattr(config.model, config.model.WhichOneof("model"))


@pytest.mark.parametrize("name", ADVISED)
def test_every_field_is_in_the_schema(name: str) -> None:
    advices = op_origin.advices_of(sys.modules[name])
    assert advices and all(isinstance(one, TpuAdvice) and one.remedy for one in advices)
    fits = {
        advice
        for config in _configs().values()
        for advice in advices
        if op_origin._is_in(advice.field, _message(config).DESCRIPTOR)
    }
    assert fits == set(advices)


@pytest.mark.parametrize("name", ADVISED)
@pytest.mark.parametrize("kind", ["ssd", "faster_rcnn"])
def test_the_advice_of_a_detector_names_a_field_of_it(kind: str, name: str) -> None:
    config = _configs()[kind]
    advice = op_origin._advice_of(sys.modules[name], _message(config).DESCRIPTOR)
    if advice is None:
        return
    field = op_origin._full_field(advice.field, config)
    assert field.startswith(("train_config", f"model.{kind}.{advice.field}"))
    message = config
    for part in field.split("."):
        message = getattr(message, part)


def test_the_parts_of_a_detector_have_advice() -> None:
    assert {"estimator_det.extractors", "estimator_det.losses.mining"} <= set(ADVISED)
    ssd = _message(_configs()["ssd"]).DESCRIPTOR
    nearest = op_origin._advice_of(sys.modules["estimator_det.predictors.base"], ssd)
    assert nearest in sys.modules["estimator_det.predictors"].TPU
    assert op_origin._advice_of(sys.modules["estimator_det.nets.necks.fpn"], ssd) is None


def test_operations_of_other_code_have_no_location() -> None:
    with tf.Graph().as_default():
        origin = op_origin.origin_of(tf.constant(1).op, small_config())
    assert origin.location == "" and origin.field == "model.ssd"

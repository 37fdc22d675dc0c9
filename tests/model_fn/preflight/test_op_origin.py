"""Advice about TPU is in the module of its component, and names a field of the schema."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Iterator

import pytest

import estimator_det
import model_fn.training
from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.protos import faster_rcnn_pb2
from model_fn.preflight import op_origin
from tests.model_fn.preflight.small import small_config


def _modules() -> Iterator[str]:
    for package in (estimator_det, model_fn.training):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(("estimator_det.protos", "estimator_det.compat")):
                yield module.name


ADVISED = [name for name in _modules() if hasattr(importlib.import_module(name), "TPU")]


@pytest.mark.parametrize("name", ADVISED)
def test_the_field_is_in_the_schema(name: str) -> None:
    config = small_config("model.ssd.loss.hard_example_miner={}")
    advice = sys.modules[name].TPU
    assert isinstance(advice, TpuAdvice) and advice.remedy
    first = advice.field.partition(".")[0]
    if first in faster_rcnn_pb2.FasterRcnn.DESCRIPTOR.fields_by_name and not hasattr(
        config.model.ssd, first
    ):
        config.model.faster_rcnn.SetInParent()
    kind = config.model.WhichOneof("model")
    field = op_origin._full_field(advice.field, config)
    assert field.startswith(("train_config", f"model.{kind}.{advice.field}"))


def test_the_parts_of_a_detector_have_advice() -> None:
    assert {"estimator_det.extractors", "estimator_det.losses.mining"} <= set(ADVISED)
    nearest = op_origin._advice_of(sys.modules["estimator_det.predictors.base"])
    assert nearest is sys.modules["estimator_det.predictors"].TPU
    assert op_origin._advice_of(sys.modules["estimator_det.nets.necks.fpn"]) is None


def test_operations_of_other_code_have_no_location() -> None:
    with tf.Graph().as_default():
        origin = op_origin.origin_of(tf.constant(1).op, small_config())
    assert origin.location == "" and origin.field == "model.ssd"

"""An operation has the advice of the component, or of the rule for TPU, that it belongs to."""

from __future__ import annotations

import pytest

from estimator_det.compat import tf
from estimator_det.config.registry import CHOOSERS, Registry
from estimator_det.extractors.ssd import registry
from estimator_det.losses.classification import CLASSIFICATION_LOSSES, make_classification_loss
from estimator_det.losses.localization import LOCALIZATION_LOSSES, make_localization_loss
from model_fn.checks import op_origin
from tests.detectors.two_stage import configs as two_stage_configs
from tests.model_fn.checks.small import small_config

pytestmark = pytest.mark.optimized  # operations know the lines that built them

LOSS = "model.ssd.loss"
REGISTRIES = list(CHOOSERS.values())
MINER = "hard_example_miner {}"
BOTH = ["--set model.faster_rcnn.hard_example_miner=null", "use_matmul_crop_and_resize=true"]


@pytest.mark.parametrize("registry", [registry for registry in REGISTRIES if registry.tpu])
def test_advice_of_a_registry_names_an_entry(registry):
    assert any(name in registry.tpu for name in registry)


@pytest.mark.parametrize(
    ("field", "registry", "make"),
    [
        ("classification_loss", CLASSIFICATION_LOSSES, make_classification_loss),
        ("localization_loss", LOCALIZATION_LOSSES, make_localization_loss),
    ],
)
def test_an_operation_of_a_plug_in_belongs_to_its_component(monkeypatch, field, registry, make):
    for each in (CLASSIFICATION_LOSSES, LOCALIZATION_LOSSES):
        monkeypatch.setattr(each, "_customs", Registry("x"))
        each.custom("mine")(lambda predictions, targets, weights: tf.identity(weights, "ours"))
    losses = [f"{LOSS}.{kind}_loss.custom.name=mine" for kind in ("classification", "localization")]
    config = small_config(*losses, f"{LOSS}.hard_example_miner={{}}")
    with tf.Graph().as_default() as graph:
        make(getattr(config.model.ssd.loss, field))(*[tf.zeros([1, 2, 3])] * 3)
        origin = op_origin.origin_of(graph.get_operation_by_name("ours"), config)
    assert origin.location.startswith(f"estimator_det/losses/{field.partition('_')[0]}.py:")
    assert origin[1:] == (f"{LOSS}.{field}.custom", registry.tpu)


def test_an_operation_of_a_network_belongs_to_the_type_of_the_feature_extractor():
    config = small_config(f"{LOSS}.hard_example_miner={{}}")
    with tf.Graph().as_default():
        extractor = registry.make_extractor(config.model.ssd.feature_extractor, is_training=False)
        operation = extractor.extract(tf.zeros([1, 64, 64, 3]))[0].op
        origin = op_origin.origin_of(operation, config)
    assert origin.location.startswith("estimator_det/nets/")
    assert origin[1:] == ("model.ssd.feature_extractor.type", registry.EXTRACTORS.tpu)


@pytest.mark.parametrize(
    ("overrides", "field", "edits"),
    [
        ("use_matmul_crop_and_resize: true", "", ["train it on another device"]),
        (MINER + "use_matmul_crop_and_resize: true", ".hard_example_miner", BOTH[:1]),
        (MINER, "", BOTH),
    ],
)
def test_an_operation_of_another_part_has_the_remedies_of_the_broken_rules(overrides, field, edits):
    config = small_config()
    config.model.CopyFrom(two_stage_configs.small_config(overrides))
    with tf.Graph().as_default():
        origin = op_origin.origin_of(tf.constant(1).op, config)
    assert origin[:2] == ("", f"model.faster_rcnn{field}")
    assert all(edit in origin.remedy for edit in edits)

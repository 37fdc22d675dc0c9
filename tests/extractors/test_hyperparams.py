"""Which layers take the message's hyperparameters."""

from __future__ import annotations

import pytest

from estimator_det.compat import tf, tf1
from tests.extractors.build import EMBEDDED, OVERRIDE, build, make


@pytest.mark.parametrize(
    ("option", "penalties", "decay"),
    [pytest.param("", 2 + 17 + 16, 0.9997, marks=pytest.mark.exhaustive), (OVERRIDE, 0, 0.999)],
)
def test_override_of_mobilenet_v2_keeps_the_network(option, penalties, decay):
    text = f"""depth_multiplier: 0.1 min_depth: 8 num_layers: 2 {option}
        conv_hyperparams {{ activation: NONE batch_norm {{ scale: false center: false }} }}"""
    with tf.Graph().as_default() as graph:
        make("ssd_mobilenet_v2", text).extract(tf.zeros([1, 64, 64, 3]))
        assert len([v for v in tf1.global_variables() if v.op.name.endswith("gamma")]) == 52
        assert len(tf1.losses.get_regularization_losses()) == penalties
        norms = [op for op in graph.get_operations() if "FusedB" in op.type]
    for norm in norms:
        assert norm.get_attr("exponential_avg_factor") == pytest.approx(1 - decay, rel=1e-4)


# Of a network with one unit a block: 17 layers.
@pytest.mark.usefixtures("short_networks", "fresh_builds")
@pytest.mark.parametrize(("option", "penalties", "relu6"), [("", 17, 4), (OVERRIDE, 0, 13)])
def test_override_of_resnet_keeps_the_numbers_of_its_norms(option, penalties, relu6):
    text = f"""conv_hyperparams {{ activation: RELU_6
        regularizer {{ l2_regularizer {{ weight: 0 }} }}
        batch_norm {{ scale: false epsilon: 0.5 }} }}
        depth_multiplier: 0.05 min_depth: 4 {option}"""
    built = build("ssd_resnet50_v1_fpn", text, (160, 160))
    assert (built.epsilons[1e-5], built.epsilons[0.5]) == (17, 4)
    assert (built.ops["Relu6"], built.penalties) == (relu6, penalties)


@pytest.mark.parametrize(
    ("kind", "maps"),
    [
        ("ssd_inception_v2", [(7, 9, 55), (4, 5, 101)]),
        pytest.param("ssd_inception_v3", [(11, 15, 27), (5, 7, 76)], marks=pytest.mark.exhaustive),
    ],
)
def test_inception_takes_every_setting_of_the_message(kind, maps):
    text = f"""{OVERRIDE} depth_multiplier: 0.1 min_depth: 4 num_layers: 2
        conv_hyperparams {{ activation: NONE }}"""
    built = build(kind, text, (107, 139))
    assert built.maps == maps
    assert not [op for op in built.ops if "Relu" in op]
    assert not [name for name in built.variables if "BatchNorm" in name]


@pytest.mark.parametrize("option", [pytest.param("", marks=pytest.mark.exhaustive), OVERRIDE])
def test_embedded_keeps_the_settings_of_its_network(option):
    """The Object Detection API ignores an override, too; depthwise kernels are not regularized."""
    text = "depth_multiplier: 0.1 min_depth: 4 conv_hyperparams { batch_norm { scale: false } }"
    built = build(EMBEDDED, f"{text} {option}", (256, 256))
    assert len([name for name in built.variables if name.endswith("gamma")]) == 27
    assert built.penalties == 14  # the first convolution and the pointwise ones


@pytest.mark.usefixtures("short_networks", "fresh_builds")
def test_override_adds_the_message_to_the_norms_of_pnasnet():
    text = f"""{OVERRIDE} num_layers: 2 conv_hyperparams {{ activation: NONE
        batch_norm {{ train: false epsilon: 0.25 }} }}"""
    with tf.Graph().as_default() as graph:
        make("ssd_pnasnet", text).extract(tf.zeros([2, 64, 64, 3]))
        names = {v.op.name for v in tf1.global_variables()}
        norms = [op for op in graph.get_operations() if op.type == "FusedBatchNormV3"]
        assert not tf1.losses.get_regularization_losses()
    assert {"conv0/BatchNorm/beta", "conv0_bn/beta"} <= names
    assert {op.get_attr("epsilon") for op in norms} == {0.25}
    assert all(op.get_attr("is_training") for op in norms)

"""Weight decay of each family of networks: the factor of every penalty, not only their number."""

from __future__ import annotations

from typing import Any, Callable, Set

import pytest

from estimator_det.compat import slim, tf, tf1
from tests.extractors import build
from tests.extractors.two_stage import test_recipe as two_stage

MESSAGE = 0.003
HYPERPARAMS = f"""depth_multiplier: 0.1 min_depth: 4 conv_hyperparams {{ batch_norm {{}}
    regularizer {{ l2_regularizer {{ weight: {MESSAGE} }} }} }}"""


def decays(extract: Callable[[], Any]) -> Set[float]:
    """The factors of all penalties, each of them a factor times sum(kernel^2) / 2."""
    with tf.Graph().as_default():
        extract()
        penalties = tf1.losses.get_regularization_losses()
    factors = set()
    for penalty in penalties:
        factor, squares = penalty.op.inputs
        assert (penalty.op.type, squares.op.type) == ("Mul", "L2Loss")
        factors.add(float(f"{tf.get_static_value(factor):.3g}"))
    return factors


def of_ssd(kind: str, more: str = "") -> Set[float]:
    size = 160 if "resnet" in kind else 64
    extractor = build.make(kind, f"{HYPERPARAMS} {more}")
    return decays(lambda: extractor.extract(tf.zeros([1, size, size, 3])))


@pytest.mark.parametrize(
    ("kind", "published"),
    [
        ("ssd_mobilenet_v1", 4e-5),
        ("ssd_resnet50_v1_fpn", 1e-4),
        ("ssd_resnet50_v1_fpn_keras", 2e-4),
        pytest.param("ssd_mobilenet_v2", 4e-5, marks=pytest.mark.exhaustive),
        pytest.param("ssd_mobilenet_v2_keras", 4e-5, marks=pytest.mark.exhaustive),
        pytest.param("ssd_mobilenet_v3_small", 4e-5, marks=pytest.mark.exhaustive),
        pytest.param("ssd_pnasnet", 4e-5, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.usefixtures("short_networks")
def test_a_network_has_its_own_and_extra_layers_that_of_the_message(kind, published):
    assert of_ssd(kind) == {published, MESSAGE}


@pytest.mark.parametrize(
    "kind", ["ssd_mobilenet_v1", pytest.param("ssd_inception_v2", marks=pytest.mark.exhaustive)]
)
@pytest.mark.usefixtures("short_networks")
def test_an_override_replaces_it(kind):
    assert of_ssd(kind, build.OVERRIDE) == {MESSAGE}


@pytest.mark.usefixtures("tiny_mobiledet")
def test_mobiledet():
    assert of_ssd("tiny_mobiledet") == {4e-5, MESSAGE}


@pytest.mark.usefixtures("short_networks")
@pytest.mark.parametrize(
    ("kind", "published"),
    [
        ("ssd_spaghettinet", {1e-5}),
        pytest.param(build.MNASFPN, {4e-5, 1e-4}, marks=pytest.mark.exhaustive),
    ],
)
def test_networks_that_take_nothing_of_the_message(kind, published):
    assert of_ssd(kind) == published


@pytest.mark.parametrize(
    ("kind", "published"),
    [
        (two_stage.MOBILENET, {4e-5}),
        (two_stage.NAS, {5e-5}),
        ("faster_rcnn_pnas", {4e-5}),
        (two_stage.RESNET, set()),
        (two_stage.INCEPTION, set()),
    ],
)
def test_two_stage(kind, published):
    def extract() -> None:
        with two_stage.make(kind).recipe.arg_scope():
            slim.conv2d(tf.zeros([1, 8, 8, 3]), 4, 3)

    assert decays(extract) == published

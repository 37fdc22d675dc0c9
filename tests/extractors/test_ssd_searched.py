from __future__ import annotations

import json
import zlib
from typing import Any, List

import numpy as np
import pytest
from estimator_det.extractors.base import make_extractor
from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.extractors import base, ssd_searched
from estimator_det.nets import searched, spaghettinet
from estimator_det.nets.necks import mnasfpn
from estimator_det.protos import ssd_pb2
from tests.conftest import TESTS

HYPERPARAMS = """conv_hyperparams { activation: RELU_6 batch_norm { scale: true }
    regularizer { l2_regularizer { weight: 0.00004 } } }"""
MNASFPN = "ssd_mobilenet_v2_mnasfpn"
FPN = "fpn { min_level: 3 max_level: 6 additional_layer_depth: 48 }"
SPAGHETTI = "ssd_spaghettinet"
TYPES = (
    "ssd_mobiledet_cpu",
    "ssd_mobiledet_dsp",
    "ssd_mobiledet_edgetpu",
    "ssd_mobiledet_gpu",
    MNASFPN,
    SPAGHETTI,
)


def make(kind: str, text: str = "", is_training: bool = True) -> Any:
    config = text_format.Parse(
        f"type: '{kind}' {text} {HYPERPARAMS}", ssd_pb2.SsdFeatureExtractor()
    )
    return make_extractor(config, is_training)


def build(kind: str, text: str = "", size: tuple = (320, 320)) -> List[List[int]]:
    """Sizes of the feature maps that are built in the current graph."""
    with tf1.variable_scope("FeatureExtractor"):
        maps = make(kind, text).extract(tf.zeros([2, *size, 3]))
    return [features.shape.as_list() for features in maps]


def sizes(kind: str, text: str = "", size: tuple = (320, 320)) -> List[List[int]]:
    with tf.Graph().as_default():
        return [shape[1:] for shape in build(kind, text, size)]


# One layer of every kind, and no more.
TINY = searched.Network(
    stem=8,
    squeeze_excite=True,
    stages=(
        (searched.Layer("IBNNoExpansion", 8, skip=False),),
        (searched.Layer("TuckerConv", 16, stride=2, skip=False),),
        (searched.Layer("FusedConv", 24, stride=2, skip=False, expansion=2),),
        (searched.Layer("IBN", 72, 5, stride=2, skip=False, expansion=2),),
        (searched.Layer("IBN", 144, stride=2, skip=False, expansion=2),),
    ),
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A MobileDet of five layers, registered while the test runs."""
    monkeypatch.setattr(base.EXTRACTORS, "_makers", {})
    ssd_searched._register("tiny", ssd_searched._mobiledet("Tiny", TINY), base.RecipeExtractor)
    return "tiny"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """SpaghettiNets of one layer a node, MnasFPN of one cell."""
    networks = {
        name: tuple(node._replace(layers=node.layers[:1]) for node in nodes)
        for name, nodes in spaghettinet.NETWORKS.items()
    }
    monkeypatch.setattr(spaghettinet, "NETWORKS", networks)
    monkeypatch.setattr(mnasfpn, "NUM_CELLS", 1)


def variables(kind: str, text: str = "", size: tuple = (64, 64)) -> List[str]:
    with tf.Graph().as_default():
        build(kind, text, size)
        names = [v.op.name for v in tf1.global_variables()]
    assert len(names) == len(set(names))
    return names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ssd_mobiledet_cpu", "use_depthwise: true"),
        ("ssd_mobiledet_dsp", "use_depthwise: true"),
        ("ssd_mobiledet_edgetpu", "use_depthwise: true"),
        (MNASFPN, "use_depthwise: true"),
    ],
)
def test_reference(kind: str, text: str) -> None:
    golden = json.loads((TESTS / "golden" / "extractors" / f"{kind}.json").read_text())
    with tf.Graph().as_default():
        assert build(kind, text) == golden["feature_map_shapes"]
        lines = sorted(
            f"{v.op.name} {v.shape.as_list()} {v.trainable}" for v in tf1.global_variables()
        )
        assert len(lines) == golden["variables"]
        assert zlib.crc32("\n".join(lines).encode()) == golden["checksum"]
        penalties = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        assert len(penalties) == golden["regularization_losses"]


@pytest.mark.slow
def test_mobiledet_gpu() -> None:
    with tf.Graph().as_default():
        assert build("ssd_mobiledet_gpu")[:3] == [
            [2, 20, 20, 128],
            [2, 10, 10, 384],
            [2, 5, 5, 512],
        ]
        shapes = {v.op.name: v.shape.as_list() for v in tf1.trainable_variables()}
    root = "FeatureExtractor/MobileDetGPU"
    assert shapes[f"{root}/TuckerConv/Conv_1/weights"] == [3, 3, 8, 8]
    assert shapes[f"{root}/TuckerConv_3/Conv_2/weights"] == [1, 1, 8, 32]
    assert shapes[f"{root}/FusedConv_16/Conv/weights"] == [3, 3, 128, 512]
    assert shapes[f"{root}/IBN/Conv_1/weights"] == [1, 1, 1024, 384]
    assert f"{root}/FusedConv_17/Conv/weights" not in shapes


@pytest.mark.parametrize("kind", TYPES)
def test_pixels_become_minus_one_to_one(kind: str) -> None:
    pixels = tf.constant([0.0, 127.5, 255.0])
    np.testing.assert_allclose(make(kind).normalize(pixels), [-1.0, 0.0, 1.0], atol=1e-6)


@pytest.mark.parametrize("kind", TYPES)
def test_images_below_33_pixels_are_refused(kind: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="at least 33 x 33 pixels"):
        build(kind, size=(64, 32))


def test_mobiledet_depth_multiplier_rounds_to_eights(tiny: str) -> None:
    # 72 * 0.55 / 8 = 4.95 and 144 * 0.55 / 8 = 9.9; extra layers are cut to integers instead.
    assert sizes(tiny, "depth_multiplier: 0.55 min_depth: 90", (70, 40)) == [
        [5, 3, 40],
        [3, 2, 80],
        [2, 1, 281],
        [1, 1, 140],
        [1, 1, 140],
        [1, 1, 90],
    ]


def test_mobiledet_padding(tiny: str) -> None:
    found = sizes(tiny, "pad_to_multiple: 64", (70, 40))
    assert [shape[:2] for shape in found] == [[8, 4], [4, 2], [2, 1], [1, 1], [1, 1], [1, 1]]


def test_mobiledet_extra_layers(tiny: str) -> None:
    split = variables(tiny, "use_depthwise: true depth_multiplier: 0.25")
    whole = variables(tiny, "depth_multiplier: 0.25")
    assert "FeatureExtractor/Tiny/C5_2_Conv2d_2_3x3_s2_128/weights" in whole
    assert set(split) - set(whole) == {
        f"FeatureExtractor/Tiny/C5_2_Conv2d_{row}_3x3_s2_{depth}_depthwise/{leaf}"
        for row, depth in ((2, 128), (3, 64), (4, 64), (5, 32))
        for leaf in (
            "depthwise_weights",
            *(f"BatchNorm/{v}" for v in ("beta", "gamma", "moving_mean", "moving_variance")),
        )
    }


def test_mobiledet_override_has_no_effect_on_the_backbone(tiny: str) -> None:
    text = """override_base_feature_extractor_hyperparams: true conv_hyperparams {
        regularizer { l2_regularizer { weight: 0 } } batch_norm { scale: false train: false } }"""
    with tf.Graph().as_default():
        config = text_format.Parse(f"type: '{tiny}' {text}", ssd_pb2.SsdFeatureExtractor())
        make_extractor(config, is_training=True).extract(tf.zeros([1, 64, 64, 3]))
        penalties = [p.op.name for p in tf1.losses.get_regularization_losses()]
        updates = [u.name for u in tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)]
    # Stem 1; 2, 3, 2, 3 and 3 kernels of the layers; two more for each of five gates.
    assert len(penalties) == 1 + 2 + 3 + 2 + 3 + 3 + 10
    # Gates have no batch norm; each of the others moves two averages.
    assert len(updates) == 2 * 14
    assert not any("C5_" in name for name in penalties + updates)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("ssd_mobiledet_cpu", "use_explicit_padding: true", "use_explicit_padding must be False"),
        ("ssd_mobiledet_cpu", "num_layers: 4", "num_layers is not supported by ssd_mobiledet_cpu"),
        ("ssd_mobiledet_gpu", FPN, "fpn is not supported by ssd_mobiledet_gpu"),
        (MNASFPN, "num_layers: 4", "num_layers is not supported by ssd_mobilenet_v2_mnasfpn"),
        (MNASFPN, "fpn {}", "min_level 3 and max_level 6; got 3 and 7"),
        (SPAGHETTI, FPN, "fpn is not supported by ssd_spaghettinet"),
        (
            SPAGHETTI,
            "spaghettinet_arch_name: 'spaghettinet_edgetpu_x'",
            r"no 'spaghettinet_edgetpu_x'; did you mean 'spaghettinet_edgetpu_[sml]'\?",
        ),
    ],
)
def test_refusals(kind: str, text: str, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        build(kind, text, (64, 64))


@pytest.mark.usefixtures("short")
def test_mnasfpn_options() -> None:
    text = """use_explicit_padding: true pad_to_multiple: 64 depth_multiplier: 0.5 min_depth: 8
        fpn { max_level: 6 additional_layer_depth: 88 }"""
    # 44 channels make 48, and sides of 100 and 60 make 128 and 64.
    assert sizes(MNASFPN, text, (100, 60)) == [[16, 8, 48], [8, 4, 48], [4, 2, 48], [2, 1, 48]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("letter", "depths", "kernels"),
    [
        # Kernels of fused, inverted and separable layers, of ten edges and of the stem.
        ("s", [120, 168, 136, 136, 64], 24 + 57 + 16 + 10 + 1),
        ("m", [120, 168, 136, 136, 64], 29 + 60 + 20 + 10 + 1),
        ("l", [120, 168, 112, 128, 64], 24 + 87 + 8 + 10 + 1),
    ],
)
def test_spaghettinet_maps(letter: str, depths: List[int], kernels: int) -> None:
    with tf.Graph().as_default():
        found = build(SPAGHETTI, f"spaghettinet_arch_name: 'spaghettinet_edgetpu_{letter}'")
        assert len(tf1.losses.get_regularization_losses()) == kernels
    assert found == [[2, n, n, depth] for n, depth in zip((20, 10, 5, 3, 3), depths)]


@pytest.mark.usefixtures("short")
def test_spaghettinet_names_and_ignored_options() -> None:
    ignored = """depth_multiplier: 0.1 min_depth: 4 use_depthwise: true pad_to_multiple: 256
        override_base_feature_extractor_hyperparams: true"""
    with tf.Graph().as_default():
        # Not even the padding: 300 pixels stay 300.
        assert [shape[1] for shape in build(SPAGHETTI, ignored, (300, 300))] == [19, 10, 5, 3, 3]
        names = {v.op.name for v in tf1.global_variables()}
    root = "FeatureExtractor/spaghettinet_edgetpu_m"
    assert all(name.startswith(f"{root}/") for name in names)
    block = f"{root}/spaghetti_net/n1_0"
    assert {
        f"{root}/spaghetti_net/stem_node/stem/weights",
        f"{block}/slice_3/weights",
        f"{block}/concat/max",
        f"{block}/concat/{block}/concat/max/biased",
        f"{block}/concat/{block}/concat/min/local_step",
        f"{root}/spaghetti_net/n3_0/depthwise/BatchNorm/gamma",
        f"{root}/spaghetti_net/n5_0/depthwise/biases",
        f"{root}/edge_n4_c0n0/1x1_before_upsample/weights",
        f"{root}/edge_c0n1_c0n2/1x1_after_downsampling/weights",
        f"{root}/edge_n5_c0n4/1x1_no_resampling/weights",
    } <= names


@pytest.mark.usefixtures("short")
def test_spaghettinet_evaluation_keeps_no_averages_of_its_own() -> None:
    counts = []
    for is_training in (True, False):
        with tf.Graph().as_default():
            make(SPAGHETTI, is_training=is_training).extract(tf.zeros([1, 64, 64, 3]))
            counts.append(len(tf1.global_variables()))
    # Two for each end of the ranges of n0 and n1.
    assert counts[0] - counts[1] == 2 * 2 * 2

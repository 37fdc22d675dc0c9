from __future__ import annotations

import functools
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import slim, tf, tf1
from estimator_det.extractors.base import EXTRACTORS, make_extractor
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.protos import ssd_pb2

NORM = "conv_hyperparams { batch_norm { scale: true } }"
SMALL = f"depth_multiplier: 0.05 min_depth: 4 {NORM}"


def make(kind: str, text: str = "") -> Any:
    config = text_format.Parse(f"type: '{kind}' {text}", ssd_pb2.SsdFeatureExtractor())
    return make_extractor(config, is_training=True)


@functools.cache
def build(kind: str, text: str, size: Tuple[int, int] = (160, 192)) -> Tuple[List[Any], Dict]:
    with tf.Graph().as_default():
        maps = make(kind, text).extract(tf.zeros([1, *size, 3]))
        names = [v.op.name for v in tf1.global_variables()]
        assert len(set(names)) == len(names)
        shapes = {v.op.name: v.shape.as_list() for v in tf1.global_variables()}
        return [tuple(m.shape.as_list()[1:]) for m in maps], shapes


def test_pyramid_of_levels_3_to_7() -> None:
    shapes, names = build("ssd_resnet50_v1_fpn", SMALL)
    # 256 channels times 0.05.
    assert shapes == [(20, 24, 12), (10, 12, 12), (5, 6, 12), (3, 3, 12), (2, 2, 12)]
    added = {name.split("/")[2] for name in names if name.startswith("resnet_v1_50/fpn/")}
    assert added == {
        *(f"projection_{n}" for n in (1, 2, 3)),
        *(f"smoothing_{n}" for n in (1, 2)),
        *(f"bottom_up_block{n}" for n in (5, 6)),
    }
    assert names["resnet_v1_50/conv1/weights"] == [7, 7, 3, 64]
    assert names["resnet_v1_50/block4/unit_3/bottleneck_v1/conv1/weights"] == [1, 1, 100, 25]
    assert "resnet_v1_50/fpn/projection_1/biases" in names
    assert "resnet_v1_50/fpn/smoothing_1/biases" not in names


def test_other_levels_and_depths() -> None:
    text = "fpn { min_level: 2 max_level: 4 additional_layer_depth: 100 }"
    shapes, names = build("ssd_resnet50_v1_fpn", f"{SMALL} {text}")
    assert shapes == [(40, 48, 5), (20, 24, 5), (10, 12, 5)]
    assert not [name for name in names if "bottom_up" in name]
    # The backbone is whole all the same.
    assert "resnet_v1_50/block4/unit_3/bottleneck_v1/conv3/weights" in names
    shapes, _ = build("ssd_resnet50_v1_fpn", f"{SMALL} fpn {{ min_level: 5 max_level: 6 }}")
    assert shapes == [(5, 6, 12), (3, 3, 12)]


def test_depthwise_is_ignored_and_padding_taken() -> None:
    plain, names = build("ssd_resnet50_v1_fpn", SMALL)
    assert build("ssd_resnet50_v1_fpn", f"{SMALL} use_depthwise: true") == (plain, names)
    padded, _ = build("ssd_resnet50_v1_fpn", f"{SMALL} pad_to_multiple: 32", (130, 161))
    assert padded[0][:2] == (20, 24)


def test_pooling_pyramid() -> None:
    shapes, names = build("ssd_resnet50_v1_ppn", NORM)
    sides = [(10, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)]
    assert shapes == [(*side, 1024) for side in sides]
    assert names["resnet_v1_50/Base_Conv2d_1x1_1024/weights"] == [1, 1, 1024, 1024]
    ignored = "min_depth: 200 use_depthwise: true use_explicit_padding: true"
    assert build("ssd_resnet50_v1_ppn", f"{NORM} {ignored}") == (shapes, names)


@pytest.mark.parametrize(
    ("layers", "units"), [(101, 23), pytest.param(152, 36, marks=pytest.mark.exhaustive)]
)
@pytest.mark.slow
def test_deeper_networks(layers: int, units: int) -> None:
    for kind in ("fpn", "ppn"):
        _, names = build(f"ssd_resnet{layers}_v1_{kind}", SMALL if kind == "fpn" else NORM)
        scope = f"resnet_v1_{layers}/block3"
        assert f"{scope}/unit_{units}/bottleneck_v1/conv1/weights" in names
        assert f"{scope}/unit_{units + 1}/bottleneck_v1/conv1/weights" not in names


def test_override_replaces_activation_and_penalty_not_the_norms_numbers() -> None:
    text = """conv_hyperparams { activation: RELU_6 regularizer { l2_regularizer { weight: 0.0 } }
        batch_norm { scale: false epsilon: 0.5 } } depth_multiplier: 0.05 min_depth: 4"""
    for override, penalties, bounded in (("false", 53, 4), ("true", 0, 37)):
        with tf.Graph().as_default():
            extractor = make(
                "ssd_resnet50_v1_fpn",
                f"{text} override_base_feature_extractor_hyperparams: {override}",
            )
            with slim.arg_scope(list(BATCH_NORMS), updates_collections=None):
                extractor.extract(tf.zeros([1, 160, 160, 3]))
            operations = tf1.get_default_graph().get_operations()
            norms = [op for op in operations if op.type == "FusedBatchNormV3"]
            epsilons = [round(op.get_attr("epsilon"), 6) for op in norms]
            assert (epsilons.count(1e-5), epsilons.count(0.5)) == (53, 4)
            assert len([op for op in operations if op.type == "Relu6"]) == bounded
            assert len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)) == penalties
            # In place in the pyramid, through the collection in the backbone.
            assert len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)) == 2 * 53


def test_pixels_lose_the_channel_means() -> None:
    extractor = make("ssd_resnet50_v1_fpn")
    pixels = tf.constant([[[[123.68, 116.779, 103.939], [0.0, 0.0, 255.0]]]])
    expected = [[[[0, 0, 0], [-123.68, -116.779, 255 - 103.939]]]]
    np.testing.assert_allclose(extractor.normalize(pixels), expected, atol=1e-4)
    gray = tf.constant([[[[7.0]]]])
    np.testing.assert_array_equal(extractor.normalize(gray), gray)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("fpn", "use_explicit_padding: true", r"use_explicit_padding must be False for .*_fpn"),
        ("ppn", "depth_multiplier: 0.5", r"depth_multiplier must be 1\.0 for .*_ppn; got 0\.5"),
        ("ppn", "fpn { }", r"fpn is not supported by ssd_resnet50_v1_ppn"),
        ("ppn", "num_layers: 4", r"num_layers is not supported by ssd_resnet50_v1_ppn"),
        ("fpn", "num_layers: 6", r"num_layers is not supported .* it knows \['fpn'\]"),
        ("fpn", "bifpn { }", r"bifpn is not supported"),
        ("fpn", "fpn { min_level: 4 max_level: 3 }", r"max_level must not be below min_level"),
        ("fpn", "fpn { additional_layer_depth: 0 }", r"additional_layer_depth must be 1 or more"),
    ],
)
def test_refusals(kind: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(f"ssd_resnet50_v1_{kind}", text)


def test_errors_of_building() -> None:
    with pytest.raises(ValueError, match=r"at least 129 x 129 pixels; got \[128, 200\]"):
        build("ssd_resnet50_v1_ppn", NORM, (128, 200))
    with pytest.raises(ValueError, match=r"min_level must be 2 to 5.*got 6"):
        build("ssd_resnet50_v1_fpn", f"{SMALL} fpn {{ min_level: 6 max_level: 7 }}")
    with pytest.raises(ValueError, match=r"pad_to_multiple: 32"):
        build("ssd_resnet50_v1_fpn", SMALL, (150, 160))


def test_names() -> None:
    for layers in (50, 101, 152):
        assert f"ssd_resnet{layers}_v1_ppn" in EXTRACTORS
        assert EXTRACTORS.get(f"ssd_resnet{layers}_v1_fpn") is EXTRACTORS.get(
            f"ssd_resnet{layers}_v1_fpn_keras"
        )

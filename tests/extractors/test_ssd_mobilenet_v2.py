from __future__ import annotations

import json
import pathlib
import zlib
from typing import Any, Dict, List

import numpy as np
import pytest
from estimator_det.extractors.base import make_extractor
from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import slim, tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import Groundtruth, make_detector
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.protos import ssd_pb2
from tests.conftest import TESTS

HYPERPARAMS = """conv_hyperparams { activation: RELU_6 batch_norm { scale: true decay: 0.97 }
    regularizer { l2_regularizer { weight: 0.00004 } } }"""
SMALL = f"depth_multiplier: 0.1 min_depth: 8 {HYPERPARAMS}"
OVERRIDE = "override_base_feature_extractor_hyperparams: true"
LITE = f"use_depthwise: true {OVERRIDE} min_depth: 16"


def make(kind: str, text: str = "") -> Any:
    config = text_format.Parse(f"type: '{kind}' {text}", ssd_pb2.SsdFeatureExtractor())
    return make_extractor(config, is_training=True)


def build(kind: str, text: str, size: tuple = (300, 300)) -> List[List[int]]:
    """Shapes of the feature maps that are built in the current graph."""
    with tf1.variable_scope("FeatureExtractor"):
        maps = make(kind, text).extract(tf.zeros([2, *size, 3]))
    return [features.shape.as_list() for features in maps]


def variables(scope: str = "") -> Dict[str, List[int]]:
    start = f"FeatureExtractor/{scope}"
    return {
        v.op.name[len(start) :]: v.shape.as_list()
        for v in tf1.global_variables()
        if v.op.name.startswith(start)
    }


def penalties() -> int:
    return len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES))


@pytest.mark.parametrize(
    ("name", "kind", "text", "side"),
    [
        ("ssd_mobilenet_v2_coco", "ssd_mobilenet_v2", "min_depth: 16", 300),
        ("ssdlite_mobilenet_v2_coco", "ssd_mobilenet_v2", "use_depthwise: true", 300),
        ("ssdlite_mobilenet_v3_large_320x320_coco", "ssd_mobilenet_v3_large", LITE, 320),
        ("ssdlite_mobilenet_edgetpu_320x320_coco", "ssd_mobilenet_edgetpu", LITE, 320),
    ],
)
def test_reference(name: str, kind: str, text: str, side: int) -> None:
    golden = json.loads((TESTS / "golden" / "extractors" / f"{name}.json").read_text())
    with tf.Graph().as_default():
        assert build(kind, f"{text} {HYPERPARAMS}", (side, side)) == golden["feature_map_shapes"]
        lines = sorted(
            f"{v.op.name} {v.shape.as_list()} {v.trainable}" for v in tf1.global_variables()
        )
        assert len(lines) == golden["variables"]
        assert zlib.crc32("\n".join(lines).encode()) == golden["checksum"]
        assert penalties() == golden["regularization_losses"]


@pytest.mark.parametrize("kind", ["ssd_mobilenet_v2", "ssd_mobilenet_v2_fpn"])
def test_keras_names_mean_the_same_networks(kind: str) -> None:
    assert make(f"{kind}_keras").recipe is make(kind).recipe


def test_v3_small() -> None:
    with tf.Graph().as_default():
        assert build("ssd_mobilenet_v3_small", f"{LITE} {HYPERPARAMS}", (320, 320)) == [
            [2, 20, 20, 288],
            [2, 10, 10, 288],
            [2, 5, 5, 512],
            [2, 3, 3, 256],
            [2, 2, 2, 256],
            [2, 1, 1, 128],
        ]
        found = variables("MobilenetV3/")
        block = "expanded_conv_8"
        assert found["expanded_conv/squeeze_excite/Conv/weights"] == [1, 1, 16, 8]
        assert found[f"{block}/expand/weights"] == [1, 1, 48, 288]
        assert found[f"{block}/depthwise/depthwise_weights"] == [5, 5, 288, 1]
        assert found[f"{block}/squeeze_excite/Conv/weights"] == [1, 1, 288, 72]
        assert found["expanded_conv_10/project/weights"] == [1, 1, 288, 48]
        assert found["Conv_1/weights"] == [1, 1, 48, 288]
        assert found["layer_13_2_Conv2d_5_3x3_s2_128_depthwise/depthwise_weights"] == [3, 3, 64, 1]
        # 34 backbone layers and 12 extra ones with batch norm, 9 gates of two layers with biases.
        assert len(found) == 5 * (34 + 12) + 4 * 9
        assert penalties() == 34 + 12 + 2 * 9


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Padded to 128 x 192 pixels; widths by eights, those of the extra layers cut.
        ("ssd_mobilenet_v2", [[8, 12, 96], [4, 6, 128], [2, 3, 51], [1, 2, 25], [1, 1, 25]]),
        ("ssd_mobilenet_v3_large", [[8, 12, 96], [4, 6, 48], [2, 3, 51], [1, 2, 25]]),
        ("ssd_mobilenet_v3_small", [[8, 12, 48], [4, 6, 32], [2, 3, 51], [1, 2, 25]]),
        ("ssd_mobilenet_edgetpu", [[8, 12, 64], [4, 6, 24], [2, 3, 51], [1, 2, 25]]),
    ],
)
def test_depth_and_pad_to_multiple(kind: str, expected: list) -> None:
    with tf.Graph().as_default():
        layers = "num_layers: 5" if kind == "ssd_mobilenet_v2" else ""
        shapes = build(kind, f"{SMALL} pad_to_multiple: 64 {layers}", (107, 139))
        assert [shape[1:] for shape in shapes][: len(expected)] == expected
        assert len(shapes) == (5 if layers else 6)


def test_explicit_padding() -> None:
    text = f"{SMALL} use_explicit_padding: true"
    with tf.Graph().as_default():
        sides = [shape[1] for shape in build("ssd_mobilenet_v2", text, (96, 96))]
        assert sides == [6, 3, 2, 1, 1, 1]
    with tf.Graph().as_default():
        sides = [shape[1] for shape in build("ssd_mobilenet_v3_small", text, (64, 64))]
        assert sides == [28, 22, 11, 6, 3, 2]


def test_override_sets_penalties_and_decay_but_not_the_network() -> None:
    text = "conv_hyperparams { activation: NONE batch_norm { scale: false center: false } }"
    for override, expected in (("false", 2 + 17 + 16), ("true", 0)):
        with (
            tf.Graph().as_default(),
            slim.arg_scope(list(BATCH_NORMS), updates_collections=None),
        ):
            extra = f"override_base_feature_extractor_hyperparams: {override} num_layers: 2"
            build(
                "ssd_mobilenet_v2", f"depth_multiplier: 0.1 min_depth: 8 {text} {extra}", (64, 64)
            )
            assert len([name for name in variables() if name.endswith("gamma")]) == 52
            assert penalties() == expected
            assert not tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
            norms = [op for op in tf1.get_default_graph().get_operations() if "FusedB" in op.type]
            factor = 1 - (0.999 if override == "true" else 0.9997)
            for norm in norms:
                assert norm.get_attr("exponential_avg_factor") == pytest.approx(factor, rel=1e-4)


def test_fpn() -> None:
    text = f"depth_multiplier: 0.5 {HYPERPARAMS}"
    with tf.Graph().as_default():
        shapes = build("ssd_mobilenet_v2_fpn", text, (128, 128))
        assert shapes == [[2, side, side, 128] for side in (16, 8, 4, 2, 1)]
        found = variables("MobilenetV2/")
        assert found["Conv_1/weights"] == [1, 1, 160, 640]
        assert found["fpn/projection_3/weights"] == [1, 1, 640, 128]
        assert found["fpn/projection_3/biases"] == [128]
        assert found["fpn/smoothing_2/weights"] == [3, 3, 128, 128]
        assert found["fpn/bottom_up_Conv2d_20/weights"] == [3, 3, 128, 128]
        assert "fpn/bottom_up_Conv2d_21/BatchNorm/beta" in found
        assert len(found) == 52 * 5 + 3 * 2 + 4 * 5


def test_light_fpn() -> None:
    text = f"""depth_multiplier: 0.5 {HYPERPARAMS} use_depthwise: true
        fpn {{ min_level: 2 max_level: 6 additional_layer_depth: 64 }}"""
    with tf.Graph().as_default():
        shapes = build("ssd_mobilenet_v2_fpn_keras", text, (128, 128))
        assert shapes == [[2, side, side, 32] for side in (32, 16, 8, 4, 2)]
        found = variables("MobilenetV2/")
        assert found["Conv_1/weights"] == [1, 1, 160, 128]
        assert found["fpn/projection_1/weights"] == [1, 1, 16, 32]
        assert found["fpn/smoothing_3/depthwise_weights"] == [3, 3, 32, 1]
        assert found["fpn/smoothing_3/pointwise_weights"] == [1, 1, 32, 32]
        assert "fpn/bottom_up_Conv2d_20/pointwise_weights" in found
        assert not [name for name in found if "Conv2d_21" in name]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("ssd_mobilenet_v2", "num_layers: 7", "num_layers: 7 is more than the 6 feature maps"),
        ("ssd_mobilenet_v2", "fpn {}", "feature_extractor.fpn is not supported"),
        ("ssd_mobilenet_v2", "depth_multiplier: 0", "depth_multiplier must be above 0"),
        ("ssd_mobilenet_v2_fpn", "num_layers: 4", "num_layers is not supported"),
        ("ssd_mobilenet_v2_fpn", "fpn { min_level: 6 }", "min_level must be 2 to 5"),
        ("ssd_mobilenet_v3_large", "num_layers: 4", "num_layers is not supported"),
        ("ssd_mobilenet_v3_small", "use_hardswish: true", "use_hardswish is not supported"),
        ("ssd_mobilenet_edgetpu", "use_explicit_padding: true", "use_explicit_padding must be"),
    ],
)
def test_errors(kind: str, text: str, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        build(kind, text, (64, 64))


def test_small_images() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="at least 33 x 33"):
        build("ssd_mobilenet_v3_small", SMALL, (32, 64))


@pytest.mark.slow
def test_keras_configuration_trains(shared: pathlib.Path) -> None:
    config = pipeline.read_pipeline(
        shared / "data" / "configs" / "ssd_mobilenet_v2_pets_keras.config"
    )
    config.model.ssd.feature_extractor.depth_multiplier = 0.25
    boxes = np.array([[[0.1, 0.1, 0.5, 0.5], [0.2, 0.3, 0.9, 0.8]]] * 2, np.float32)
    images = np.random.default_rng(0).uniform(0, 255, [2, 300, 300, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        groundtruth = Groundtruth(
            boxes=tf.constant(boxes),
            classes=tf.one_hot([[1, 2], [3, 4]], 37),
            weights=tf.ones([2, 2]),
            valid=tf.ones([2, 2], tf.bool),
        )
        detector = make_detector(config.model, is_training=True)
        inputs, true_shapes = detector.preprocess(tf.constant(images))
        predictions = detector.predict(inputs, true_shapes)
        total = tf.add_n(list(detector.loss(predictions, groundtruth).terms.values()))
        with tf1.control_dependencies(detector.updates()):
            step = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(total)
        session.run(tf1.global_variables_initializer())
        losses = [session.run([total, step])[0] for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]

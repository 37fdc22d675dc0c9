from __future__ import annotations

import json
import zlib
from typing import Any, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import slim, tf, tf1
from estimator_det.extractors.base import make_extractor
from estimator_det.nets import nasnet
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.protos import ssd_pb2
from tests.conftest import TESTS

OVERRIDE = "override_base_feature_extractor_hyperparams: true"
HYPERPARAMS = """conv_hyperparams { activation: RELU_6 batch_norm { scale: true }
    regularizer { l2_regularizer { weight: 0.00004 } } }"""
SMALL = f"depth_multiplier: 0.1 min_depth: 4 {HYPERPARAMS}"
TINY_PNASNET = nasnet.Network(
    nasnet.Cell(
        (nasnet.Block(nasnet.Step("separable", 3, 1), nasnet.Step("identity", 1, 0)),), (2,)
    ),
    num_cells=12,
    depth=8,
    stem_depth=6,
    keep_paths=0.6,
)


def make(kind: str, text: str = "", is_training: bool = True):
    config = text_format.Parse(f"type: '{kind}' {text}", ssd_pb2.SsdFeatureExtractor())
    return make_extractor(config, is_training)


def build(kind: str, text: str, size: tuple = (300, 300)) -> List[List[int]]:
    """Sizes of the feature maps that are built in the current graph."""
    with tf1.variable_scope("FeatureExtractor"):
        maps = make(kind, text).extract(tf.zeros([2, *size, 3]))
    return [features.shape.as_list() for features in maps]


def sizes(kind: str, text: str, size: tuple = (300, 300)) -> List[List[int]]:
    with tf.Graph().as_default():
        return [shape[1:] for shape in build(kind, text, size)]


def variables() -> Dict[str, List[int]]:
    return {v.op.name: v.shape.as_list() for v in tf1.global_variables()}


def counted(collection: str) -> int:
    return len(tf1.get_collection(collection))


@pytest.fixture
def tiny_pnasnet(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: Dict[str, Any] = {"network": TINY_PNASNET}
    real = nasnet.searched_network
    monkeypatch.setattr(nasnet, "searched_network", lambda *a, **k: real(*a, **{**defaults, **k}))


@pytest.mark.parametrize(
    ("name", "text", "side"),
    [
        ("ssd_inception_v2_coco", f"{OVERRIDE} min_depth: 16", 300),
        ("embedded_ssd_mobilenet_v1_coco", "depth_multiplier: 0.125 min_depth: 16", 256),
    ],
)
def test_reference(name: str, text: str, side: int) -> None:
    golden = json.loads((TESTS / "golden" / "extractors" / f"{name}.json").read_text())
    kind = name[: -len("_coco")]
    with tf.Graph().as_default():
        assert build(kind, f"{text} {HYPERPARAMS}", (side, side)) == golden["feature_map_shapes"]
        lines = sorted(
            f"{v.op.name} {v.shape.as_list()} {v.trainable}" for v in tf1.global_variables()
        )
        assert len(lines) == golden["variables"]
        assert zlib.crc32("\n".join(lines).encode()) == golden["checksum"]
        assert counted(tf1.GraphKeys.UPDATE_OPS) == golden["update_ops"]
        penalties = counted(tf1.GraphKeys.REGULARIZATION_LOSSES)
        assert penalties == golden["regularization_losses"]


def test_inception_v3() -> None:
    with tf.Graph().as_default():
        found = build("ssd_inception_v3", f"{OVERRIDE} {HYPERPARAMS}")
        assert [shape[1:] for shape in found] == [
            [35, 35, 288],
            [17, 17, 768],
            [8, 8, 2048],
            [4, 4, 512],
            [2, 2, 256],
            [1, 1, 128],
        ]
        # 94 layers of the network and 6 more, each a kernel and four numbers per channel.
        assert len(variables()) == 100 * 5
        assert counted(tf1.GraphKeys.REGULARIZATION_LOSSES) == 100
        scope = "FeatureExtractor/InceptionV3"
        assert variables()[f"{scope}/Mixed_7c_1_Conv2d_3_1x1_256/weights"] == [1, 1, 2048, 256]
        assert variables()[f"{scope}/Mixed_7c_2_Conv2d_5_3x3_s2_128/weights"] == [3, 3, 64, 128]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Padded to 128 x 192 pixels.
        ("ssd_inception_v2", [[8, 12, 55], [4, 6, 101], [2, 3, 51], [1, 2, 25], [1, 1, 25]]),
        ("ssd_inception_v3", [[13, 21, 27], [6, 10, 76], [2, 4, 203], [1, 2, 51], [1, 1, 25]]),
    ],
)
def test_inception_options(kind: str, expected: list) -> None:
    text = f"""{OVERRIDE} {SMALL} num_layers: 5 pad_to_multiple: 64 use_explicit_padding: true
        use_depthwise: true"""
    with tf.Graph().as_default():
        assert [shape[1:] for shape in build(kind, text, (107, 139))] == expected
        last = [name for name in variables() if "_4_3x3_s2_25" in name and name.endswith("weights")]
        assert [name.rsplit("s2_25", 1)[1] for name in last] == [
            "_depthwise/depthwise_weights",
            "/weights",
        ]


@pytest.mark.parametrize("kind", ["ssd_inception_v2", "ssd_inception_v3"])
def test_inception_takes_the_settings_of_the_message(kind: str) -> None:
    with pytest.raises(ValueError, match=f"override.* must be true for {kind}"):
        make(kind, HYPERPARAMS)
    text = f"""{OVERRIDE} depth_multiplier: 0.1 min_depth: 4 num_layers: 2
        conv_hyperparams {{ activation: NONE }}"""
    with tf.Graph().as_default() as graph:
        build(kind, text, (107, 139))
        assert not [op for op in graph.get_operations() if "Relu" in op.type]
        assert not [name for name in variables() if "BatchNorm" in name]
    with pytest.raises(ValueError, match=r"at least 33 x 33 pixels; got \[32, 40\]"):
        sizes(kind, text, (32, 40))


EMBEDDED = "embedded_ssd_mobilenet_v1"


@pytest.mark.parametrize("option", ["", "use_explicit_padding: true", "use_depthwise: true"])
def test_embedded_sizes(option: str) -> None:
    with tf.Graph().as_default():
        found = build(EMBEDDED, f"{SMALL} {option}", (256, 256))
        assert [shape[1:3] for shape in found] == [[16] * 2, [8] * 2, [4] * 2, [2] * 2, [1] * 2]
        scope = "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise"
        kernel = f"{scope}_2_Conv2d_4_2x2_s2_25"
        if "depthwise" in option:
            assert variables()[f"{kernel}_depthwise/depthwise_weights"] == [2, 2, 12, 1]
            assert variables()[f"{kernel}/weights"] == [1, 1, 12, 25]
        else:
            assert variables()[f"{kernel}/weights"] == [2, 2, 12, 25]


def test_embedded_keeps_the_settings_of_its_network() -> None:
    """As in the reference, an override has no effect; depthwise kernels are not regularized."""
    text = "depth_multiplier: 0.1 min_depth: 4 conv_hyperparams { batch_norm { scale: false } }"
    for override in ("", OVERRIDE):
        with tf.Graph().as_default():
            build(EMBEDDED, f"{text} {override}", (256, 256))
            gammas = [name for name in variables() if name.endswith("gamma")]
            assert len(gammas) == 27
            # The first convolution and the pointwise ones; the message asks for none elsewhere.
            assert counted(tf1.GraphKeys.REGULARIZATION_LOSSES) == 14


def test_embedded_refuses() -> None:
    with pytest.raises(
        ValueError, match=r"pad_to_multiple must be 1 for embedded_ssd_mobilenet_v1"
    ):
        make(EMBEDDED, "pad_to_multiple: 32")
    with pytest.raises(ValueError, match=r"num_layers is not supported by embedded"):
        make(EMBEDDED, "num_layers: 4")
    with pytest.raises(ValueError, match=r"must be 256 x 256 pixels for .*; got \[256, 300\]"):
        sizes(EMBEDDED, SMALL, (256, 300))
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.float32, [1, None, None, 3])
        features = make(EMBEDDED, SMALL).extract(fed)
        assert features[-1].shape == (1, 1, 1, 25)
        session.run(tf1.global_variables_initializer())
        assert session.run(features[0], {fed: np.zeros([1, 256, 256, 3])}).shape[1] == 16
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be 256 x 256"):
            session.run(features[0], {fed: np.zeros([1, 256, 255, 3])})


@pytest.mark.usefixtures("tiny_pnasnet")
def test_pnasnet_scopes_and_options() -> None:
    text = f"{SMALL} num_layers: 4 pad_to_multiple: 32"
    with tf.Graph().as_default():
        found = build("ssd_pnasnet", text, (96, 130))
        # Padded to 96 x 160 pixels.
        assert [shape[1:] for shape in found] == [[6, 10, 16], [3, 5, 32], [2, 3, 51], [1, 2, 25]]
        names = variables()
        assert names["FeatureExtractor/conv0/weights"] == [3, 3, 3, 6]
        assert "FeatureExtractor/cell_stem_0/comb_iter_0/left/bn_sep_3x3_1/gamma" in names
        scope = "FeatureExtractor/SSD_feature_maps/Cell_11"
        # The multiplier is of the extra layers alone.
        assert names[f"{scope}_1_Conv2d_2_1x1_25/weights"] == [1, 1, 32, 25]
        assert names[f"{scope}_2_Conv2d_2_3x3_s2_51/weights"] == [3, 3, 25, 51]
        assert not [name for name in names if "cell_" in name and "BatchNorm" in name]
        assert len(names) == len(tf1.global_variables())


@pytest.mark.usefixtures("tiny_pnasnet")
def test_pnasnet_override_adds_the_message_to_its_own_batch_norms() -> None:
    text = f"""{OVERRIDE} num_layers: 2 conv_hyperparams {{ activation: NONE
        batch_norm {{ train: false epsilon: 0.25 }} }}"""
    with tf.Graph().as_default() as graph:
        build("ssd_pnasnet", text, (64, 64))
        assert "FeatureExtractor/conv0/BatchNorm/beta" in variables()
        assert "FeatureExtractor/conv0_bn/beta" in variables()
        norms = [op for op in graph.get_operations() if op.type == "FusedBatchNormV3"]
        assert {op.get_attr("epsilon") for op in norms} == {0.25}
        assert all(op.get_attr("is_training") for op in norms)
        assert not counted(tf1.GraphKeys.REGULARIZATION_LOSSES)


@pytest.mark.usefixtures("tiny_pnasnet")
@pytest.mark.parametrize("in_place", [True, False])
def test_pnasnet_updates_where_the_detector_says(in_place: bool) -> None:
    collection = None if in_place else tf1.GraphKeys.UPDATE_OPS
    with tf.Graph().as_default():
        with slim.arg_scope(list(BATCH_NORMS), updates_collections=collection):
            build("ssd_pnasnet", f"{HYPERPARAMS} num_layers: 2", (64, 64))
        moving = [name for name in variables() if "moving_" in name]
        assert counted(tf1.GraphKeys.UPDATE_OPS) == (0 if in_place else len(moving))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pnasnet_trains() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        extractor = make("ssd_pnasnet", f"{HYPERPARAMS} num_layers: 3")
        with tf1.variable_scope("FeatureExtractor"):
            maps = extractor.extract(tf.random.normal([2, 64, 64, 3]))
        assert [features.shape.as_list()[1:] for features in maps] == [
            [4, 4, 2160],
            [2, 2, 4320],
            [1, 1, 512],
        ]
        loss = tf.add_n([tf.reduce_mean(tf.square(features - 1.0)) for features in maps])
        variables_ = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables_)
        assert None not in gradients
        step = tf1.train.GradientDescentOptimizer(0.01).apply_gradients(zip(gradients, variables_))
        session.run(tf1.global_variables_initializer())
        assert np.isfinite(session.run([loss, step])[0])

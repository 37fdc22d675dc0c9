from __future__ import annotations

import functools

import numpy as np
import pytest
from estimator_det.extractors.base import EXTRACTORS, make_extractor
from google.protobuf import text_format

import estimator_det.extractors
import estimator_det.predictors
from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.predictors.base import make_predictor
from estimator_det.protos import box_predictor_pb2, ssd_pb2

SMALL = "depth_multiplier: 0.1 min_depth: 4"
NORM = "conv_hyperparams { batch_norm { scale: true } }"


def make(text: str = "", kind: str = "ssd_mobilenet_v1"):
    config = text_format.Parse(f"type: '{kind}' {text}", ssd_pb2.SsdFeatureExtractor())
    return make_extractor(config, is_training=True)


def shapes(text: str, size: tuple = (300, 300)) -> list:
    with tf.Graph().as_default():
        maps = make(text).extract(tf.zeros([2, *size, 3]))
        return [tuple(m.shape.as_list()) for m in maps]


def test_pixels_become_minus_one_to_one() -> None:
    pixels = tf.constant([0.0, 127.5, 255.0])
    np.testing.assert_allclose(make().normalize(pixels), [-1.0, 0.0, 1.0], atol=1e-6)


def test_feature_maps_at_full_depth() -> None:
    assert shapes("") == [
        (2, 19, 19, 512),
        (2, 10, 10, 1024),
        (2, 5, 5, 512),
        (2, 3, 3, 256),
        (2, 2, 2, 256),
        (2, 1, 1, 128),
    ]


def test_num_layers_and_depth() -> None:
    assert shapes(SMALL + " num_layers: 3") == [(2, 19, 19, 51), (2, 10, 10, 102), (2, 5, 5, 51)]


def test_pad_to_multiple() -> None:
    found = shapes(SMALL + " pad_to_multiple: 32", (70, 33))
    assert [s[1:3] for s in found[:2]] == [(6, 4), (3, 2)]


@pytest.mark.parametrize("text", ["use_depthwise: true", "use_explicit_padding: true"])
def test_options_keep_the_sizes(text: str) -> None:
    assert [s[1] for s in shapes(f"{SMALL} {text}")] == [19, 10, 5, 3, 2, 1]


def test_override_replaces_backbone_settings() -> None:
    text = """conv_hyperparams { initializer { truncated_normal_initializer { stddev: 0 } }
        regularizer { l2_regularizer { weight: 0 } } batch_norm { scale: false } }"""
    for override, penalties, gammas in (("false", 27, 27), ("true", 0, 0)):
        with tf.Graph().as_default():
            extractor = make(
                f"{SMALL} {text} override_base_feature_extractor_hyperparams: {override}"
            )
            with slim.arg_scope(list(BATCH_NORMS), updates_collections=None):
                extractor.extract(tf.zeros([1, 64, 64, 3]))
            names = [v.op.name for v in tf1.trainable_variables()]
            assert len([name for name in names if name.endswith("gamma")]) == gammas
            assert len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)) == penalties
            assert not tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)


def test_unknown_size_is_checked_at_run_time() -> None:
    extractor = make(SMALL + " num_layers: 1")
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.float32, [1, None, None, 3])
        features = extractor.extract(fed)[0]
        session.run(tf1.global_variables_initializer())
        assert session.run(features, {fed: np.zeros([1, 40, 33, 3])}).shape == (1, 3, 3, 51)
        with pytest.raises(tf.errors.InvalidArgumentError, match="at least 33 x 33"):
            session.run(features, {fed: np.zeros([1, 40, 32, 3])})


@functools.cache
def pyramid(kind: str, text: str, size: tuple = (128, 160)) -> tuple:
    """Shapes of the feature maps, and of variables by name."""
    with tf.Graph().as_default():
        maps = make(f"{SMALL} {NORM} {text}", kind).extract(tf.zeros([2, *size, 3]))
        variables = tf1.global_variables()
        shapes_by_name = {v.op.name: v.shape.as_list() for v in variables}
        assert len(shapes_by_name) == len(variables)
        return [tuple(m.shape.as_list()[1:]) for m in maps], shapes_by_name


def test_fpn() -> None:
    found, names = pyramid("ssd_mobilenet_v1_fpn", "")
    assert found == [(16, 20, 25), (8, 10, 25), (4, 5, 25), (2, 3, 25), (1, 2, 25)]
    layers = {name.split("/")[2] for name in names if name.startswith("MobilenetV1/fpn/")}
    assert layers == {
        *(f"projection_{n}" for n in (1, 2, 3)),
        *(f"smoothing_{n}" for n in (1, 2)),
        *(f"bottom_up_Conv2d_{n}" for n in (14, 15)),
    }
    assert names["MobilenetV1/fpn/projection_3/weights"] == [1, 1, 102, 25]
    assert names["MobilenetV1/fpn/projection_1/weights"] == [1, 1, 25, 25]


def test_fpn_levels() -> None:
    text = "fpn { min_level: 2 max_level: 6 additional_layer_depth: 64 }"
    found, names = pyramid("ssd_mobilenet_v1_fpn", text)
    assert found == [(32, 40, 6), (16, 20, 6), (8, 10, 6), (4, 5, 6), (2, 3, 6)]
    assert names["MobilenetV1/fpn/projection_1/weights"] == [1, 1, 12, 6]
    assert "MobilenetV1/fpn/bottom_up_Conv2d_15/weights" not in names


def test_light_fpn_splits_its_layers_and_narrows_the_last_of_the_backbone() -> None:
    found, names = pyramid("ssd_mobilenet_v1_fpn", "use_depthwise: true")
    assert [map_[2] for map_ in found] == [25] * 5
    assert names["MobilenetV1/Conv2d_12_pointwise/weights"] == [1, 1, 51, 51]
    assert names["MobilenetV1/Conv2d_13_pointwise/weights"] == [1, 1, 51, 25]
    for layer in ("smoothing_1", "smoothing_2", "bottom_up_Conv2d_14", "bottom_up_Conv2d_15"):
        parts = {n.split("/", 3)[3] for n in names if n.startswith(f"MobilenetV1/fpn/{layer}/")}
        norms = {f"BatchNorm/{n}" for n in ("beta", "gamma", "moving_mean", "moving_variance")}
        assert parts == {"depthwise_weights", "pointwise_weights", *norms}


def test_fpn_with_explicit_padding_takes_odd_sizes() -> None:
    found, names = pyramid("ssd_mobilenet_v1_fpn", "use_explicit_padding: true", (100, 90))
    assert [map_[:2] for map_ in found] == [(13, 12), (7, 6), (4, 3), (2, 2), (1, 1)]
    assert names == pyramid("ssd_mobilenet_v1_fpn", "")[1]
    with pytest.raises(ValueError, match="use_explicit_padding"):
        pyramid("ssd_mobilenet_v1_fpn", "", (100, 90))


def test_ppn_has_no_layers_of_its_own() -> None:
    found, names = pyramid("ssd_mobilenet_v1_ppn", "")
    sides = [(8, 10), (4, 5), (2, 3), (1, 2), (1, 1), (1, 1)]
    assert found == [(*side, 51) for side in sides]
    assert all(name.startswith("MobilenetV1/Conv2d_") for name in names)
    assert "MobilenetV1/Conv2d_13_pointwise/weights" in names
    assert pyramid("ssd_mobilenet_v1_ppn", "use_depthwise: true") == (found, names)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ssd_mobilenet_v1", "fpn { }"),
        ("ssd_mobilenet_v1_ppn", "fpn { }"),
        ("ssd_mobilenet_v1_fpn", "num_layers: 5"),
        ("ssd_mobilenet_v1_ppn", "num_layers: 5"),
        ("ssd_mobilenet_v1", "spaghettinet_arch_name: 'a'"),
        ("ssd_mobilenet_v1", "use_hardswish: true"),
    ],
)
def test_fields_of_other_types_are_refused(kind: str, text: str) -> None:
    field = text.split()[0].rstrip(":")
    with pytest.raises(ValueError, match=f"{field} is not supported by {kind}"):
        make(text, kind)


def test_a_flag_that_asks_for_nothing_is_no_error() -> None:
    make("replace_preprocessor_with_placeholder: false use_hardswish: false")


@pytest.mark.parametrize("kind", ["ssd_mobilenet_v1", "ssd_mobilenet_v1_fpn"])
def test_keras_names_mean_the_same(kind: str) -> None:
    assert EXTRACTORS.get(f"{kind}_keras") is EXTRACTORS.get(kind)


@pytest.mark.parametrize("kind", ["ssd_mobilenet_v1_fpn", "ssd_mobilenet_v1_ppn"])
def test_with_the_shared_predictor(kind: str) -> None:
    config = text_format.Parse(
        f"""weight_shared_convolutional_box_predictor {{
            depth: 8 num_layers_before_predictor: 2 kernel_size: 3 {NORM} }}""",
        box_predictor_pb2.BoxPredictor(),
    )
    with tf.Graph().as_default():
        maps = make(f"{SMALL} {NORM}", kind).extract(tf.zeros([2, 128, 128, 3]))
        predictor = make_predictor(
            config, 4, add_background_class=True, is_training=True, norm_is_training=True
        )
        raw = predictor.predict(maps, [6] * len(maps))
        cells = sum(m.shape[1] * m.shape[2] for m in maps)
        assert raw.box_encodings.shape == (2, 6 * cells, 4)
        assert raw.class_logits.shape == (2, 6 * cells, 5)
        names = [v.op.name for v in tf1.trainable_variables()]
    towers = [name for name in names if "PredictionTower" in name]
    # Kernels are shared, norms are not; maps of one depth need no projection.
    assert len([name for name in towers if name.endswith("weights")]) == 4
    assert len([name for name in towers if name.endswith("gamma")]) == 4 * len(maps)
    assert not [name for name in names if "ProjectionLayer" in name]


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"at least 33 x 33 pixels; got \[32, 40\]"):
        shapes(SMALL, (32, 40))
    with pytest.raises(ValueError, match="'ssd_mobilenet_v1'"):
        make(kind="ssd_mobilenet_v11")
    with pytest.raises(ValueError, match=r"num_layers: 7 is more than the 6 feature maps"):
        shapes("num_layers: 7")
    with pytest.raises(ValueError, match=r"pad_to_multiple must be 1 or more; got 0"):
        make("pad_to_multiple: 0")
    with pytest.raises(ValueError, match="replace_preprocessor_with_placeholder"):
        make("replace_preprocessor_with_placeholder: true")


def test_the_packages_fill_the_registries() -> None:
    assert estimator_det.extractors is not None and estimator_det.predictors is not None
    assert "ssd_mobilenet_v1" in EXTRACTORS

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors import DETECTORS, BatchDetections, Groundtruth, make_detector
from estimator_det.nets import inverted_residual
from estimator_det.protos import model_pb2
from tests import small_extractor
from tests.detectors.configs import (
    groundtruth,
    shapes_of_detections,
    small_config,
    small_detector,
)
from tests.graphs import evaluate, shapes

IMAGES = np.random.default_rng(0).uniform(0, 255, (2, 50, 70, 3)).astype(np.float32)


def test_preprocess_normalizes_before_it_pads():
    detector = small_detector(
        """image_resizer { keep_aspect_ratio_resizer {
            min_dimension: 48 max_dimension: 64 pad_to_max_dimension: true } }"""
    )
    inputs, shapes = detector.preprocess(tf.fill([2, 20, 40, 3], 255.0))
    assert inputs.shape == (2, 64, 64, 3)
    np.testing.assert_array_equal(shapes, [[32, 64, 3]] * 2)
    np.testing.assert_allclose(inputs[:, :32], 1.0, rtol=1e-6)
    np.testing.assert_array_equal(inputs[:, 32:], np.zeros((2, 32, 64, 3)))
    with pytest.raises(ValueError, match=r"float32 in 0\.\.255; given: uint8"):
        detector.preprocess(tf.zeros([2, 20, 40, 3], tf.uint8))


def run_small(overrides: str = "", is_training: bool = False) -> Any:
    detector = small_detector(overrides, is_training)
    with tf.Graph().as_default():
        tf1.set_random_seed(0)
        inputs, shapes = detector.preprocess(tf.constant(IMAGES))
        predictions = detector.predict(inputs, shapes)
        detections = detector.postprocess(predictions, shapes)
        kept = {k: v for k, v in predictions._asdict().items() if v is not None}
        return evaluate([kept, detections.to_dict()])


def test_small_detector():
    predictions, detections = run_small("return_raw_detections_during_predict: true")
    np.testing.assert_allclose(predictions["raw_boxes"], detections["raw_detection_boxes"])
    np.testing.assert_array_equal(predictions["raw_feature_map_indices"], [[0] * 48 + [1] * 8] * 2)
    assert predictions["box_encodings"].shape == (2, 4 * 4 * 3 + 2 * 2 * 2, 4)
    assert predictions["class_logits"].shape == (2, 56, 3)
    shapes = {name: value.shape for name, value in detections.items()}
    assert shapes.pop("detection_anchor_indices") == (2, 5)
    assert shapes == shapes_of_detections(5, num_raw=56, num_columns=3)
    assert all(value.dtype == np.float32 for value in detections.values())
    best = detections["raw_detection_scores"][:, :, 1:].max((1, 2))
    np.testing.assert_allclose(detections["detection_scores"][:, 0], best)
    index = detections["detection_anchor_indices"].astype(int)
    rows = np.take_along_axis(detections["raw_detection_scores"], index[:, :, None], axis=1)
    np.testing.assert_allclose(detections["detection_multiclass_scores"], rows)


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("field", ["explicit_background_class: true", ""])
def test_without_an_added_background(field):
    _, detections = run_small(f"add_background_class: false {field}")
    assert detections["raw_detection_scores"].shape == (2, 896, 2)
    allowed = {0.0} if field else {0.0, 1.0}
    assert set(detections["detection_classes"].reshape(-1)) <= allowed
    detector = small_detector(f"add_background_class: false {field}")
    assert detector.postprocessing.has_background == bool(field)


@pytest.fixture
def two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of two layers in place of the MobileNet."""
    small_extractor.use(monkeypatch)


@pytest.mark.usefixtures("two_layers")
def test_raw_boxes_have_static_shapes_where_images_have():
    detector = small_detector("return_raw_detections_during_predict: true", is_training=False)
    for size, expected in ((64, [2, 896]), (None, [2, None])):
        with tf.Graph().as_default():
            images = tf1.placeholder(tf.float32, [2, size, size, 3])
            predictions = detector.predict(images)
            assert predictions.raw_boxes.shape.as_list() == [*expected, 4]
            indices = predictions.raw_feature_map_indices
            assert indices.shape.as_list() == expected and indices.dtype == tf.int32
            # Three boxes on each cell of the first map, two on the others.
            by_map = tf.math.bincount(indices[1])
            pixels = {images: np.zeros([2, 64, 64, 3])}
            assert evaluate(by_map, pixels).tolist() == [768, 128]


@pytest.mark.usefixtures("two_layers")
def test_detections_are_relative_to_the_real_image():
    detector = small_detector(is_training=False)
    with tf.Graph().as_default():
        raw = detector.predict(tf.zeros([1, 64, 64, 3]))
        logits = np.full([1, 56, 3], -9.0, np.float32)
        logits[0, 7, 2] = 9.0
        anchors = np.tile([[0.9, 0.9, 1.0, 1.0]], [56, 1]).astype(np.float32)
        anchors[7] = [0.1, 0.2, 0.4, 1.0]
        raw = raw._replace(
            anchors=tf.constant(anchors),
            class_logits=tf.constant(logits),
            box_encodings=tf.zeros([1, 56, 4]),
        )
        half = detector.postprocess(raw, tf.constant([[32, 64, 3]]))
        whole = detector.postprocess(raw, None)
        half, whole = (
            BatchDetections(**evaluate({k: v for k, v in d._asdict().items() if v is not None}))
            for d in (half, whole)
        )
    np.testing.assert_allclose(half.boxes[0, 0], [0.2, 0.2, 0.8, 1.0], atol=1e-5)
    np.testing.assert_allclose(whole.boxes[0, 0], [0.1, 0.2, 0.4, 1.0], atol=1e-5)
    assert (half.classes[0, 0], half.anchor_indices[0, 0]) == (1.0, 7.0)
    assert half.num[0] == 2  # anchor 7 for each class; the other anchors lie in the padding
    np.testing.assert_allclose(half.raw_boxes, whole.raw_boxes)


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("changes", ["true", "false"])
def test_keypoints_have_the_frame_of_the_boxes(changes):
    """Codes of 0 are an anchor with a keypoint at its center; the real image is the upper half."""
    detector = small_detector(
        f"""box_coder {{ keypoint_box_coder {{ num_keypoints: 1 }} }}
        box_predictor {{ convolutional_box_predictor {{ box_code_size: 6 }} }}
        post_processing {{ batch_non_max_suppression {{ change_coordinate_frame: {changes} }} }}"""
    )
    with tf.Graph().as_default():
        predictions = detector.predict(tf.zeros([1, 64, 64, 3]))
        predictions = predictions._replace(box_encodings=0.0 * predictions.box_encodings)
        detections = detector.postprocess(predictions, tf.constant([[32, 64, 3]]))
        anchor = predictions.anchors[tf.cast(detections.anchor_indices[0, 0], tf.int32)]
        box, point, anchor = evaluate((detections.boxes[0, 0], detections.keypoints[0, 0], anchor))
    frame = np.array([0.5, 1.0] if changes == "true" else [1.0, 1.0])
    np.testing.assert_allclose(box, np.clip(anchor, 0, [0.5, 1, 0.5, 1]) / np.tile(frame, 2))
    np.testing.assert_allclose(point, [(anchor[:2] + anchor[2:]) / 2 / frame], rtol=1e-5)


def train_once(overrides: str) -> Dict[str, Any]:
    """How many updates there are, and what moves the moving means: the loss, then the updates."""
    detector = small_detector(overrides)
    with tf.Graph().as_default():
        inputs, shapes = detector.preprocess(tf.constant(IMAGES))
        losses = detector.loss(detector.predict(inputs, shapes), groundtruth()).terms
        means = [v for v in tf1.global_variables() if v.op.name.endswith("moving_mean")]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            values = session.run(losses)
            by_loss = [bool(np.any(value)) for value in session.run(means)]
            session.run(detector.updates())
            by_updates = [bool(np.any(value)) for value in session.run(means)]
        return {
            "updates": len(detector.updates()),
            "losses": values,
            "by_loss": by_loss,
            "by_updates": by_updates,
        }


DEPTHWISE_HEAD = """box_predictor { convolutional_box_predictor { use_depthwise: true
    conv_hyperparams { batch_norm {} } } }"""


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize(
    ("options", "num_updates", "by_loss", "by_updates"),
    [
        ("", 2 * (2 + 4), False, True),
        ("inplace_batchnorm_update: true", 0, True, True),
        ("freeze_batchnorm: true", 0, False, False),
        ("freeze_batchnorm: true inplace_batchnorm_update: true", 0, False, False),
    ],
)
def test_moving_averages(options, num_updates, by_loss, by_updates):
    found = train_once(f"{DEPTHWISE_HEAD} {options}")
    assert found["updates"] == num_updates
    assert set(found["by_loss"]) == {by_loss}
    assert set(found["by_updates"]) == {by_updates}
    assert all(np.isfinite(list(found["losses"].values())))


@pytest.mark.parametrize(
    ("text", "learns"),
    [
        ("feature_extractor { batch_norm_trainable: true }", (True, True)),
        ("feature_extractor { batch_norm_trainable: false }", (False, True)),
        ("feature_extractor { batch_norm_trainable: true } freeze_batchnorm: true", (False, False)),
    ],
)
def test_batch_norm_of_extractor_and_head_learns(text, learns):
    detector = small_detector(text)
    assert (detector.extractor.options.is_training, detector.norm_is_training) == learns
    # Frozen batch norm takes nothing else out of training, dropout for instance.
    assert detector.is_training and detector.predictor.head.is_training


@pytest.mark.usefixtures("two_layers")
def test_predicting_twice_shares_variables():
    detector = small_detector()
    with tf.Graph().as_default():
        for _ in range(2):
            detector.predict(tf.zeros([1, 64, 64, 3]))
        names = [v.op.name for v in tf1.global_variables()]
        assert len(names) == 2 + 2 * 4 + 8  # kernels, batch norms, heads
        kernels = [name for name in names if name.endswith("weights")]
        assert len(detector.regularization_losses()) == len(kernels)


@pytest.mark.usefixtures("two_layers")
def test_graph_does_not_grow_with_the_batch():
    sizes = []
    for batch in (1, 64):
        with tf.Graph().as_default() as graph:
            fed = {
                "boxes": tf1.placeholder(tf.float32, [batch, 3, 4]),
                "classes": tf1.placeholder(tf.float32, [batch, 3, 2]),
                "weights": tf1.placeholder(tf.float32, [batch, 3]),
                "valid": tf1.placeholder(tf.bool, [batch, 3]),
            }
            detector = small_detector()
            images = tf1.placeholder(tf.float32, [batch, 64, 64, 3])
            inputs, shapes = detector.preprocess(images)
            predictions = detector.predict(inputs, shapes)
            detector.loss(predictions, Groundtruth(**fed))
            detector.postprocess(predictions, shapes)
            sizes.append(len(graph.get_operations()))
    assert sizes[0] == sizes[1]


def test_restore_map():
    detector = small_detector()
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        detector.predict(tf.zeros([1, 64, 64, 3]))
        everything = {v.op.name: v for v in tf1.global_variables()}
        del everything["global_step"]
        inner = {k: v for k, v in everything.items() if k.startswith("FeatureExtractor/")}
        assert 0 < len(inner) < len(everything)
        assert detector.restore_map("detection") == inner
        assert detector.restore_map("detection", load_all=True) == everything
        assert detector.restore_map("full") == everything
        classification = detector.restore_map("classification")
        assert len(classification) == len(inner)
        name = "MobilenetV1/Conv2d_0/weights"
        assert classification[name] is inner[f"FeatureExtractor/{name}"]
        with pytest.raises(ValueError, match="'detections' is not known"):
            detector.restore_map("detections")


EFFICIENTDET = "feature_extractor { type: 'ssd_efficientnet-b0_bifpn_keras'"
BIFPN = "bifpn { num_iterations: 1 num_filters: 8 }"


def test_every_variable_of_a_classifier_is_restored():
    """From its name, with its shape; of a network with few channels."""
    mobilenet = inverted_residual
    with tf.Graph().as_default():
        with tf1.variable_scope("MobilenetV2"), mobilenet.arg_scope():
            depth = mobilenet.depth_function(0.1, 4)
            mobilenet.inverted_residual_net(tf.zeros([1, 64, 64, 3]), mobilenet.V2_LAYERS, depth)
        classifier = shapes()
    detector = small_detector(
        """feature_extractor { type: "ssd_mobilenet_v2" num_layers: 3 }
        anchor_generator { ssd_anchor_generator { num_layers: 3 } }"""
    )
    with tf.Graph().as_default():
        detector.predict(tf.zeros([1, 64, 64, 3]))
        found = {n: v.shape.as_list() for n, v in detector.restore_map("classification").items()}
    assert len(classifier) > 100 and classifier.items() <= found.items()
    own = found.keys() - classifier.keys()
    assert own and all(name.startswith("MobilenetV2/layer_19_") for name in own)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("feature_extractor { bifpn {} }", r"feature_extractor\.bifpn: is not supported"),
        (f"{EFFICIENTDET} bifpn {{}} }}",
         "bifpn.num_iterations: is 0. Remedy: set it to 1 or more"),
        (f"{EFFICIENTDET} {BIFPN} bifpn {{ combine_method: 'fast_atention' }} }}",
         "combine_method: 'fast_atention' is not known; did you mean 'fast_attention'"),
        (
            f"{EFFICIENTDET} {BIFPN} custom_parameters {{ fields {{ key: 'drop_connect_rate' "
            "value { number_value: 1 } } } }",
            "drop_connect_rate: is 1. Remedy: set it to at least 0 and less than 1",
        ),
        ("feature_extractor { type: 'ssd_mobilenet' }", "'ssd_mobilenet' is not known"),
        ("feature_extractor { num_layers: 3 }", "has 2 layers.*makes 3"),
    ],
)  # fmt: skip
def test_errors(overrides, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        small_detector(overrides).predict(tf.zeros([1, 64, 64, 3]))


def test_model_must_be_of_a_known_kind():
    assert "ssd" in DETECTORS
    with pytest.raises(ValueError, match="no model is chosen"):
        make_detector(model_pb2.DetectionModel(), is_training=False)
    config = small_config()
    config.experimental_model.name = "x"
    with pytest.raises(ValueError, match="'experimental_model' is not supported yet"):
        make_detector(config, is_training=False)

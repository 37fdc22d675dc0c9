from __future__ import annotations

import functools
from typing import Any, Dict, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors import make_detector, make_preprocessor
from estimator_det.detectors.base import ImageFrame
from estimator_det.detectors.two_stage.faster_rcnn import TwoStagePredictions, _with_raw_boxes
from estimator_det.detectors.two_stage.proposals import Regions, RpnOutput
from estimator_det.detectors.two_stage.region_stage import RegionOutput
from estimator_det.errors import ConfigError
from tests.detectors.configs import shapes_of_detections
from tests.detectors.two_stage import configs
from tests.detectors.two_stage.configs import MASKS, RFCN, groundtruth, small_detector
from tests.graphs import evaluate

IMAGES = np.random.default_rng(0).uniform(0, 255, (2, 50, 70, 3)).astype(np.float32)
EXTRA = """output_final_box_features: true output_final_box_rpn_features: true
  return_raw_detections_during_predict: true"""
HEAD = "second_stage_box_predictor"


@functools.cache
def run(overrides: str = "", is_training: bool = False) -> Tuple[Dict[str, Any], ...]:
    """Predictions, detections and loss terms of the small detector."""
    detector = small_detector(overrides, is_training)
    with tf.Graph().as_default():
        tf1.set_random_seed(0)
        inputs, shapes = detector.preprocess(tf.constant(IMAGES))
        labels = groundtruth(padding=1)
        predictions = detector.predict(inputs, shapes, labels if is_training else None)
        final = detector.postprocess(predictions, shapes)
        detections = final.to_dict()
        terms = detector.loss(predictions, labels, final).terms
        kept = {k: v for k, v in predictions._asdict().items() if v is not None}
        output = kept.pop("mask_output", None) or final.mask_output
        if output is not None:
            kept["mask_logits"] = output.logits
        for name in ("regions", "second_stage", "rpn"):
            parts = kept.pop(name, None)
            kept.update({f"{name}/{k}": v for k, v in (parts._asdict() if parts else {}).items()})
        return tuple(evaluate([kept, detections, terms]))


def test_padding_is_normalized_too():
    overrides = """image_resizer { keep_aspect_ratio_resizer {
        min_dimension: 48 max_dimension: 64 pad_to_max_dimension: true } }"""
    preprocess = make_preprocessor(configs.small_config(overrides))
    inputs, true_shapes = preprocess(tf.fill([1, 24, 64, 3], 255.0))
    np.testing.assert_allclose(inputs[0, -1, -1], [-123.68, -116.779, -103.939], rtol=1e-6)
    np.testing.assert_array_equal(true_shapes, [[24, 64, 3]])


def test_proposals_alone():
    predictions, detections, terms = run("number_of_stages: 1")
    assert predictions["rpn/box_encodings"].shape == (2, 8 * 8 * 3, 4)
    shapes = {name: value.shape for name, value in detections.items()}
    assert shapes == shapes_of_detections(12, num_raw=192, num_columns=2)
    best = detections["raw_detection_scores"][:, :, 1].max(axis=1)
    np.testing.assert_allclose(detections["detection_scores"][:, 0], best)
    assert sorted(terms) == ["Loss/RPNLoss/localization_loss", "Loss/RPNLoss/objectness_loss"]


def test_proposals_alone_are_fractions_of_the_real_image():
    detector = small_detector("number_of_stages: 1", is_training=False)
    anchors = tf.constant([[8.0, 4.0, 40.0, 32.0]])
    output = RpnOutput(tf.zeros([]), anchors, tf.zeros([1, 1, 4]), tf.constant([[[0.0, 9.0]]]))
    predictions = TwoStagePredictions(tf.zeros([1, 64, 64, 3]), (), output)
    found = detector.postprocess(predictions, tf.constant([[32, 64, 3]]))
    np.testing.assert_allclose(found.boxes[0, 0], [8 / 32, 4 / 64, 1, 0.5], rtol=1e-5)
    np.testing.assert_allclose(found.raw_boxes[0, 0], [8 / 32, 4 / 64, 40 / 32, 0.5], rtol=1e-5)


def test_regions_are_sampled_in_training_unless_the_hardest_are_mined():
    assert small_detector().second.sampler is not None
    assert small_detector("hard_example_miner {}").second.sampler is None
    assert small_detector(is_training=False).second.sampler is None


def test_a_loss_returns_the_counts_of_both_stages():
    boxes = tf.constant([[0.0, 0.0, 32.0, 32.0]])
    predictions = TwoStagePredictions(
        tf.zeros([2, 64, 64, 3]),
        (),
        RpnOutput(tf.zeros([]), boxes, tf.zeros([2, 1, 4]), tf.zeros([2, 1, 2])),
        regions=Regions(tf.stack([boxes, boxes]), tf.constant([1, 1])),
        second_stage=RegionOutput(tf.zeros([]), tf.zeros([2, 1, 2, 4]), tf.zeros([2, 1, 3])),
    )
    counts = small_detector("hard_example_miner {}").loss(predictions, groundtruth()).counts
    kinds = {name.partition("/")[0] for name in counts}
    assert kinds == {"TargetAssignment", "HardExampleMiner"}


@pytest.mark.parametrize("overrides", ["", RFCN], ids=["crops", "rfcn"])
def test_boxes_and_classes(overrides):
    predictions, detections, terms = run(overrides)
    assert predictions["second_stage/box_encodings"].shape == (2, 12, 2, 4)
    assert predictions["second_stage/class_logits"].shape == (2, 12, 3)
    shapes = {name: value.shape for name, value in detections.items()}
    assert shapes.pop("detection_anchor_indices") == (2, 5)
    assert shapes == shapes_of_detections(5, num_raw=12, num_columns=3)
    index = detections["detection_anchor_indices"].astype(int)
    rows = np.take_along_axis(detections["raw_detection_scores"], index[:, :, None], axis=1)
    np.testing.assert_allclose(detections["detection_multiclass_scores"], rows)
    assert all(np.isfinite(list(terms.values())))
    assert sorted(terms)[:2] == [
        "Loss/BoxClassifierLoss/classification_loss",
        "Loss/BoxClassifierLoss/localization_loss",
    ]


def test_training_samples_regions():
    predictions, _, terms = run(is_training=True)
    assert predictions["regions/boxes"].shape == (2, 6, 4)
    assert predictions["rpn/box_encodings"].shape[1] < 192  # without anchors across the border
    assert len(terms) == 4 and all(np.isfinite(list(terms.values())))


@pytest.mark.parametrize("num_masks", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_masks_of_detections(num_masks):
    agnostic = "second_stage_box_predictor { mask_rcnn_box_predictor { masks_are_class_agnostic: "
    overrides = f"{MASKS} {agnostic} true }} }}" if num_masks == 1 else MASKS
    predictions, detections, terms = run(overrides)
    logits = predictions["mask_logits"]
    assert logits.shape == (2, 5, num_masks, 6, 5)
    classes = detections["detection_classes"].astype(int) % num_masks
    own = np.take_along_axis(logits, classes[:, :, None, None, None], axis=2)[:, :, 0]
    masks = detections["detection_masks"]
    np.testing.assert_allclose(masks, 1 / (1 + np.exp(-own)), rtol=1e-5)
    assert np.isfinite(terms["Loss/BoxClassifierLoss/mask_loss"])


def test_masks_of_an_evaluation_need_detections_for_their_loss():
    detector = small_detector(MASKS, is_training=False)
    with tf.Graph().as_default():
        predictions = detector.predict(tf.zeros([2, 64, 64, 3]))
        with pytest.raises(ValueError, match="loss needs the detections of postprocess"):
            detector.loss(predictions, groundtruth())


def test_detections_are_those_of_the_given_predictions_and_shapes():
    detector = small_detector(MASKS, is_training=False)
    with tf.Graph().as_default():
        true_shapes = tf.constant([[24, 32, 3]] * 2)
        predictions = detector.predict(tf.constant(IMAGES[:, :48, :64]), true_shapes)
        second = predictions.second_stage._replace(
            box_encodings=tf.zeros([2, 12, 2, 4]),
            class_logits=tf.constant(np.tile(np.float32([0.0, 0.0, 9.0]), [2, 12, 1])),
        )
        boxes = tf.constant([[[0.0, 0.0, 12.0, 8.0]] * 12] * 2)
        changed = predictions._replace(
            regions=Regions(boxes, tf.constant([1, 1])), second_stage=second
        )
        detections = detector.postprocess(changed, true_shapes).to_dict()
        values, proposed = evaluate([detections, predictions.regions.boxes])
    assert (proposed.max(axis=(0, 1)) <= [24, 32, 24, 32]).all()
    assert values["detection_classes"][:, 0].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(values["detection_boxes"][:, 0], [[0, 0, 0.5, 0.25]] * 2, rtol=1e-5)
    assert (values["detection_masks"][:, 0].max(axis=(1, 2)) > 0).all()


def test_further_outputs():
    predictions, detections, _ = run(EXTRA)
    assert detections["detection_features"].shape == (2, 5, 12)
    assert detections["cropped_rpn_box_features"].shape == (2, 5, 2, 2, 8)
    assert predictions["raw_boxes"].shape == (2, 12, 2, 4)
    assert predictions["raw_feature_map_indices"].tolist() == [[0] * 12] * 2
    # The box of each region's best class is among the boxes of all classes.
    distance = np.abs(
        np.clip(predictions["raw_boxes"], 0, 1) - detections["raw_detection_boxes"][:, :, None]
    )
    assert distance.max(axis=3).min(axis=2).max() < 1e-6


def test_detections_of_padded_images_are_cropped_where_they_are():
    outputs = "output_final_box_rpn_features: true output_final_box_features: true"
    detector = small_detector(outputs, is_training=False)
    random = np.random.default_rng(0)
    with tf.Graph().as_default():
        features = tf.constant(random.normal(size=[1, 8, 8, 8]).astype(np.float32))
        boxes = tf.constant([[[8.0, 4.0, 40.0, 28.0]] * 12])
        predictions = TwoStagePredictions(
            tf.zeros([1, 64, 64, 3]),
            (features,),
            RpnOutput(*[tf.zeros([])] * 4),
            regions=Regions(boxes, tf.constant([1])),
            second_stage=RegionOutput(tf.zeros([]), tf.zeros([1, 12, 2, 4]), tf.zeros([1, 12, 3])),
        )
        true_shapes = tf.constant([[64, 32, 3]])
        found = detector.postprocess(predictions, true_shapes)
        raw = _with_raw_boxes(predictions, ImageFrame(predictions.inputs, true_shapes)).raw_boxes
        crops = detector.second.stage.crop(
            predictions.feature_maps, boxes[:, :1], predictions.inputs, None
        )
        cells = detector.second.stage.box_features(crops, None)
        first = [found.boxes[0, 0], found.cropped_features[0, 0], found.features[0, 0]]
        found_boxes, ours, average, raw, expected, cells = evaluate([*first, raw, crops[0], cells])
    np.testing.assert_allclose(found_boxes, [0.125, 0.125, 0.625, 0.875], rtol=1e-5)
    np.testing.assert_allclose(raw[0, 0], [[0.125, 0.125, 0.625, 0.875]] * 2, rtol=1e-5)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(average, cells[0].mean(axis=(0, 1)), rtol=1e-4, atol=1e-5)


def test_variables_are_shared_and_restored_by_their_stage():
    detector = small_detector(MASKS, is_training=False)
    with tf.Graph().as_default():
        for _ in range(2):
            detector.postprocess(detector.predict(tf.zeros([1, 64, 64, 3])))
        assert len(detector.regularization_losses()) == 2  # the extractor's kernels, each once
        everything = detector.restore_map("full")
        assert detector.restore_map("detection", load_all=True) == everything
        inner = detector.restore_map("detection")
        assert set(inner) < set(everything)
        assert all("StageFeatureExtractor/" in name for name in inner)
        renamed = detector.restore_map("classification")
        assert sorted(renamed) == sorted(name.partition("/")[2] for name in inner)


def test_images_without_boxes_and_sizes_known_at_run_time():
    detector = small_detector(MASKS)
    with tf.Graph().as_default():
        images = tf1.placeholder(tf.float32, [None, None, None, 3])
        labels = groundtruth()
        given = {name: part for name, part in labels._asdict().items() if part is not None}
        labels = labels._replace(**{name: part[:, :0] for name, part in given.items()})
        predictions = detector.predict(images, None, labels)
        terms = detector.loss(predictions, labels).terms
        total = tf.add_n(list(terms.values()))
        gradients = tf.gradients(total, tf1.trainable_variables())
        pixels = np.ones([2, 72, 56, 3], np.float32)
        values, gradients = evaluate([terms, gradients], {images: pixels})
    assert values["Loss/BoxClassifierLoss/localization_loss"] == 0
    assert values["Loss/BoxClassifierLoss/mask_loss"] == 0
    assert values["Loss/BoxClassifierLoss/classification_loss"] > 0
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (f"{RFCN} number_of_stages: 3", "predict_instance_masks: is false, and a third stage"),
        ("second_stage_batch_size: 13", "must not be above first_stage_max_proposals, 12; given"),
        ("initial_crop_size: 0", "initial_crop_size: must be 1 or more; given: 0"),
        ("maxpool_kernel_size: 5", "must not be above initial_crop_size, 4; given: 5"),
        ("maxpool_stride: 0", "maxpool_stride: must be 1 or more; given: 0"),
        ("first_stage_anchor_generator { ssd_anchor_generator {} }", "needs anchors in pixels"),
        (f"{RFCN} output_final_box_features: true", "needs 2 or 3 stages and a mask_rcnn_box"),
        ("number_of_stages: 1 output_final_box_rpn_features: true", "output_final_box_rpn"),
        ("number_of_stages: 1 return_raw_detections_during_predict: true", "needs 2 or 3 stages"),
        (f"{HEAD} {{ convolutional_box_predictor {{}} }}",
         "'convolutional_box_predictor' is not supported yet.*: supported: mask_rcnn_box"),
        (f"{HEAD} {{ mask_rcnn_box_predictor {{ box_code_size: 5 }} }}",
         "box_code_size: must be 4; given: 5"),
        (f"{HEAD} {{ rfcn_box_predictor {{ crop_height: 10 }} }}",
         "crop_height: must be a multiple of num_spatial_bins_height"),
    ],
)  # fmt: skip
def test_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        make_detector(configs.small_config(overrides), is_training=True)


@pytest.mark.parametrize(
    "overrides", ["", pytest.param(RFCN, marks=pytest.mark.exhaustive)], ids=["crops", "rfcn"]
)
def test_size_of_the_graph_does_not_depend_on_the_batch(overrides):
    sizes = []
    detector = configs.small_detector(f"num_classes: 90 {overrides}", is_training=False)
    for batch in (1, 8):
        with tf.Graph().as_default() as graph:
            predictions = detector.predict(tf.zeros([batch, 64, 64, 3]))
            before = len(graph.get_operations())
            detector.postprocess(predictions)
            sizes.append((before, len(graph.get_operations()) - before))
    assert sizes[0] == sizes[1]
    assert sizes[1][1] < 3000

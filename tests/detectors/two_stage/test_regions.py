"""The second stage: targets, samples, losses and detections of regions, by hand; its options."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from estimator_det.boxes.matching import IGNORED, UNMATCHED
from estimator_det.compat import tf
from estimator_det.detectors.base import ImageFrame
from estimator_det.detectors.two_stage import proposals, region_stage, regions
from estimator_det.detectors.two_stage.proposals import Regions
from estimator_det.detectors.two_stage.region_stage import RegionOutput
from tests.detectors.two_stage.configs import LABELS, SCENE, small_config
from tests.faults import faults

TF2_TYPE = "faster_rcnn_resnet50_keras"
INPUTS = tf.zeros([1, 100, 200, 3])
NORMALIZED = LABELS._replace(boxes=LABELS.boxes / [100.0, 200.0, 100.0, 200.0])


def config(overrides: str = "") -> Any:
    return small_config(overrides).faster_rcnn


def test_stages_as_configured():
    text = """use_matmul_crop_and_resize: true
        initial_crop_size: 14 maxpool_kernel_size: 3 maxpool_stride: 2"""
    extractor: Any = types.SimpleNamespace(recipe=types.SimpleNamespace(is_tf2_line=False))
    stage = region_stage.make_region_stage(config(text), extractor, is_training=False)
    assert (stage.crop_size, stage.pool_size, stage.pool_stride, stage.matmul) == (14, 3, 2, True)
    text += """ second_stage_box_predictor { rfcn_box_predictor { depth: 4 crop_height: 4
        crop_width: 10 num_spatial_bins_height: 2 num_spatial_bins_width: 5 } }"""
    head = region_stage.make_region_stage(config(text), extractor, is_training=False).head
    assert (head.depth, head.crop_size, head.num_bins, head.matmul) == (4, (4, 10), (2, 5), True)
    refusal = "rfcn_box_predictor: is not supported by networks of the TF2 line"
    assert refusal not in faults(config(text))
    assert refusal in faults(config(f"{text} feature_extractor {{ type: '{TF2_TYPE}' }}"))


def test_regions_have_the_class_of_their_match():
    for matmul in ("true", "false"):
        assigner = regions.make_region_assigner(config(f"use_matmul_gather_in_matcher: {matmul}"))
        boxes = tf.constant([[[0.0, 0.0, 50.0, 90.0], [0.0, 0.0, 20.0, 50.0], [0.0] * 4]])
        found = regions.assign_classes(assigner, boxes, LABELS)
        assert found.class_targets.numpy().tolist() == [[[0, 0, 1], [1, 0, 0], [1, 0, 0]]]
        assert found.box_weights.numpy().tolist() == [[1, 0, 0]]
        # 10 times the shift of 5 pixels in widths of 90, 5 times log(100 / 90).
        expected = [0, 10 * 5 / 90, 0, 5 * np.log(100 / 90)]
        np.testing.assert_allclose(found.box_targets[0, 0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        # Of IoU 1, 0.71, 0.69, 0.51, 0.49, 0.31 and 0.29 with the box.
        (regions.make_region_loss, [0, 0, 0, 0, UNMATCHED, UNMATCHED, UNMATCHED]),
        (proposals.make_rpn_loss, [0, 0, IGNORED, IGNORED, IGNORED, IGNORED, UNMATCHED]),
    ],
)
def test_thresholds_of_both_stages(stage, expected):
    heights = [1.0, 0.71, 0.69, 0.51, 0.49, 0.31, 0.29]
    boxes = tf.constant([[0.0, 0.0, 100.0 * height, 100.0] for height in heights])
    whole = LABELS._replace(
        boxes=tf.constant([[[0.0, 0.0, 100.0, 100.0]]]),
        classes=tf.constant([[[0.0, 1.0]]]),
        weights=tf.ones([1, 1]),
        valid=tf.constant([[True]]),
    )
    targets = regions.assign_classes(stage(config()).assigner, boxes, whole)
    assert targets.matches.numpy()[0].tolist() == expected


def test_regions_of_boxes_without_weight_are_not_sampled():
    sampler = regions.make_region_sampler(config("second_stage_batch_size: 4"))
    boxes = tf.constant([[[0.0, 0.0, 50.0, 100.0], [60.0, 0.0, 70.0, 10.0], [0.0] * 4, [0.0] * 4]])
    light = NORMALIZED._replace(weights=tf.constant([[0.0, 1.0, 0.0]]))
    found = sampler(Regions(boxes, tf.constant([2])), light, INPUTS)
    assert found.num.numpy().tolist() == [1]
    np.testing.assert_array_equal(found.boxes[0, 0], boxes[0, 1])


@pytest.mark.parametrize(("share", "positives"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4)])
def test_share_of_objects_in_a_sample(share, positives):
    overrides = f"second_stage_batch_size: 4 second_stage_balance_fraction: {share}"
    boxes = [[0.0, 0.0, 50.0, 100.0 - n] for n in range(5)]
    boxes += [[60.0 + n, 0.0, 70.0 + n, 10.0] for n in range(5)]
    found = regions.make_region_sampler(config(overrides))(
        Regions(tf.constant([boxes]), tf.constant([10])), NORMALIZED, INPUTS
    )
    assert found.num.numpy().tolist() == [4]
    assert int(np.sum(found.boxes.numpy()[0, :, 0] == 0.0)) == positives


def test_a_sample_keeps_the_order_and_is_padded():
    sampler = regions.make_region_sampler(
        config("second_stage_batch_size: 4 second_stage_balance_fraction: 0.5")
    )
    boxes = np.zeros([1, 8, 4], np.float32)
    boxes[0, :6] = [[10 + n, 10, 20 + n, 30] for n in range(6)]  # background
    boxes[0, [1, 3]] = [[0, 0, 50, 100], [0, 0, 50, 99]]
    padded = Regions(tf.constant(boxes), tf.constant([6]))
    found = sampler(padded, NORMALIZED, INPUTS)
    assert found.num.numpy().tolist() == [4] and found.boxes.shape == (1, 4, 4)
    rows = [boxes[0].tolist().index(box) for box in found.boxes.numpy()[0].tolist()]
    assert rows == sorted(rows) and {1, 3} <= set(rows)
    few = sampler(Regions(padded.boxes, tf.constant([2])), NORMALIZED, INPUTS)
    assert few.num.numpy().tolist() == [2] and not np.any(few.boxes[0, 2:])
    np.testing.assert_array_equal(few.boxes[0, :2], boxes[0, :2])


def test_a_sample_needs_groundtruth():
    sampler = regions.make_region_sampler(config())
    with pytest.raises(ValueError, match="needs groundtruth"):
        sampler(Regions(tf.zeros([1, 8, 4]), tf.constant([8])), None, INPUTS)


LOG2, LOG3 = np.log(2), np.log(3)


def region_terms(overrides: str = "", num: tuple = (2, 1), **labels: tf.Tensor) -> list:
    boxes = tf.constant([[[0.0, 0, 40, 40], [50, 50, 60, 60], [0, 0, 40, 40]]] * 2)
    codes = np.full([2, 3, 2, 4], 1e6, np.float32)
    codes[0, 0, 1] = [2.0, 0.5, 0.0, 0.0]
    logits = np.zeros([2, 3, 3], np.float32)
    logits[:, 2] = [0, 50, 0]
    output = RegionOutput(tf.zeros([]), tf.constant(codes), tf.constant(logits))
    loss = regions.make_region_loss(config(overrides))
    found = loss(Regions(boxes, tf.constant(num)), output, SCENE._replace(**labels))
    names = (regions.REGION_LOCALIZATION, regions.REGION_CLASSIFICATION)
    return [float(found.terms[name]) for name in names]


def test_region_loss_by_hand():
    # Padding rows do not count; each image divides by its regions, and counts half.
    np.testing.assert_allclose(region_terms(), [1.625 / 2 / 2, LOG3], rtol=1e-6)
    np.testing.assert_allclose(region_terms(num=(2, 0)), [1.625 / 2 / 2, LOG3 / 2], rtol=1e-6)
    for first, second, expected in (
        (True, False, [1.625 / 4, LOG3 / 2]),
        (False, True, [0, LOG3 / 2]),
    ):
        found = region_terms(is_annotated=tf.constant([first, second]))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_region_loss_as_configured():
    weights = "second_stage_localization_loss_weight: 2 second_stage_classification_loss_weight: 3"
    np.testing.assert_allclose(region_terms(weights), [1.625 / 2, 3 * LOG3], rtol=1e-6)
    # Three sigmoids a region.
    sigmoid = "second_stage_classification_loss { weighted_sigmoid {} }"
    np.testing.assert_allclose(region_terms(sigmoid)[1], 3 * LOG2, rtol=1e-6)


def test_the_hardest_regions():
    # One region of each image; the wrong padding row is not among them.
    mined = region_terms(
        "hard_example_miner { num_hard_examples: 1 loss_type: BOTH iou_threshold: 0.9 }"
    )
    np.testing.assert_allclose(mined, [1.625 / 4, LOG3 / 4 + LOG3 / 2], rtol=1e-6)
    # The hardest region of the first image suppresses the other one with the same box.
    _, mined_classes = region_terms(
        "hard_example_miner { num_hard_examples: 3 loss_type: CLASSIFICATION iou_threshold: 0.9 }",
        num=(3, 1),
    )
    np.testing.assert_allclose(mined_classes, (50 + LOG3) / 6 + LOG3 / 2, rtol=1e-6)
    weights = "second_stage_localization_loss_weight: 5 second_stage_classification_loss_weight: 2"
    miner = regions.make_region_loss(config(f"{weights} hard_example_miner {{}}")).miner
    assert (miner.loc_weight, miner.cls_weight) == (5, 2)


def test_code_of_the_target_class():
    codes = tf.reshape(tf.range(24.0), [1, 2, 3, 4])
    targets = tf.one_hot([[2, 0]], 4)
    found = regions.select_class_codes(codes, targets)
    np.testing.assert_array_equal(found, [[[4, 5, 6, 7], [0, 0, 0, 0]]])
    np.testing.assert_array_equal(
        regions.select_class_codes(codes[:, :, :1], targets), codes[:, :, 0]
    )


@pytest.mark.parametrize("change", ["true", "false"])
def test_detections_are_fractions_of_the_real_image_in_any_case(change):
    options = config(
        "second_stage_post_processing { batch_non_max_suppression { "
        f"change_coordinate_frame: {change} }} }}"
    ).second_stage_post_processing
    boxes = Regions(tf.constant([[[0.0, 0.0, 10.0, 5.0]]]), tf.constant([1]))
    output = RegionOutput(tf.zeros([]), tf.zeros([1, 1, 1, 4]), tf.constant([[[0.0, 9.0, 0.0]]]))
    frame = ImageFrame(tf.zeros([1, 40, 40, 3]), tf.constant([[20, 20, 3]]))
    postprocessing = regions.make_postprocessing(options)
    found = regions.detect_in_regions(postprocessing, boxes, output, frame)
    np.testing.assert_allclose(found.boxes[0, 0], [0, 0, 0.5, 0.25], atol=1e-6)

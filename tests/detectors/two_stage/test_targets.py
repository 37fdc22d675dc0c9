from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.boxes.matching import IGNORED, UNMATCHED
from estimator_det.compat import tf
from estimator_det.detectors.base import Groundtruth
from estimator_det.detectors.two_stage import targets
from estimator_det.detectors.two_stage.outputs import Regions
from tests.detectors.two_stage.configs import small_config

INPUTS = tf.zeros([1, 100, 200, 3])
# In pixels: 0 to 50 in y, 0 to 100 in x; and the lower right quarter.
LABELS = Groundtruth(
    boxes=tf.constant([[[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]),
    classes=tf.constant([[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]]),
    weights=tf.constant([[1.0, 1.0, 0.0]]),
    valid=tf.constant([[True, True, False]]),
)
IN_PIXELS = targets.convert_boxes_to_pixels(LABELS, INPUTS)


def config(overrides: str = "") -> object:
    return small_config(overrides).faster_rcnn


def test_anchors_are_objects_background_or_ignored() -> None:
    assigner = targets.make_anchor_assigner(config())
    anchors = tf.constant(
        [
            [0.0, 0.0, 50.0, 100.0],  # the first box
            [0.0, 0.0, 50.0, 200.0],  # half of it in common: neither
            [60.0, 0.0, 90.0, 40.0],  # background
            [60.0, 100.0, 70.0, 110.0],  # far too small, but the best of the second box
        ]
    )
    found = targets.assign_objects(assigner, anchors, IN_PIXELS)
    assert found.matches.numpy().tolist() == [[0, IGNORED, UNMATCHED, 1]]
    assert found.class_targets.numpy()[0, :, 0].tolist() == [1, 0, 0, 1]
    assert found.class_weights.numpy()[0, :, 0].tolist() == [1, 0, 1, 1]
    np.testing.assert_allclose(found.box_targets[0, 0], np.zeros(4), atol=1e-6)


def test_regions_have_the_class_of_their_match() -> None:
    for matmul in ("true", "false"):
        assigner = targets.make_region_assigner(config(f"use_matmul_gather_in_matcher: {matmul}"))
        boxes = tf.constant([[[0.0, 0.0, 50.0, 90.0], [0.0, 0.0, 20.0, 50.0], [0.0] * 4]])
        found = targets.assign_classes(assigner, boxes, IN_PIXELS)
        assert found.class_targets.numpy().tolist() == [[[0, 0, 1], [1, 0, 0], [1, 0, 0]]]
        assert found.box_weights.numpy().tolist() == [[1, 0, 0]]
        # 10 times the shift of 5 pixels in widths of 90, 5 times log(100 / 90).
        expected = [0, 10 * 5 / 90, 0, 5 * np.log(100 / 90)]
        np.testing.assert_allclose(found.box_targets[0, 0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # Of IoU 1, 0.71, 0.69, 0.51, 0.49, 0.31 and 0.29 with the box.
        (targets.make_region_assigner, [0, 0, 0, 0, UNMATCHED, UNMATCHED, UNMATCHED]),
        (targets.make_anchor_assigner, [0, 0, IGNORED, IGNORED, IGNORED, IGNORED, UNMATCHED]),
    ],
)
def test_thresholds_of_both_stages(make: Any, expected: List[int]) -> None:
    heights = [1.0, 0.71, 0.69, 0.51, 0.49, 0.31, 0.29]
    boxes = tf.constant([[0.0, 0.0, 100.0 * height, 100.0] for height in heights])
    whole = LABELS._replace(
        boxes=tf.constant([[[0.0, 0.0, 100.0, 100.0]]]),
        classes=tf.constant([[[0.0, 1.0]]]),
        weights=tf.ones([1, 1]),
        valid=tf.constant([[True]]),
    )
    found = targets.assign_classes(make(config()), boxes, whole)
    assert found.matches.numpy()[0].tolist() == expected


@pytest.mark.parametrize("make", [targets.make_region_assigner, targets.make_anchor_assigner])
def test_rows_are_fetched_by_products_if_asked_for(make: Any) -> None:
    assert make(config("use_matmul_gather_in_matcher: true")).matcher.use_matmul_gather
    assert not make(config()).matcher.use_matmul_gather


def test_regions_of_boxes_without_weight_are_not_sampled() -> None:
    sampler = targets.make_region_sampler(config("second_stage_batch_size: 4"))
    boxes = tf.constant([[[0.0, 0.0, 50.0, 100.0], [60.0, 0.0, 70.0, 10.0], [0.0] * 4, [0.0] * 4]])
    light = LABELS._replace(weights=tf.constant([[0.0, 1.0, 0.0]]))
    found = sampler(Regions(boxes, tf.constant([2])), light, INPUTS)
    assert found.num.numpy().tolist() == [1]
    np.testing.assert_array_equal(found.boxes[0, 0], boxes[0, 1])


@pytest.mark.parametrize(("share", "positives"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4)])
def test_share_of_objects_in_a_sample(share: float, positives: int) -> None:
    overrides = f"second_stage_batch_size: 4 second_stage_balance_fraction: {share}"
    boxes = [[0.0, 0.0, 50.0, 100.0 - n] for n in range(5)]
    boxes += [[60.0 + n, 0.0, 70.0 + n, 10.0] for n in range(5)]
    regions = Regions(tf.constant([boxes]), tf.constant([10]))
    found = targets.make_region_sampler(config(overrides))(regions, LABELS, INPUTS)
    assert found.num.numpy().tolist() == [4]
    assert int(np.sum(found.boxes.numpy()[0, :, 0] == 0.0)) == positives


def test_a_sample_keeps_the_order_and_is_padded() -> None:
    sampler = targets.make_region_sampler(
        config("second_stage_batch_size: 4 second_stage_balance_fraction: 0.5")
    )
    boxes = np.zeros([1, 8, 4], np.float32)
    boxes[0, :6] = [[10 + n, 10, 20 + n, 30] for n in range(6)]  # background
    boxes[0, [1, 3]] = [[0, 0, 50, 100], [0, 0, 50, 99]]
    proposals = Regions(tf.constant(boxes), tf.constant([6]))
    found = sampler(proposals, LABELS, INPUTS)
    assert found.num.numpy().tolist() == [4] and found.boxes.shape == (1, 4, 4)
    rows = [boxes[0].tolist().index(box) for box in found.boxes.numpy()[0].tolist()]
    assert rows == sorted(rows) and {1, 3} <= set(rows)
    few = sampler(Regions(proposals.boxes, tf.constant([2])), LABELS, INPUTS)
    assert few.num.numpy().tolist() == [2] and not np.any(few.boxes[0, 2:])
    np.testing.assert_array_equal(few.boxes[0, :2], boxes[0, :2])


def test_a_sample_needs_groundtruth() -> None:
    sampler = targets.make_region_sampler(config())
    with pytest.raises(ValueError, match="needs groundtruth"):
        sampler(Regions(tf.zeros([1, 8, 4]), tf.constant([8])), None, INPUTS)

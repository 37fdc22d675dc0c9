from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.detectors.base import Groundtruth
from estimator_det.detectors.two_stage import masks
from estimator_det.detectors.two_stage.masks import MaskOutput
from estimator_det.detectors.two_stage.proposals import Regions
from tests.conftest import golden_component
from tests.detectors.two_stage.configs import MASKS, small_config

INPUTS = tf.zeros([1, 40, 40, 3])


def labels(size: int) -> Groundtruth:
    """A box of the whole image, whose lower half is its masks."""
    masks = np.zeros([1, 1, size, size], np.float32)
    masks[:, :, size // 2 :] = 1.0
    return Groundtruth(
        boxes=tf.constant([[[0.0, 0.0, 40.0, 40.0]]]),
        classes=tf.constant([[[0.0, 1.0]]]),
        weights=tf.ones([1, 1]),
        valid=tf.constant([[True]]),
        masks=tf.constant(masks),
    )


def loss(groundtruth: Groundtruth, overrides: str = "") -> float:
    """Of two matched regions, background and padding; the class's masks are right below."""
    stage = masks.make_mask_stage(small_config(MASKS + overrides).faster_rcnn, is_training=True)
    boxes = tf.constant([[[0.0, 0, 40, 40], [0, 0, 38, 40], [0, 0, 5, 5], [0, 0, 40, 40]]])
    logits = np.full([1, 4, 2, 6, 5], 1e6, np.float32)
    logits[:, :2, 1, :3] = 0.0  # undecided above
    regions = Regions(boxes, tf.constant([3]))
    value, _ = stage.loss(MaskOutput(regions, tf.constant(logits)), groundtruth, INPUTS)
    return float(value)


def test_loss_by_hand():
    # log 2 in the upper half of the pixels, nothing in the lower half.
    np.testing.assert_allclose(loss(labels(40)), np.log(2) / 2, rtol=1e-5)
    weight = "second_stage_mask_prediction_loss_weight: 4"
    np.testing.assert_allclose(loss(labels(40), weight), 2 * np.log(2), rtol=1e-5)


def test_masks_of_another_size():
    np.testing.assert_allclose(loss(labels(20)), np.log(2) / 2, rtol=1e-5)
    # Not resized, a mask of 2 x 2 pixels is blurred from its upper to its lower row.
    assert loss(labels(2), "resize_masks: false") > loss(labels(2))


def test_groundtruth_masks_cropped_by_products():
    matmul = "use_matmul_crop_and_resize: true"
    np.testing.assert_allclose(loss(labels(40), matmul), loss(labels(40)), rtol=1e-5)
    uneven = labels(40)
    uneven = uneven._replace(masks=tf.concat([uneven.masks[:, :, 5:], uneven.masks[:, :, :5]], 2))
    np.testing.assert_allclose(loss(uneven, matmul), loss(uneven), rtol=1e-5)


@pytest.mark.parametrize("matmul", ["true", "false"])
def test_a_region_learns_the_mask_of_its_match(matmul):
    one = labels(40)
    other_first = one._replace(
        boxes=tf.concat([tf.constant([[[30.0, 30.0, 40.0, 40.0]]]), one.boxes], 1),
        classes=tf.tile(one.classes, [1, 2, 1]),
        weights=tf.ones([1, 2]),
        valid=tf.constant([[True, True]]),
        masks=tf.concat([1.0 - one.masks, one.masks], 1),
    )
    overrides = f"use_matmul_crop_and_resize: {matmul}"
    np.testing.assert_allclose(loss(other_first, overrides), np.log(2) / 2, rtol=1e-5)


def test_golden_crops():
    _, arrays = golden_component("crops")
    images, boxes = arrays["crop_resize_in"], arrays["crop_boxes"]  # [2, 8, 10, 3], [2, 3, 4]
    # Each channel serves as a mask that every box cuts.
    crops = masks.crop_masks(
        tf.constant(images.transpose(0, 3, 1, 2)),
        tf.constant(np.repeat(boxes, 3, axis=1)),
        (4, 4),
        tf.constant(np.tile(np.int32([0, 1, 2]), [2, 3])),
    )
    crops = tf.transpose(tf.reshape(crops, [2, 3, 3, 4, 4]), [0, 1, 3, 4, 2])
    np.testing.assert_allclose(crops, arrays["native_crop_4x4"], rtol=1e-5, atol=1e-6)


def test_images_that_are_not_annotated():
    assert loss(labels(40)._replace(is_annotated=tf.constant([False]))) == 0.0

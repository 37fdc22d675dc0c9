from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment import operations
from inputs.augment.crop import size_of_aspect_ratio
from inputs.sample import Sample
from tests.inputs.augment.helpers import sample_of, small_sample


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_colours_are_the_first_three_channels(channels):
    image = np.random.default_rng(1).integers(0, 256, (6, 7, channels)).astype(np.uint8)
    names = ["auto_contrast", "equalize"]
    changes = [getattr(operations, name) for name in names]
    changes += [lambda rgb, c=c: c(rgb, 1.7) for c in (operations.color, operations.contrast,
                                                        operations.sharpness)]  # fmt: skip
    for change in changes:
        changed = np.array(operations.change_rgb(tf.constant(image), change))
        assert changed.shape == image.shape and changed.dtype == np.uint8
        np.testing.assert_array_equal(changed[..., 3:], image[..., 3:])


@pytest.mark.parametrize(
    ("size", "ratio", "cut"),
    [([4, 4], 100.0, [1, 4]), ([4, 4], 0.01, [4, 1]), ([6, 9], 2.0, [4, 9]), ([6, 9], 0.5, [6, 3])],
)
def test_a_crop_to_an_aspect_ratio_has_a_row_and_a_column(size, ratio, cut):
    assert size_of_aspect_ratio(tf.constant(size), ratio).numpy().tolist() == cut


def test_boxes_that_leave_the_image_stay_at_its_edge():
    for pixels, box in ((9.0, [0.0, 0.0, 0.5, 0.05]), (-9.0, [0.0, 0.95, 0.5, 1.0])):
        moved = operations.translate_x(small_sample(), pixels)
        np.testing.assert_allclose(moved.boxes, [box], atol=1e-6)
        np.testing.assert_allclose(moved.area, [0.0])


def test_a_box_within_a_pixel_keeps_that_pixel():
    sample = small_sample()._replace(boxes=tf.constant([[0.55, 0.3, 0.9, 0.45]]))
    moved = operations.translate_x(sample, -1.0)
    np.testing.assert_allclose(moved.boxes, [[0.5, 0.5, 1.0, 0.75]])


@pytest.mark.parametrize(
    "change",
    [
        lambda sample: operations.rotate(sample, 20.0),
        lambda sample: operations.rotate(sample, -35.0),
        lambda sample: operations.shear_x(sample, 0.3),
        lambda sample: operations.shear_y(sample, -0.2),
        lambda sample: operations.translate_x(operations.translate_y(sample, -3.0), 5.0),
    ],
)
def test_masks_boxes_and_keypoints_move_with_the_pixels(change):
    """A white disc, its mask, its box and a keypoint in its centre."""
    rows, columns = np.indices((60, 80))
    disc = ((rows - 27.5) ** 2 + (columns - 42.5) ** 2 < 100).astype(np.float32)
    sample = Sample(
        image=tf.constant(np.repeat(disc[..., np.newaxis] * 255, 3, axis=-1).astype(np.uint8)),
        boxes=tf.constant([[18 / 60, 33 / 80, 38 / 60, 53 / 80]]),
        classes=tf.constant([1], tf.int64),
        weights=tf.ones([1]),
        masks=tf.constant(disc[np.newaxis]),
        keypoints=tf.constant([[[28 / 60, 43 / 80]]]),
    )
    moved = change(sample)
    np.testing.assert_array_equal(np.array(moved.masks)[0] > 0, moved.image[..., 0] == 255)
    places = np.argwhere(np.array(moved.masks)[0] > 0)
    centre = np.array(moved.keypoints)[0, 0] * [60, 80]
    np.testing.assert_allclose(centre, places.mean(axis=0) + 0.5, atol=0.3)
    box = np.array(moved.boxes)[0] * [60, 80, 60, 80]
    assert (box[:2] <= places.min(axis=0) + 1.5).all()  # corners are cut to pixels
    assert (box[2:] >= places.max(axis=0) - 0.5).all()


def test_content_of_boxes_changes_in_order():
    """Only what lies in the chosen boxes moves: columns 1 and 2, by one to the left."""
    sample = small_sample()._replace(
        boxes=tf.constant([[0.0, 0.25, 1.0, 0.74], [0.0, 0.0, 1.0, 1.0]]),
        keypoints=tf.constant([[[0.25, 0.6], [0.25, 0.9]]]),
        keypoint_visibilities=tf.constant([[True, True]]),
    )
    calls: List[Any] = []

    def change(region: Sample, index: tf.Tensor) -> Sample:
        calls.append(int(index))
        return operations.translate_x(region, 1.0)

    moved = operations.change_boxes(sample, tf.constant([0]), change)
    before, after = np.array(sample.image), np.array(moved.image)
    assert calls == [0]
    np.testing.assert_array_equal(after[:, [0, 3]], before[:, [0, 3]])
    np.testing.assert_array_equal(after[:, 1], before[:, 2])
    assert (after[:, 2] == operations.FILL).all()
    np.testing.assert_array_equal(np.array(moved.masks)[0, :, 1], sample.masks[0, :, 2])
    np.testing.assert_array_equal(moved.boxes, sample.boxes)
    np.testing.assert_allclose(moved.keypoints, [[[0.25, 0.35], [0.25, 0.9]]], atol=1e-6)
    both = operations.change_boxes(sample, tf.constant([1, 0]), change)
    assert calls == [0, 1, 0] and (np.array(both.image)[:, 3] == operations.FILL).all()
    none = operations.change_boxes(sample_of("empty"), tf.zeros([0], tf.int32), change)
    assert none.boxes.shape == (0, 4)

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment.pad import extend
from inputs.augment.placing import (
    Placement,
    largest_scale,
    mask_boxes,
    place,
    scaled_window,
)
from tests.inputs.augment.helpers import sample_of, small_sample


@pytest.mark.parametrize(
    ("size", "area", "scale", "where", "expected"),
    [
        # At half its size 5 x 10, of which 4 x 4 are seen: 8 x 8 pixels of the image.
        ((10, 20), (4, 4), 0.5, (0.0, 0.5), ((0, 6), (8, 8), (4, 4))),
        ((10, 20), (4, 4), 0.5, (0.999, 0.999), ((2, 12), (8, 8), (4, 4))),
        # Smaller than the area: all of it.
        ((2, 4), (9, 9), 2.0, (0.7, 0.7), ((0, 0), (2, 4), (4, 8))),
        # Never without a pixel.
        ((2, 2), (9, 9), 0.1, (0.0, 0.0), ((0, 0), (2, 2), (1, 1))),
        ((3, 3), (2, 2), 50.0, (0.0, 0.5), ((0, 1), (1, 1), (2, 2))),
    ],
)
def test_scaled_window(size, area, scale, where, expected) -> None:
    found = scaled_window(tf.constant(size), tf.constant(area), tf.constant(scale), where)
    np.testing.assert_array_equal(found, expected)


def test_largest_scale() -> None:
    assert float(largest_scale(tf.constant([4, 8]), tf.constant([8, 12]))) == 1.5


def test_place_cuts_scales_and_moves() -> None:
    """The right half of 2 x 4 pixels, doubled, at row 1 and column 2 of 6 x 7."""
    placement = Placement(*(tf.constant(pair) for pair in ((0, 2), (2, 2), (4, 4), (1, 2), (6, 7))))
    sample = small_sample(np.float32)
    placed = place(sample, placement, 0.0)
    # The box 0.2 … 2.4 from the left of 4 pixels: 0.4 of 2.2 pixels are seen.
    expected = np.array([[0.2 * 2 + 1, 2, 1 * 2 + 1, 0.4 * 2 + 2]]) / [6, 7, 6, 7]
    expected[0, 0] = (0.1 * 4 + 1) / 6
    expected[0, 2] = (0.5 * 4 + 1) / 6
    np.testing.assert_allclose(placed.boxes, expected, rtol=1e-5)
    np.testing.assert_allclose(placed.area, [8 * 0.25 * 4], rtol=1e-5)
    points = np.array([[np.nan] * 2, [(0.5 * 4 + 1) / 6, (0.4 * 2 + 2) / 7]])
    np.testing.assert_allclose(placed.keypoints, [points], rtol=1e-5)
    np.testing.assert_array_equal(placed.keypoint_visibilities, [[False, False]])
    masks = np.zeros((1, 6, 7))
    masks[0, 1:5, 2:6] = np.repeat(np.repeat([[2, 3], [6, 7]], 2, 0), 2, 1)
    np.testing.assert_array_equal(placed.masks, masks)
    image = np.array(placed.image)
    assert image.shape == (6, 7, 3) and image.dtype == np.float32
    np.testing.assert_array_equal(image[1, 2], sample.image[0, 2])
    assert not image[0].any() and not image[:, :2].any() and not image[5].any()
    # A quarter of the box is seen: a larger threshold drops it with all its fields.
    gone = place(sample, placement, 0.26)
    assert gone.boxes.shape == (0, 4) and gone.masks.shape == (0, 6, 7)
    assert gone.weights.shape == (0,) and gone.keypoints.shape == (0, 2, 2)


def test_extend_moves_labels_to_a_larger_frame() -> None:
    sample = small_sample()
    larger = extend(sample, tf.constant([4, 8]), tf.constant([2, 1]))
    np.testing.assert_allclose(larger.boxes, [[2.2 / 4, 1.8 / 8, 3.0 / 4, 3.4 / 8]], rtol=1e-5)
    assert larger.masks.shape == (1, 4, 8)
    np.testing.assert_array_equal(larger.masks[0, 2:, 1:5], sample.masks[0])
    assert float(tf.reduce_sum(larger.masks)) == float(tf.reduce_sum(sample.masks))


def test_mask_boxes() -> None:
    masks = np.zeros((3, 4, 5), np.float32)
    masks[0, 1:3, 2:5] = 1
    masks[0, 2, 2:4] = 0
    masks[2, 3, 0] = 1
    np.testing.assert_allclose(
        mask_boxes(tf.constant(masks)),
        [[1 / 4, 2 / 5, 3 / 4, 1], [0, 0, 0, 0], [3 / 4, 0, 1, 1 / 5]],
        rtol=1e-6,
    )
    assert mask_boxes(sample_of("empty").masks).shape == (0, 4)

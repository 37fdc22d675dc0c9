from __future__ import annotations

from typing import Tuple

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment.square import Frame, border_size, fixed_size_frame, frame_by_scale, to_square
from inputs.schema import Sample
from tests.inputs.augment.helpers import run_step, small_sample

Pair = Tuple[int, int]


def _pair(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int32)


def test_frame_by_hand() -> None:
    """A frame of 4 x 4 whose first row lies above an image of 2 x 4; the last column is cut off."""
    sample = small_sample()
    frame = Frame(tf.constant(4), _pair(-1, 1), _pair(0, 1), _pair(2, 4))
    square = to_square(sample, frame)
    expected = np.zeros((4, 4, 3), np.uint8)
    expected[1:3, :3] = np.array(sample.image)[:, 1:]
    np.testing.assert_array_equal(square.image, expected)
    np.testing.assert_array_equal(square.masks[0, 1:3, :3], np.array(sample.masks)[0, :, 1:])
    # y: (0.1 * 2 + 1) / 4, (0.5 * 2 + 1) / 4; x: (0.2 * 4 - 1) / 4 -> 0, (0.6 * 4 - 1) / 4
    np.testing.assert_allclose(square.boxes, [[0.3, 0.0, 0.5, 0.35]], atol=1e-6)
    np.testing.assert_allclose(square.keypoints[0], [[np.nan, np.nan], [0.5, 0.35]], atol=1e-6)
    np.testing.assert_array_equal(square.keypoint_visibilities, [[False, False]])


def test_boxes_outside_the_frame_are_dropped() -> None:
    sample = small_sample()
    frame = Frame(tf.constant(2), _pair(0, 3), _pair(0, 3), _pair(2, 4))
    outside = to_square(sample, frame)
    assert outside.boxes.shape == (0, 4) and outside.masks.shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("scale", "side", "origin", "end"),
    [(0.5, 16, (2, 5), (18, 21)), (1.3, 41, (-10, -7), (23, 31))],
)
def test_frame_by_scale(
    scale: float, side: int, origin: Tuple[int, int], end: Tuple[int, int]
) -> None:
    """As the reference: never the last row and column; an odd side leaves a line."""
    frame = frame_by_scale(_pair(24, 32), tf.constant(scale), _pair(10, 13))
    assert int(frame.side) == side
    np.testing.assert_array_equal(frame.origin, origin)
    np.testing.assert_array_equal(frame.begin, np.maximum(origin, 0))
    np.testing.assert_array_equal(frame.end, end)


def test_border_shrinks_with_the_image() -> None:
    for size, border in ((1000, 128), (257, 128), (255, 64), (100, 32), (24, 8), (1, 1)):
        np.testing.assert_array_equal(border_size(_pair(size, 600), 128), [border, 128])
    np.testing.assert_array_equal(border_size(_pair(24, 32), 0), [0, 0])


def test_frame_of_size() -> None:
    frame = fixed_size_frame(_pair(30, 10), 20, tf.constant([0.55, 0.9]))
    assert int(frame.side) == 20
    np.testing.assert_array_equal(frame.origin, [5, 0])
    np.testing.assert_array_equal(frame.end, [25, 10])


def test_scale_crop_and_pad_keeps_the_shape() -> None:
    """An image of 2 x 4 at scale 1 becomes 5 x 10 on a canvas of 10 x 10."""
    text = "random_scale_crop_and_pad_to_square { output_size: 10 scale_min: 1 scale_max: 1 }"
    square: Sample = run_step(text, small_sample())
    assert square.image.shape == (10, 10, 3)
    assert not np.array(square.image)[5:].any()
    np.testing.assert_allclose(square.boxes, [[0.05, 0.2, 0.25, 0.6]], atol=1e-6)
    np.testing.assert_allclose(square.area, [8 * 50 / 8])

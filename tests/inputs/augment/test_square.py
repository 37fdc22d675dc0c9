from __future__ import annotations

import numpy as np

from estimator_det.compat import tf
from inputs.augment.square import Frame, border_size, to_square
from inputs.schema import Sample
from tests.inputs.augment.helpers import run_step, small_sample


def _pair(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int32)


def test_boxes_outside_the_frame_are_dropped() -> None:
    sample = small_sample()
    frame = Frame(tf.constant(2), _pair(0, 3), _pair(0, 3), _pair(2, 4))
    outside = to_square(sample, frame)
    assert outside.boxes.shape == (0, 4) and outside.masks.shape == (0, 2, 2)


def test_border_shrinks_with_the_image() -> None:
    for size, border in ((1000, 128), (257, 128), (255, 64), (100, 32), (24, 8), (1, 1)):
        np.testing.assert_array_equal(border_size(_pair(size, 600), 128), [border, 128])
    np.testing.assert_array_equal(border_size(_pair(24, 32), 0), [0, 0])


def test_scale_crop_and_pad_keeps_the_shape() -> None:
    """An image of 2 x 4 at scale 1 becomes 5 x 10 on a canvas of 10 x 10."""
    text = "random_scale_crop_and_pad_to_square { output_size: 10 scale_min: 1 scale_max: 1 }"
    square: Sample = run_step(text, small_sample())
    assert square.image.shape == (10, 10, 3)
    assert not np.array(square.image)[5:].any()
    np.testing.assert_allclose(square.boxes, [[0.05, 0.2, 0.25, 0.6]], atol=1e-6)
    np.testing.assert_allclose(square.area, [8 * 50 / 8])

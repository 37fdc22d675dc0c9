from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment import AUGMENTATIONS
from inputs.augment.mosaic import arrange
from inputs.schema import Sample
from tests.inputs.augment.helpers import config_of, sample_of

CANVAS, CENTER = (8, 12), (4, 6)


def plain(value: int, height: int, width: int, boxes: Any) -> Sample:
    """An image of one grey value, with boxes in pixels, whose weight and class are the value."""
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    masks = np.zeros((len(boxes), height, width), np.float32)
    for mask, (ymin, xmin, ymax, xmax) in zip(masks, boxes.astype(int)):
        mask[ymin:ymax, xmin:xmax] = 1
    return Sample(
        image=tf.fill([height, width, 3], tf.constant(value, tf.uint8)),
        boxes=tf.constant(boxes / [height, width, height, width], tf.float32),
        classes=tf.fill([len(boxes)], tf.constant(value, tf.int64)),
        weights=tf.fill([len(boxes)], float(value)),
        masks=tf.constant(masks),
        area=tf.constant(masks.sum((1, 2))),
        difficult=tf.fill([len(boxes)], value % 2 == 0),
    )


def four() -> List[Sample]:
    return [
        plain(10, 8, 12, [[0, 0, 4, 6]]),
        plain(20, 8, 12, [[0, 0, 2, 3], [2, 3, 8, 12]]),
        plain(30, 4, 4, [[0, 0, 4, 4]]),
        plain(40, 4, 4, [[1, 1, 3, 2]]),
    ]


def arranged(overlap_thresh: float, color: Any = None) -> Sample:
    scales, where = tf.constant([0.5, 1.0, 0.5, 0.5]), tf.fill([4, 2], 0.5)
    return arrange(
        four(), tf.constant(CANVAS), tf.constant(CENTER), scales, where, overlap_thresh, color
    )


def test_four_images_around_a_center() -> None:
    """Parts of 4 x 6.

    The first image fills its part at half its size. Of the second, as large as the canvas, rows 2
    to 6 and columns 3 to 9 are seen. The others are 4 x 4 and lie at the centre.
    """
    result = arranged(0.0, tf.constant([99.0]))
    expected = np.full(CANVAS, 99)
    expected[:4, :6], expected[:4, 6:] = 10, 20
    expected[4:, 2:6], expected[4:, 6:10] = 30, 40
    np.testing.assert_allclose(result.image, np.repeat(expected[..., None], 3, 2), atol=1e-4)
    boxes = np.array([[0, 0, 2, 3], [0, 6, 4, 12], [4, 2, 8, 6], [5, 7, 7, 8]])
    np.testing.assert_allclose(result.boxes, boxes / [8, 12, 8, 12], atol=1e-6)
    np.testing.assert_array_equal(result.classes, [10, 20, 30, 40])
    np.testing.assert_array_equal(result.weights, [10, 20, 30, 40])
    np.testing.assert_array_equal(result.difficult, [True] * 4)
    # A quarter of 24 pixels; 24 of the 54 of a box at their own size; and two unchanged ones.
    np.testing.assert_allclose(result.area, [6, 24, 16, 2], rtol=1e-5)
    for mask, (ymin, xmin, ymax, xmax) in zip(np.array(result.masks), boxes):
        assert mask[ymin:ymax, xmin:xmax].all() and mask.sum() == (ymax - ymin) * (xmax - xmin)


def test_boxes_of_which_too_little_is_seen_are_dropped() -> None:
    np.testing.assert_array_equal(arranged(0.44).classes, [10, 20, 30, 40])
    np.testing.assert_array_equal(arranged(0.45).classes, [10, 30, 40])
    np.testing.assert_array_equal(arranged(0.45).masks.shape, (3, *CANVAS))


def test_without_a_color_the_surroundings_have_the_mean_of_their_image() -> None:
    image = np.array(arranged(0.0).image)
    np.testing.assert_allclose(image[4:, :2], 30, atol=1e-4)
    np.testing.assert_allclose(image[4:, 10:], 40, atol=1e-4)


def mosaic(settings: str, seed: int) -> Sample:
    config = config_of(f"mosaic {{ {settings} }}")
    return AUGMENTATIONS.get("mosaic")(four(), tf.constant([seed, 1]), config)


def test_size_and_center_of_the_step() -> None:
    assert mosaic("", 1).image.shape == (8, 12, 3)  # of the first image
    fixed = "height: 20 width: 30 min_center: 0.5 max_center: 0.5 min_scale: 2 max_scale: 2"
    for seed in range(3):
        image = np.array(mosaic(fixed, seed).image)
        parts = [image[:10, :15], image[:10, 15:], image[10:, :15], image[10:, 15:]]
        for part, value in zip(parts, (10, 20, 30, 40)):
            np.testing.assert_allclose(part, value, atol=1e-3)
    rows = set()
    for seed in range(12):
        image = np.array(mosaic("height: 16 width: 16 min_scale: 2 max_scale: 2", seed).image)
        rows.add(int((np.abs(image[:, 0, 0] - 10) < 1).sum()))
    assert len(rows) > 3 and rows <= set(range(4, 13))  # a quarter to three quarters of 16


def test_the_smallest_images_make_a_mosaic() -> None:
    ones = [plain(value, 1, 1, [[0, 0, 1, 1]]) for value in (1, 2, 3, 4)]
    config = config_of("mosaic { min_scale: 1 }")
    result = AUGMENTATIONS.get("mosaic")(ones, tf.constant([1, 1]), config)
    np.testing.assert_allclose(result.image[..., 0], [[1, 2], [3, 4]])
    np.testing.assert_allclose(result.boxes[3], [0.5, 0.5, 1, 1])


def test_color_fits_the_channels() -> None:
    with pytest.raises(ConfigError, match="pad_color has 2 numbers"):
        config = config_of("mosaic { pad_color: [1, 2] }")
        AUGMENTATIONS.get("mosaic")([sample_of("bare")] * 4, tf.constant([1, 1]), config)

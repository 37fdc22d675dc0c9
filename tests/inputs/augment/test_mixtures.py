"""Mosaic, mixup and copy-paste against results by hand."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs import schema
from inputs.augment import AUGMENTATIONS
from inputs.augment.copy_paste import paste
from inputs.augment.mixup import blend, random_share
from inputs.augment.mosaic import arrange
from inputs.augment.placing import fit, mask_boxes
from inputs.sample import Sample
from tests.inputs.augment.helpers import config_of, sample_of


def plain(value: int, height: int, width: int, boxes: Any = ((0, 0, 1, 1),)) -> Sample:
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


def mixture(text: str, samples: Sequence[Sample], seed: int = 1) -> Sample:
    name = text.split()[0]
    return AUGMENTATIONS.get(name)(samples, tf.constant([seed, 1]), config_of(text))


# Placing.


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
def test_the_part_of_an_image_that_fits(size, area, scale, where, expected):
    found = fit(tf.constant(size), tf.constant(area), tf.constant(scale), where)
    np.testing.assert_array_equal(found[:3], expected)


def test_mask_boxes():
    masks = np.zeros((3, 4, 5), np.float32)
    masks[0, 1:3, 2:5] = 1
    masks[0, 2, 2:4] = 0
    masks[2, 3, 0] = 1
    expected = [[1 / 4, 2 / 5, 3 / 4, 1], [0, 0, 0, 0], [3 / 4, 0, 1, 1 / 5]]
    np.testing.assert_allclose(mask_boxes(tf.constant(masks)), expected, rtol=1e-6)
    assert mask_boxes(sample_of("empty").masks).shape == (0, 4)


# Mosaic.

CANVAS, CENTER = (8, 12), (4, 6)


def four() -> List[Sample]:
    return [
        plain(10, 8, 12, [[0, 0, 4, 6]]),
        plain(20, 8, 12, [[0, 0, 2, 3], [2, 3, 8, 12]]),
        plain(30, 4, 4, [[0, 0, 4, 4]]),
        plain(40, 4, 4, [[1, 1, 3, 2]]),
    ]


def arranged(overlap_thresh: float, color: Any = None) -> Sample:
    scales = tf.constant([0.5, 1.0, 0.5, 0.5])
    where = tf.constant([[0.1, 0.1], [0.5, 0.5], [0.1, 0.1], [0.7, 0.7]])
    return arrange(
        four(), tf.constant(CANVAS), tf.constant(CENTER), scales, where, overlap_thresh, color
    )


def test_four_images_around_a_center():
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
    np.testing.assert_array_equal(arranged(0.44).classes, [10, 20, 30, 40])
    np.testing.assert_array_equal(arranged(0.45).classes, [10, 30, 40])  # too little is seen
    uncolored = np.array(arranged(0.0).image)  # the mean of each image surrounds it
    np.testing.assert_allclose(uncolored[4:, [0, 1]], 30, atol=1e-4)
    np.testing.assert_allclose(uncolored[4:, [10, 11]], 40, atol=1e-4)


def test_size_and_center_of_a_mosaic():
    assert mixture("mosaic {}", four()).image.shape == (8, 12, 3)  # of the first image
    fixed = "height: 20 width: 30 min_center: 0.5 max_center: 0.5 min_scale: 2 max_scale: 2"
    image = np.array(mixture(f"mosaic {{ {fixed} }}", four()).image)
    parts = [image[:10, :15], image[:10, 15:], image[10:, :15], image[10:, 15:]]
    for part, value in zip(parts, (10, 20, 30, 40)):
        np.testing.assert_allclose(part, value, atol=1e-3)
    rows = set()
    for seed in range(12):
        text = "mosaic { height: 16 width: 16 min_scale: 2 max_scale: 2 }"
        column = np.array(mixture(text, four(), seed).image)[:, 0, 0]
        rows.add(int((np.abs(column - 10) < 1).sum()))
    assert len(rows) > 3 and rows <= set(range(4, 13))  # a quarter to three quarters of 16


def test_the_smallest_images_make_a_mosaic():
    result = mixture("mosaic { min_scale: 1 }", [plain(value, 1, 1) for value in (1, 2, 3, 4)])
    np.testing.assert_allclose(result.image[..., 0], [[1, 2], [3, 4]])
    np.testing.assert_allclose(result.boxes[3], [0.5, 0.5, 1, 1])
    corner = "mosaic { min_center: %d max_center: %d }"
    for center in (0, 1):  # each part has at least one row and column
        assert mixture(corner % (center, center), four()).image.shape == (8, 12, 3)


# Mixup.


@pytest.mark.parametrize(("scale_weights", "weights"), [(True, [25, 150]), (False, [100, 200])])
def test_a_quarter_of_the_first_image(scale_weights, weights):
    first, second = plain(100, 2, 2, [[0, 0, 2, 2]]), plain(200, 4, 3, [[0, 0, 4, 3]])
    result = blend([first, second], tf.constant(0.25), scale_weights)
    expected = np.full((4, 3), 150.0)
    expected[:2, :2] = 175
    np.testing.assert_allclose(result.image, np.repeat(expected[..., None], 3, 2))
    np.testing.assert_allclose(result.boxes, [[0, 0, 0.5, 2 / 3], [0, 0, 1, 1]], rtol=1e-6)
    np.testing.assert_allclose(result.weights, weights, rtol=1e-6)
    np.testing.assert_array_equal(result.classes, [100, 200])
    masks = np.ones((2, 4, 3))
    masks[0, 2:], masks[0, :, 2:] = 0, 0
    np.testing.assert_array_equal(result.masks, masks)


def test_a_mixture_of_white_is_not_brighter_than_white():
    white = [plain(255, 1, 1)] * 2
    for share in (0.02, 0.21, 0.27):  # where rounding is upward
        assert np.max(blend(white, tf.constant(share), False).image) <= 255


def shares(alpha: float, count: int) -> np.ndarray:
    draws = tf.data.Dataset.range(count).map(
        lambda number: random_share(tf.stack([number, 1]), alpha)
    )
    return np.array(list(draws.as_numpy_iterator()))


@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_the_share_has_a_beta_distribution(alpha):
    """Mean 1/2, variance 1 / (4 (2 alpha + 1)); of 1,000 fixed seeds, within 4 deviations."""
    found = shares(alpha, 1000)
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(found.mean() - 0.5) < 4 * np.sqrt(variance / 1000)
    assert abs(found.var() - variance) < 0.15 * variance
    assert found.min() >= 0 and found.max() <= 1


def test_a_tiny_alpha_takes_one_of_the_images():
    """Both draws of the gamma distribution may be 0."""
    found = shares(1e-3, 40)
    np.testing.assert_allclose(found, np.round(found), atol=1e-3)
    assert 10 < found.sum() < 30


def test_mixup_draws_the_share():
    share = float(random_share(tf.constant([4, 1]), 2.0))
    mixed = mixture("mixup { alpha: 2 }", [plain(100, 1, 1), plain(200, 1, 1)], 4)
    np.testing.assert_allclose(mixed.weights, [100 * share, 200 * (1 - share)], rtol=1e-5)
    np.testing.assert_allclose(mixed.image, np.full((1, 1, 3), 200 - 100 * share), rtol=1e-5)


# Copy-paste.

EXISTING = np.array(
    [
        [[1, 1, 0, 0]] * 4,  # the left half
        [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],  # one pixel
        [[0, 0, 0, 0]] * 4,  # no mask; its box are the two rows and columns in the middle of above
        [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]],
    ],
    np.float32,
)
BOXES = [[0, 0, 1, 0.5], [0, 0.25, 0.25, 0.5], [0, 0.25, 0.5, 0.75], [0, 0.5, 0.75, 0.75]]
PASTED = np.array([[[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]], np.float32)


def objects(value: float, masks: np.ndarray, boxes: Any, level: Optional[dict] = None) -> Sample:
    count = len(masks)
    return Sample(
        image=tf.fill([4, 4, 3], value),
        boxes=tf.constant(boxes, tf.float32, [count, 4]),
        classes=tf.range(1, count + 1, dtype=tf.int64),
        weights=tf.fill([count], value),
        masks=tf.constant(masks),
        area=tf.constant(masks.sum((1, 2)) * 10),
        is_crowd=tf.fill([count], False),
        group_of=tf.fill([count], False),
        image_level=level,
    )


NOTHING = objects(50.0, EXISTING[:0], np.zeros((0, 4)))


def test_covered_objects_lose_what_is_covered():
    """6 of 8 pixels remain of the first object, none of the next two, 1 of 3 of the last."""
    first, second = objects(50.0, EXISTING, BOXES), objects(90.0, PASTED, BOXES[2:3])
    result = paste(first, second, 0.1)
    np.testing.assert_array_equal(result.classes, [1, 4, 1])
    np.testing.assert_array_equal(result.weights, [50, 50, 90])
    masks = np.stack([EXISTING[0], EXISTING[3], PASTED[0]])
    masks[:2] *= 1 - PASTED
    np.testing.assert_array_equal(result.masks, masks)
    boxes = [[0, 0, 1, 0.5], [0.5, 0.5, 0.75, 0.75], [0, 0.25, 0.5, 0.75]]
    np.testing.assert_allclose(result.boxes, boxes)
    np.testing.assert_allclose(result.area, [60, 10, 40], rtol=1e-6)
    np.testing.assert_array_equal(result.image[..., 0], np.where(PASTED[0] > 0, 90, 50))
    for thresh, classes in ((0.33, [1, 4, 1]), (0.34, [1, 1]), (0.76, [1])):
        np.testing.assert_array_equal(paste(first, second, thresh).classes, classes)


def test_boxes_without_a_mask_or_untouched_keep_their_annotation():
    """An object without a mask is covered as its box is: here 2 of 8 pixels."""
    first, second = objects(50.0, EXISTING[2:3], BOXES[:1]), objects(90.0, PASTED, BOXES[2:3])
    np.testing.assert_allclose(paste(first, second, 0.75).boxes[0], BOXES[0])
    np.testing.assert_array_equal(paste(first, second, 0.76).weights, [90])
    other_box = [[0, 0, 0.9, 0.4]]
    result = paste(objects(50.0, EXISTING[:1], other_box), NOTHING, 0.1)
    np.testing.assert_allclose(result.boxes, other_box)


def test_labels_of_the_image():
    level = {
        schema.IMAGE_CLASSES: tf.constant([1, 3], tf.int64),
        schema.IMAGE_CONFIDENCES: tf.constant([0.0, 0.0]),
        schema.VERIFIED_NEG_CLASSES: tf.constant([1, 4], tf.int64),
        schema.SOURCE_ID: tf.constant("first"),
    }
    first = objects(50.0, EXISTING[:1], BOXES[:1], level)
    second = objects(90.0, PASTED, BOXES[2:3], {**level, schema.SOURCE_ID: tf.constant("b")})
    found = paste(first, second, 0.1).image_level  # the pasted class is 1
    np.testing.assert_array_equal(found[schema.IMAGE_CLASSES], [1, 3])
    np.testing.assert_array_equal(found[schema.IMAGE_CONFIDENCES], [1, 0])
    np.testing.assert_array_equal(found[schema.VERIFIED_NEG_CLASSES], [4])
    assert found[schema.SOURCE_ID].numpy() == b"first"


def test_the_step_pastes_objects_where_they_were():
    """At scale 1 an image of the same size has one place."""
    second = objects(90.0, PASTED, [[0, 0, 1, 1]])
    every = "copy_paste { min_scale: 1 max_scale: 1 object_probability: %d }"
    result = mixture(every % 1, [NOTHING, second])
    np.testing.assert_array_equal(result.masks, PASTED)
    np.testing.assert_allclose(result.boxes, [[0, 0.25, 0.5, 0.75]])  # of the mask
    assert mixture(every % 0, [NOTHING, second]).boxes.shape == (0, 4)
    for field, value in (
        ("is_crowd", tf.constant([True])),
        ("group_of", tf.constant([True])),
        ("masks", tf.zeros([1, 4, 4])),
    ):
        unused = second._replace(**{field: value})
        assert mixture(every % 1, [NOTHING, unused]).boxes.shape == (0, 4), field

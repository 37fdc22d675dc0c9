from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment import AUGMENTATIONS, operations, rand_augment
from inputs.augment.rand_augment import OPERATIONS
from inputs.sample import Sample
from tests.inputs.augment.helpers import config_of, sample_of

NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
WITHOUT_MAGNITUDE = {"identity", "auto_contrast", "equalize"}


def ten_columns() -> Sample:
    """Columns of 0 to 90, three boxes of 10 x 4 pixels."""
    boxes = [[0, 0, 1, 0.25], [0, 0.25, 1, 0.5], [0, 0.5, 1, 0.9]]
    return Sample(
        image=tf.tile(tf.range(0, 100, 10)[tf.newaxis, :, tf.newaxis], [4, 1, 3]),
        boxes=tf.constant(boxes, tf.float32),
        classes=tf.constant([1, 2, 3], tf.int64),
        weights=tf.ones([3]),
        masks=tf.ones([3, 4, 10]),
        keypoints=tf.constant(boxes, tf.float32)[:, tf.newaxis, 2:],
        keypoint_visibilities=tf.fill([3, 1], True),
        area=tf.constant([10.0, 10.0, 16.0]),
    )


def apply(
    name: str, strength: float, sample: Sample, overlap_thresh: float = 0.1, times: int = 1
) -> Sample:
    sample = sample._replace(image=tf.cast(sample.image, tf.uint8))
    numbers, strengths = tf.repeat(NUMBERS[name], times), tf.repeat(strength, times)
    return rand_augment.apply_operations(sample, numbers, strengths, overlap_thresh)


def test_boxes_move_with_the_pixels_and_leave_with_them():
    """Three columns to the left: the first box is gone, half of the second remains."""
    sample = ten_columns()
    moved = apply("translate_x", 1.0, sample)
    np.testing.assert_array_equal(moved.image[0, :, 0], [*range(30, 100, 10), 128, 128, 128])
    np.testing.assert_array_equal(moved.classes, [2, 3])
    # The Object Detection API's rule cuts edges to whole pixels: the second box begins in column 2.
    np.testing.assert_allclose(moved.boxes, [[0, 0, 1, 0.2], [0, 0.2, 1, 0.6]], atol=1e-6)
    np.testing.assert_allclose(moved.area, [10 * 2 / 3, 16], rtol=1e-5)
    assert moved.masks.shape == (2, 4, 10) and not np.array(moved.masks)[:, :, 7:].any()
    np.testing.assert_allclose(moved.keypoints[1, 0], [1, 0.6], rtol=1e-5)
    np.testing.assert_array_equal(apply("translate_x", 1.0, sample, 0.7).classes, [3])
    right = apply("translate_x", -1.0, sample)
    np.testing.assert_array_equal(right.image[0, :3, 0], [128] * 3)
    twice = apply("translate_x", 1.0, sample, times=2)
    np.testing.assert_array_equal(twice.classes, [3])
    np.testing.assert_allclose(twice.boxes, [[0, 0, 1, 0.3]], atol=1e-6)
    np.testing.assert_allclose(twice.area, [16 * 3 / 4], rtol=1e-5)
    assert apply("translate_x", 1.0, sample, 0.8, times=2).boxes.shape[0] == 0
    np.testing.assert_array_equal(apply("translate_x", 1.0, sample, 0.0).classes, [2, 3])


@pytest.mark.parametrize(
    ("name", "strength", "amount"),
    [
        ("rotate", -0.5, -15.0),
        ("shear_x", -0.5, -0.15),
        ("shear_y", 0.5, 0.15),
        ("translate_x", -0.5, -5.0),  # of 32 columns
        ("translate_y", 0.5, 4.0),  # of 24 rows
    ],
)
def test_amounts_of_moves(name, strength, amount):
    sample = sample_of("full")
    expected = getattr(operations, name)(sample, tf.constant(amount))
    found = OPERATIONS[name](sample, tf.constant(strength))
    np.testing.assert_array_equal(found.image, expected.image)
    np.testing.assert_allclose(found.boxes, expected.boxes)


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - WITHOUT_MAGNITUDE))
def test_a_larger_magnitude_changes_more(name):
    rows, columns = np.mgrid[:24, :32]
    image = (3 * columns + 2 * rows + 6 * np.sin(rows))[..., None] + [[[10, 40, 70]]]
    sample = sample_of("full")._replace(image=tf.constant(image.clip(0, 255).astype(np.uint8)))
    before = np.array(sample.image, np.float32)

    def change(strength: float) -> float:
        return float(np.abs(np.array(apply(name, strength, sample).image) - before).mean())

    assert change(0.0) == 0
    assert 0 < change(0.3) < change(1.0)
    kept = apply(name, 0.0, sample)
    np.testing.assert_allclose(kept.boxes, sample.boxes, atol=0.05)  # whole pixels
    np.testing.assert_array_equal(kept.weights, sample.weights)


def test_operations_on_pixels():
    sample = ten_columns()
    bright = apply("brightness", 1.0, sample).image[0, :, 0]
    np.testing.assert_array_equal(bright, range(0, 190, 19))
    dark = apply("brightness", -1.0, sample).image[0, :, 0]
    np.testing.assert_array_equal(dark, range(10))
    np.testing.assert_array_equal(
        apply("solarize", -0.7, sample).image[0, :, 0],  # from 256 - 179 on
        [*range(0, 80, 10), 255 - 80, 255 - 90],
    )
    np.testing.assert_array_equal(
        apply("posterize", 1.0, sample).image[0, :, 0], [k & 0xF0 for k in range(0, 100, 10)]
    )
    assert apply("identity", 1.0, sample).image.numpy().tolist() == sample.image.numpy().tolist()


def test_the_step_draws_every_operation(monkeypatch):
    drawn: List[int] = []
    signs: List[float] = []

    def note(sample: Sample, numbers: Any, strengths: Any, overlap_thresh: float) -> Sample:
        drawn.extend(numbers.numpy().tolist())
        signs.extend(np.sign(strengths))
        np.testing.assert_allclose(np.abs(strengths), [0.7] * 3, rtol=1e-6)
        assert abs(overlap_thresh - 0.1) < 1e-6
        return sample

    monkeypatch.setattr(rand_augment, "apply_operations", note)
    config = config_of("rand_augment { num_operations: 3 magnitude: 7 }")
    sample = sample_of("bare", np.float32)
    for seed in range(70):
        result = AUGMENTATIONS.get("rand_augment")(sample, tf.constant([seed, 3]), config)
        assert result.image.dtype == tf.float32
    bounds = sample._replace(image=tf.constant([[[-20.0, 300.0, 7.0]]]))
    rounded = AUGMENTATIONS.get("rand_augment")(bounds, tf.constant([70, 3]), config)
    np.testing.assert_array_equal(rounded.image, [[[0, 255, 7]]])
    del drawn[210:]
    assert 70 < signs.count(1) < 140  # 105 expected
    counts = np.bincount(drawn)
    assert counts.sum() == 210 and counts.shape == (14,)  # 15 expected of each
    assert counts.min() > 0 and counts.max() < 35

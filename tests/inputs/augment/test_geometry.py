from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment import make_augmentation
from inputs.augment.geometry import (
    MIRROR_X,
    MIRROR_Y,
    TURN_LEFT,
    Motion,
    move,
    pad,
    random_pad,
    random_pad_to_aspect_ratio,
)
from inputs.schema import Sample
from tests.inputs.augment.helpers import sample_of, step

SEED = (3, 4)


def _run(text: str, sample: Sample) -> Sample:
    return make_augmentation([step(text)])(sample, tf.constant(SEED))


def _small(dtype: Any = np.uint8) -> Sample:
    """An image of 2 x 4 with one box and one keypoint."""
    return Sample(
        image=tf.constant(np.arange(24).reshape(2, 4, 3).astype(dtype)),
        boxes=tf.constant([[0.1, 0.2, 0.5, 0.6]]),
        classes=tf.constant([1], tf.int64),
        weights=tf.constant([1.0]),
        masks=tf.constant(np.arange(8).reshape(1, 2, 4), tf.float32),
        keypoints=tf.constant([[[0.1, 0.2], [0.5, 0.6]]]),
        keypoint_visibilities=tf.constant([[True, False]]),
        area=tf.constant([8.0]),
    )


@pytest.mark.parametrize(
    ("motion", "boxes", "keypoints"),
    [
        (MIRROR_X, [0.1, 0.4, 0.5, 0.8], [[0.1, 0.8], [0.5, 0.4]]),
        (MIRROR_Y, [0.5, 0.2, 0.9, 0.6], [[0.9, 0.2], [0.5, 0.6]]),
        (TURN_LEFT, [0.4, 0.1, 0.8, 0.5], [[0.8, 0.1], [0.4, 0.5]]),
    ],
)
def test_moves_by_hand(motion: Motion, boxes: List[float], keypoints: List[List[float]]) -> None:
    sample = _small()
    pixels = {MIRROR_X: np.fliplr, MIRROR_Y: np.flipud, TURN_LEFT: np.rot90}[motion]
    moved = move(sample, motion)
    np.testing.assert_array_equal(moved.image, pixels(np.array(sample.image)))
    np.testing.assert_array_equal(moved.masks[0], pixels(np.array(sample.masks[0])))
    np.testing.assert_allclose(moved.boxes, [boxes], atol=1e-6)
    np.testing.assert_allclose(moved.keypoints, [keypoints], atol=1e-6)


def test_permutation_exchanges_keypoints_and_visibilities() -> None:
    moved = move(_small(), MIRROR_X, (1, 0))
    np.testing.assert_allclose(moved.keypoints, [[[0.5, 0.4], [0.1, 0.8]]], atol=1e-6)
    np.testing.assert_array_equal(moved.keypoint_visibilities, [[False, True]])


@pytest.mark.parametrize("motion", [MIRROR_X, MIRROR_Y])
def test_mirroring_twice_is_the_identity(motion: Motion) -> None:
    sample = sample_of("full")
    twice = move(move(sample, motion, (1, 0, 2)), motion, (1, 0, 2))
    for name in ("image", "boxes", "masks", "keypoints", "keypoint_visibilities"):
        np.testing.assert_allclose(getattr(twice, name), getattr(sample, name), atol=1e-6)


def test_four_turns_are_the_identity() -> None:
    turned = sample = sample_of("full")
    for _ in range(4):
        turned = move(turned, TURN_LEFT)
    for name in ("image", "boxes", "masks", "keypoints"):
        np.testing.assert_allclose(getattr(turned, name), getattr(sample, name), atol=1e-6)


def test_probabilities_of_zero_and_one() -> None:
    sample = _small()
    for name in ("random_horizontal_flip", "random_vertical_flip"):
        keypoints = "keypoint_flip_permutation: [1, 0]"
        kept = _run(f"{name} {{ probability: 0 {keypoints} }}", sample)
        np.testing.assert_array_equal(kept.image, sample.image)
        flipped = _run(f"{name} {{ probability: 1 {keypoints} }}", sample)
        assert (np.array(flipped.image) != np.array(sample.image)).any()
    assert _run("random_rotation90 { probability: 1 }", sample).image.shape == (4, 2, 3)


@pytest.mark.parametrize("name", ["random_horizontal_flip", "random_vertical_flip"])
def test_flip_of_keypoints_needs_a_permutation(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*keypoint_flip_permutation is not given"):
        _run(f"{name} {{}}", _small())
    with pytest.raises(ValueError, match="names 3 keypoints, but the samples have 2"):
        _run(f"{name} {{ keypoint_flip_permutation: [0, 1, 2] }}", _small())


@pytest.mark.parametrize("method", ["AREA", "BICUBIC", "BILINEAR", "NEAREST_NEIGHBOR"])
def test_resize_image(method: str) -> None:
    sample = _small()
    resized = _run(f"resize_image {{ new_height: 4 new_width: 4 method: {method} }}", sample)
    assert resized.image.shape == (4, 4, 3) and resized.image.dtype == tf.float32
    # Rows double; TF1 sampling puts the old row i at the new row 2 i.
    np.testing.assert_allclose(resized.image[::2], sample.image, atol=1e-4)
    np.testing.assert_array_equal(resized.masks[0], np.repeat(sample.masks[0], 2, axis=0))
    np.testing.assert_array_equal(resized.boxes, sample.boxes)
    np.testing.assert_allclose(resized.area, [16.0])


def test_bilinear_resize_by_hand() -> None:
    sample = _small()._replace(image=tf.constant([[[0.0], [10.0]]]), masks=None)
    resized = _run("resize_image { new_height: 1 new_width: 4 }", sample)
    np.testing.assert_allclose(resized.image[0, :, 0], [0.0, 5.0, 10.0, 10.0])


def test_random_image_scale_aligns_corners() -> None:
    sample = sample_of("full")
    for i in range(5):
        text = "random_image_scale { min_scale_ratio: 0.5 max_scale_ratio: 2 }"
        scaled = make_augmentation([step(text)])(sample, tf.constant([i, 0]))
        height, width, _ = scaled.image.shape
        assert 12 <= height < 48 and abs(width - height * 32 / 24) < 2
        np.testing.assert_allclose(scaled.image[0, 0], sample.image[0, 0], atol=1e-3)
        np.testing.assert_allclose(scaled.image[-1, -1], sample.image[-1, -1], atol=1e-2)
        growth = height * width / (24 * 32)
        np.testing.assert_allclose(scaled.area, np.array(sample.area) * growth, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pad_by_hand(dtype: Any) -> None:
    sample = _small(dtype)
    color = tf.constant([10.4, 20.0, 300.0 if dtype == np.uint8 else 30.0])
    padded = pad(sample, tf.constant([4, 8]), tf.constant([1, 2]), color)
    image = np.array(padded.image)
    assert image.shape == (4, 8, 3) and image.dtype == dtype
    np.testing.assert_array_equal(image[1:3, 2:6], sample.image)
    outside = np.ones((4, 8), bool)
    outside[1:3, 2:6] = False
    expected = [10, 20, 255] if dtype == np.uint8 else np.float32([10.4, 20.0, 30.0])
    assert (image[outside] == expected).all()
    # y: (0.1 * 2 + 1) / 4, (0.5 * 2 + 1) / 4; x: (0.2 * 4 + 2) / 8, (0.6 * 4 + 2) / 8
    np.testing.assert_allclose(padded.boxes, [[0.3, 0.35, 0.5, 0.55]], atol=1e-6)
    np.testing.assert_allclose(padded.keypoints, [[[0.3, 0.35], [0.5, 0.55]]], atol=1e-6)
    np.testing.assert_array_equal(padded.masks[0, 1:3, 2:6], sample.masks[0])
    assert np.array(padded.masks).sum() == np.array(sample.masks).sum()
    np.testing.assert_array_equal(padded.area, sample.area)


def test_pad_without_color_is_black() -> None:
    padded = pad(_small(), tf.constant([3, 4]), tf.constant([1, 0]))
    np.testing.assert_array_equal(padded.image[0], np.zeros((4, 3)))
    np.testing.assert_array_equal(padded.image[1:], _small().image)


def test_random_pad_sizes_and_places() -> None:
    sample = _small()
    shapes, offsets = set(), set()
    for i in range(60):
        result = random_pad(
            sample, tf.constant([i, 1]), tf.constant([1, 6]), tf.constant([5, 6]), tf.zeros([1])
        )
        shapes.add(tuple(result.image.shape[:2]))
        box = np.array(result.boxes)[0] * (list(result.image.shape[:2]) * 2)
        offsets.add((round(box[0] - 0.2), round(box[1] - 0.8)))
    # Heights of 2 up to 5, 5 excluded; the width is fixed; an offset excludes the far end.
    assert shapes == {(2, 6), (3, 6), (4, 6)}
    assert {column for _, column in offsets} == {0, 1} and {row for row, _ in offsets} == {0, 1}


def test_random_pad_image_takes_the_mean_color() -> None:
    image = tf.constant([[[0, 10, 20], [100, 30, 20]]], tf.uint8)
    sample = sample_of("bare")._replace(image=image)
    text = (
        "random_pad_image { min_image_height: 6 min_image_width: 6 "
        "max_image_height: 6 max_image_width: 6 }"
    )
    padded = np.array(_run(text, sample).image)
    assert padded.shape == (6, 6, 3)
    assert (padded == [50, 20, 20]).all(axis=-1).sum() == 34


def test_pad_color_must_suit_the_channels() -> None:
    with pytest.raises(ValueError, match="2 numbers for images of 3 channels"):
        _run("random_pad_image { pad_color: [1, 2] }", _small())


def test_pad_to_aspect_ratio_by_hand() -> None:
    sample = _small()
    square = random_pad_to_aspect_ratio(sample, tf.constant(SEED), 1.0, (1.0, 1.0), (2.0, 2.0))
    assert square.image.shape == (4, 4, 3)
    np.testing.assert_array_equal(square.image[:2], sample.image)
    np.testing.assert_array_equal(square.image[2:], np.zeros((2, 4, 3)))
    np.testing.assert_allclose(square.boxes, [[0.05, 0.2, 0.25, 0.6]], atol=1e-6)
    # At least three times as high and wide: 12 x 12, whatever the largest size says.
    large = random_pad_to_aspect_ratio(sample, tf.constant(SEED), 1.0, (3.0, 3.0), (6.0, 3.0))
    assert large.image.shape == (12, 12, 3)


def test_scale_boxes_to_pixel_coordinates() -> None:
    scaled = _run("scale_boxes_to_pixel_coordinates {}", _small())
    np.testing.assert_allclose(scaled.boxes, [[0.2, 0.8, 1.0, 2.4]], atol=1e-6)
    np.testing.assert_allclose(scaled.keypoints, [[[0.2, 0.8], [1.0, 2.4]]], atol=1e-6)

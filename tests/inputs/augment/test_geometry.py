from __future__ import annotations

from typing import List

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from inputs.augment import make_augmentation
from inputs.augment.geometry import (
    FLIP_X,
    FLIP_Y,
    RESIZE_METHODS,
    ROTATE_LEFT,
    Motion,
    _target_pixels,
    downscale,
    move,
    repeat_image,
    resize,
)
from tests.inputs.augment.helpers import config_of, run_step, sample_of, small_sample, step


@pytest.mark.parametrize(
    ("motion", "boxes", "keypoints"),
    [
        (FLIP_X, [0.1, 0.4, 0.5, 0.8], [[0.1, 0.8], [0.5, 0.4]]),
        (FLIP_Y, [0.5, 0.2, 0.9, 0.6], [[0.9, 0.2], [0.5, 0.6]]),
        (ROTATE_LEFT, [0.4, 0.1, 0.8, 0.5], [[0.8, 0.1], [0.4, 0.5]]),
    ],
)
def test_moves_by_hand(motion: Motion, boxes: List[float], keypoints: List[List[float]]) -> None:
    sample = small_sample()
    pixels = {FLIP_X: np.fliplr, FLIP_Y: np.flipud, ROTATE_LEFT: np.rot90}[motion]
    moved = move(sample, motion)
    np.testing.assert_array_equal(moved.image, pixels(np.array(sample.image)))
    np.testing.assert_array_equal(moved.masks[0], pixels(np.array(sample.masks[0])))
    np.testing.assert_allclose(moved.boxes, [boxes], atol=1e-6)
    np.testing.assert_allclose(moved.keypoints, [keypoints], atol=1e-6)


def test_permutation_exchanges_keypoints_and_visibilities() -> None:
    moved = move(small_sample(), FLIP_X, (1, 0))
    np.testing.assert_allclose(moved.keypoints, [[[0.5, 0.4], [0.1, 0.8]]], atol=1e-6)
    np.testing.assert_array_equal(moved.keypoint_visibilities, [[False, True]])


@pytest.mark.parametrize("motion", [FLIP_X, FLIP_Y])
def test_flipping_twice_is_the_identity(motion: Motion) -> None:
    sample = sample_of("full")
    twice = move(move(sample, motion, (1, 0, 2)), motion, (1, 0, 2))
    for name in ("image", "boxes", "masks", "keypoints", "keypoint_visibilities"):
        np.testing.assert_allclose(getattr(twice, name), getattr(sample, name), atol=1e-6)


def test_four_rotations_are_the_identity() -> None:
    turned = sample = sample_of("full")
    for _ in range(4):
        turned = move(turned, ROTATE_LEFT)
    for name in ("image", "boxes", "masks", "keypoints"):
        np.testing.assert_allclose(getattr(turned, name), getattr(sample, name), atol=1e-6)


def test_probabilities_of_zero_and_one() -> None:
    sample = small_sample()
    for name in ("random_horizontal_flip", "random_vertical_flip"):
        keypoints = "keypoint_flip_permutation: [1, 0]"
        kept = run_step(f"{name} {{ probability: 0 {keypoints} }}", sample)
        np.testing.assert_array_equal(kept.image, sample.image)
        flipped = run_step(f"{name} {{ probability: 1 {keypoints} }}", sample)
        assert (np.array(flipped.image) != np.array(sample.image)).any()
    turned = run_step("random_rotation90 { probability: 1 }", sample)
    np.testing.assert_array_equal(turned.image, np.rot90(np.array(sample.image)))


def test_each_step_moves_its_own_way() -> None:
    sample = small_sample()
    image = np.array(sample.image)
    steps = {
        "random_horizontal_flip { probability: 1 keypoint_flip": (np.fliplr, FLIP_X),
        "random_vertical_flip { probability: 1 keypoint_flip": (np.flipud, FLIP_Y),
        "random_rotation90 { probability: 1 keypoint_rot": (np.rot90, ROTATE_LEFT),
    }
    for text, (pixels, motion) in steps.items():
        moved = run_step(f"{text}_permutation: [1, 0] }}", sample)
        np.testing.assert_array_equal(moved.image, pixels(image))
        expected = move(sample, motion, (1, 0))
        for name in ("boxes", "keypoints", "keypoint_visibilities", "masks"):
            np.testing.assert_array_equal(getattr(moved, name), getattr(expected, name))


@pytest.mark.parametrize("name", ["random_horizontal_flip", "random_vertical_flip"])
def test_flip_of_keypoints_needs_a_permutation(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: .*keypoint_flip_permutation is not set"):
        run_step(f"{name} {{}}", small_sample())
    with pytest.raises(ConfigError, match="has 3 keypoints, but the samples have 2"):
        run_step(f"{name} {{ keypoint_flip_permutation: [0, 1, 2] }}", small_sample())


@pytest.mark.parametrize("method", ["AREA", "BICUBIC", "BILINEAR", "NEAREST_NEIGHBOR"])
def test_resize_image(method: str) -> None:
    sample = small_sample()
    resized = run_step(f"resize_image {{ new_height: 4 new_width: 4 method: {method} }}", sample)
    assert resized.image.shape == (4, 4, 3) and resized.image.dtype == tf.float32
    # Rows double; TF1 sampling puts the old row i at the new row 2 i.
    np.testing.assert_allclose(resized.image[::2], sample.image, atol=1e-4)
    expected = tf1.image.resize(sample.image, [4, 4], getattr(tf1.image.ResizeMethod, method))
    np.testing.assert_allclose(resized.image, expected, atol=1e-4)
    np.testing.assert_array_equal(resized.masks[0], np.repeat(sample.masks[0], 2, axis=0))
    np.testing.assert_array_equal(resized.boxes, sample.boxes)
    np.testing.assert_allclose(resized.area, [16.0])


def test_resize_to_a_height_and_a_width() -> None:
    resized = run_step("resize_image { new_height: 6 new_width: 5 }", small_sample())
    assert resized.image.shape == (6, 5, 3) and resized.masks.shape == (1, 6, 5)
    np.testing.assert_allclose(resized.area, [8 * 30 / 8])


def test_bilinear_resize_by_hand() -> None:
    sample = small_sample()._replace(image=tf.constant([[[0.0], [10.0]]]), masks=None)
    resized = run_step("resize_image { new_height: 1 new_width: 4 }", sample)
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


def test_masks_and_image_align_their_corners_alike() -> None:
    """By hand: of 4 columns, 2 with aligned corners are the first and the last one."""
    row = np.array([[0.0, 0.0, 0.0, 1.0]], np.float32)
    sample = small_sample()._replace(
        image=tf.constant(row[..., np.newaxis]), masks=tf.constant(row[np.newaxis])
    )
    size = tf.constant([1, 2])
    aligned = resize(sample, size, tf.image.ResizeMethod.NEAREST_NEIGHBOR, align_corners=True)
    assert aligned.image[0, :, 0].numpy().tolist() == aligned.masks[0, 0].numpy().tolist() == [0, 1]
    by_pixels = resize(sample, size, tf.image.ResizeMethod.NEAREST_NEIGHBOR)
    assert by_pixels.masks[0, 0].numpy().tolist() == [0, 0]


def test_a_tiny_image_keeps_a_pixel() -> None:
    sample = small_sample()._replace(image=tf.zeros([1, 3, 3]), masks=None)
    text = "random_image_scale { min_scale_ratio: 0.1 max_scale_ratio: 0.2 }"
    assert run_step(text, sample).image.shape == (1, 1, 3)


def test_scale_boxes_to_pixel_coordinates() -> None:
    scaled = run_step("scale_boxes_to_pixel_coordinates {}", small_sample())
    np.testing.assert_allclose(scaled.boxes, [[0.2, 0.8, 1.0, 2.4]], atol=1e-6)
    np.testing.assert_allclose(scaled.keypoints, [[[0.2, 0.8], [1.0, 2.4]]], atol=1e-6)


def test_random_resize_method_draws_all_four() -> None:
    sample = sample_of("full")
    size, found = [13, 20], set()
    by_method = [
        np.array(resize(sample, tf.constant(size), method).image) for method in RESIZE_METHODS
    ]
    augment = make_augmentation(
        [step("random_resize_method { target_height: 13 target_width: 20 }")]
    )
    for i in range(24):
        result = augment(sample, tf.constant([i, 0]))
        off = [np.abs(result.image - one).max() for one in by_method]
        assert min(off) < 1e-3 and result.masks.shape == (3, 13, 20)
        found.add(int(np.argmin(off)))
    assert found == {0, 1, 2, 3}


def test_downscale_by_hand() -> None:
    """768 pixels to 300: sqrt(300 / 768) = 0.625 times 24 x 32."""
    sample = sample_of("full")
    smaller = downscale(sample, tf.constant(300))
    assert smaller.image.shape == (15, 20, 3) and smaller.masks.shape == (3, 15, 20)
    np.testing.assert_array_equal(smaller.boxes, sample.boxes)
    same = downscale(sample, tf.constant(768))
    assert same.image.shape == (24, 32, 3)


def test_default_of_target_pixels_is_that_of_the_reference() -> None:
    """Up to 800,000, although the schema says 500,000."""
    unset = config_of("random_downscale_to_target_pixels {}")
    assert _target_pixels(unset) == (300_000, 800_000)
    given = config_of("random_downscale_to_target_pixels { max_target_pixels: 500000 }")
    assert _target_pixels(given) == (300_000, 500_000)


@pytest.mark.parametrize(
    ("axis", "boxes"),
    [
        (0, [[0.05, 0.2, 0.25, 0.6], [0.55, 0.2, 0.75, 0.6]]),
        (1, [[0.1, 0.1, 0.5, 0.3], [0.1, 0.6, 0.5, 0.8]]),
    ],
)
def test_repeat_by_hand(axis: int, boxes: List[List[float]]) -> None:
    sample = small_sample()
    twice = repeat_image(sample, axis)
    image, mask = np.array(sample.image), np.array(sample.masks)[0]
    np.testing.assert_array_equal(twice.image, np.concatenate([image, image], axis))
    np.testing.assert_allclose(twice.boxes, boxes, atol=1e-6)
    # The keypoints are the corners of the box.
    np.testing.assert_allclose(np.reshape(twice.keypoints, [2, 4]), boxes, atol=1e-6)
    empty = np.zeros_like(mask)
    np.testing.assert_array_equal(twice.masks[0], np.concatenate([mask, empty], axis))
    np.testing.assert_array_equal(twice.masks[1], np.concatenate([empty, mask], axis))


def test_other_fields_are_repeated() -> None:
    sample = sample_of("full")
    twice = repeat_image(sample, 0)
    for name in ("classes", "weights", "confidences", "area", "is_crowd", "keypoint_visibilities"):
        value = np.array(getattr(sample, name))
        np.testing.assert_array_equal(getattr(twice, name), np.concatenate([value, value]))
    assert twice.image_level is sample.image_level

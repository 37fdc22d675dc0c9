from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment.geometry import (
    FLIP_X,
    FLIP_Y,
    RESIZE_METHODS,
    ROTATE_LEFT,
    _target_pixels,
    move,
    repeat_image,
    resize,
)
from tests.inputs.augment.helpers import (
    config_of,
    make_augmentation,
    run_step,
    sample_of,
    small_sample,
    step,
)


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


def test_resize_to_a_height_and_a_width() -> None:
    resized = run_step("resize_image { new_height: 6 new_width: 5 }", small_sample())
    assert resized.image.shape == (6, 5, 3) and resized.masks.shape == (1, 6, 5)
    np.testing.assert_allclose(resized.area, [8 * 30 / 8])


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


def test_default_of_target_pixels_is_that_of_the_reference() -> None:
    """Up to 800,000, although the schema says 500,000."""
    unset = config_of("random_downscale_to_target_pixels {}")
    assert _target_pixels(unset) == (300_000, 800_000)
    given = config_of("random_downscale_to_target_pixels { max_target_pixels: 500000 }")
    assert _target_pixels(given) == (300_000, 500_000)


def test_other_fields_are_repeated() -> None:
    sample = sample_of("full")
    twice = repeat_image(sample, 0)
    for name in ("classes", "weights", "confidences", "area", "is_crowd", "keypoint_visibilities"):
        value = np.array(getattr(sample, name))
        np.testing.assert_array_equal(getattr(twice, name), np.concatenate([value, value]))
    assert twice.image_level is sample.image_level

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment.color import compress, random_adjust_brightness
from tests.inputs.augment.helpers import config_of, make_augmentation, run_step, sample_of, step

SEED = (3, 4)


def _run(text: str, image: np.ndarray) -> np.ndarray:
    sample = sample_of("bare")._replace(image=tf.constant(image))
    return np.array(make_augmentation([step(text)])(sample, tf.constant(SEED)).image)


def _image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 7, 3)).astype(np.uint8)


def test_results_are_clipped() -> None:
    white = np.full((4, 4, 3), 255, np.uint8)
    sample = sample_of("bare")._replace(image=tf.constant(white, tf.float32))
    config = config_of("random_adjust_brightness { max_delta: 1 }")
    for i in range(5):
        image = random_adjust_brightness(sample, tf.constant([i, 0]), config).image
        assert np.min(image) >= 0 and np.max(image) <= 255


def test_further_channels_pass_through() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 4, 5)).astype(np.uint8)
    result = _run("random_distort_color {}", image)
    np.testing.assert_array_equal(result[..., 3:], image[..., 3:])
    assert np.abs(result[..., :3] - image[..., :3]).max() > 0


def test_pixel_value_scale_draws_per_value() -> None:
    image = np.full((20, 20, 3), 100, np.uint8)
    result = _run("random_pixel_value_scale { minval: 0.5 maxval: 3 }", image)
    assert 50 <= result.min() < 60 and result.max() == 255
    assert len(np.unique(result[result < 255])) > 500


def test_rgb_to_gray_refuses_other_channels() -> None:
    with pytest.raises(ConfigError, match="3 channels; given: 5"):
        _run("rgb_to_gray {}", np.zeros((2, 2, 5), np.uint8))


def test_random_rgb_to_gray_keeps_three_channels() -> None:
    image = np.array([[[100, 50, 200]]], np.uint8)
    result = _run("random_rgb_to_gray { probability: 1 }", image)
    np.testing.assert_allclose(result, [[[82.04] * 3]], rtol=1e-5)
    np.testing.assert_array_equal(_run("random_rgb_to_gray { probability: 0 }", image), image)


def test_subtract_channel_mean() -> None:
    image = np.array([[[10, 20, 30]]], np.uint8)
    result = _run("subtract_channel_mean { means: [1, 2, 33] }", image)
    np.testing.assert_allclose(result, [[[9.0, 18.0, -3.0]]])
    np.testing.assert_array_equal(_run("subtract_channel_mean {}", image), image)
    with pytest.raises(ConfigError, match="2 means for images of 3 channels"):
        _run("subtract_channel_mean { means: [1, 2] }", image)


def test_compression_is_that_of_tf_image() -> None:
    """Of the whole part of values; channels beyond RGB, and one channel alone, too."""
    image = np.float32(sample_of().image) * 0.9
    expected = np.array(tf.image.adjust_jpeg_quality(image.astype(np.uint8), 30))
    five = np.concatenate([image, image[..., :2]], axis=-1)
    found = np.array(compress(tf.constant(five), tf.constant(30)))
    np.testing.assert_array_equal(found[..., :3], expected)
    np.testing.assert_array_equal(found[..., 3:], image[..., :2])
    gray = tf.constant(image[..., :1])
    assert compress(gray, tf.constant(30)).shape == (24, 32, 1)


def test_not_applied() -> None:
    sample = sample_of("bare", np.float32)
    same = run_step("random_jpeg_quality { random_coef: 1 }", sample)
    np.testing.assert_array_equal(same.image, sample.image)

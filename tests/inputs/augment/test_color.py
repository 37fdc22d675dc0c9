from __future__ import annotations

from typing import Callable

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment import make_augmentation
from inputs.augment.base import random_between, split_seed
from inputs.augment.color import compress, random_adjust_brightness
from tests.inputs.augment.helpers import config_of, run_step, sample_of, step

SEED = (3, 4)


def _run(text: str, image: np.ndarray) -> np.ndarray:
    sample = sample_of("bare")._replace(image=tf.constant(image))
    return np.array(make_augmentation([step(text)])(sample, tf.constant(SEED)).image)


def _step_seed() -> tf.Tensor:
    return split_seed(tf.constant(SEED), 1)[0]


def _on_unit_scale(
    image: tf.Tensor, adjust: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], amount: tf.Tensor
) -> tf.Tensor:
    return tf.clip_by_value(adjust(image / 255.0, amount) * 255.0, 0.0, 255.0)


def _image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 7, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("text", "adjust", "low", "high"),
    [
        ("random_adjust_brightness {}", tf.image.adjust_brightness, -0.2, 0.2),
        ("random_adjust_contrast {}", tf.image.adjust_contrast, 0.8, 1.25),
        ("random_adjust_hue {}", tf.image.adjust_hue, -0.02, 0.02),
        ("random_adjust_saturation {}", tf.image.adjust_saturation, 0.8, 1.25),
        ("random_adjust_brightness { max_delta: 0.5 }", tf.image.adjust_brightness, -0.5, 0.5),
        (
            "random_adjust_contrast { min_delta: 1.5 max_delta: 2 }",
            tf.image.adjust_contrast,
            1.5,
            2.0,
        ),
        ("random_adjust_hue { max_delta: 0.25 }", tf.image.adjust_hue, -0.25, 0.25),
        (
            "random_adjust_saturation { min_delta: 1.5 max_delta: 2 }",
            tf.image.adjust_saturation,
            1.5,
            2.0,
        ),
    ],
)
def test_adjustments_are_those_of_tf_image_on_the_unit_scale(
    text: str, adjust: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], low: float, high: float
) -> None:
    image = _image()
    amount = random_between(_step_seed(), low, high)
    expected = _on_unit_scale(tf.cast(image, tf.float32), adjust, amount)
    np.testing.assert_allclose(_run(text, image), expected, atol=2e-3)


@pytest.mark.parametrize("ordering", [0, 1])
def test_distort_color_orderings(ordering: int) -> None:
    image = _image()
    brightness, saturation, hue, contrast = split_seed(_step_seed(), 4)
    adjust = {
        "saturation": (tf.image.adjust_saturation, random_between(saturation, 0.5, 1.5)),
        "hue": (tf.image.adjust_hue, random_between(hue, -0.2, 0.2)),
        "contrast": (tf.image.adjust_contrast, random_between(contrast, 0.5, 1.5)),
    }
    order = [["saturation", "hue", "contrast"], ["contrast", "saturation", "hue"]][ordering]
    expected = _on_unit_scale(
        tf.cast(image, tf.float32),
        tf.image.adjust_brightness,
        random_between(brightness, -32 / 255, 32 / 255),
    )
    for name in order:
        expected = _on_unit_scale(expected, *adjust[name])
    result = _run(f"random_distort_color {{ color_ordering: {ordering} }}", image)
    np.testing.assert_allclose(result, expected, atol=5e-3)


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


def test_rgb_to_gray_by_hand() -> None:
    image = np.array([[[100, 50, 200], [0, 0, 0]]], np.uint8)
    result = _run("rgb_to_gray {}", image)
    # 0.2989 * 100 + 0.587 * 50 + 0.114 * 200
    np.testing.assert_allclose(result, [[[82.04], [0.0]]], rtol=1e-5)


def test_rgb_to_gray_refuses_other_channels() -> None:
    with pytest.raises(ConfigError, match="3 channels; given: 5"):
        _run("rgb_to_gray {}", np.zeros((2, 2, 5), np.uint8))


def test_random_rgb_to_gray_keeps_three_channels() -> None:
    image = np.array([[[100, 50, 200]]], np.uint8)
    result = _run("random_rgb_to_gray { probability: 1 }", image)
    np.testing.assert_allclose(result, [[[82.04] * 3]], rtol=1e-5)
    np.testing.assert_array_equal(_run("random_rgb_to_gray { probability: 0 }", image), image)


def test_normalize_image_by_hand() -> None:
    image = np.array([[[0, 51, 255]]], np.uint8)
    result = _run("normalize_image { original_maxval: 255 target_minval: -1 }", image)
    np.testing.assert_allclose(result, [[[-1.0, -0.6, 1.0]]], rtol=1e-5)
    bounds = "original_minval: 51 original_maxval: 255 target_minval: -1 target_maxval: 3"
    result = _run(f"normalize_image {{ {bounds} }}", image)
    np.testing.assert_allclose(result, [[[-2.0, -1.0, 3.0]]], rtol=1e-5)


def test_subtract_channel_mean() -> None:
    image = np.array([[[10, 20, 30]]], np.uint8)
    result = _run("subtract_channel_mean { means: [1, 2, 33] }", image)
    np.testing.assert_allclose(result, [[[9.0, 18.0, -3.0]]])
    np.testing.assert_array_equal(_run("subtract_channel_mean {}", image), image)
    with pytest.raises(ConfigError, match="2 means for images of 3 channels"):
        _run("subtract_channel_mean { means: [1, 2] }", image)


def test_softmax_of_multiclass_scores() -> None:
    logits = tf.constant([[0.0, 2.0 * np.log(3.0)]], tf.float32)
    sample = sample_of("bare")._replace(multiclass_scores=logits)
    augment = make_augmentation([step("convert_class_logits_to_softmax { temperature: 2 }")])
    scores = augment(sample, tf.constant(SEED)).multiclass_scores
    np.testing.assert_allclose(scores, [[0.25, 0.75]], rtol=1e-5)


def test_gamma_by_hand() -> None:
    image = np.array([[[0, 51, 255, 51]]], np.float32)
    squared = _run("adjust_gamma { gamma: 2 gain: 0.5 }", image)
    np.testing.assert_allclose(squared, [[[0, 5.1, 127.5, 51]]], atol=1e-3)
    brighter = _run("adjust_gamma { gain: 3 }", image)
    np.testing.assert_allclose(brighter, [[[0, 153, 255, 51]]], atol=1e-3)
    below_zero = _run("adjust_gamma { gamma: 0.5 }", -image)
    assert np.isfinite(below_zero).all()


def test_lower_quality_loses_more() -> None:
    image = np.float32(sample_of().image)
    loss = [
        float(np.abs(np.array(compress(tf.constant(image), tf.constant(quality))) - image).mean())
        for quality in (5, 50, 95)
    ]
    assert loss[0] > loss[1] > loss[2] > 0


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

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment import AUGMENTATIONS
from inputs.augment.mixup import blend, random_share
from inputs.schema import Sample
from tests.inputs.augment.helpers import config_of


def plain(value: int, height: int, width: int, weight: float) -> Sample:
    """A grey image whose one box is all of it."""
    return Sample(
        image=tf.fill([height, width, 3], tf.constant(value, tf.uint8)),
        boxes=tf.constant([[0.0, 0.0, 1.0, 1.0]]),
        classes=tf.constant([value], tf.int64),
        weights=tf.constant([weight]),
        masks=tf.ones([1, height, width]),
        keypoints=tf.constant([[[0.5, 1.0]]]),
    )


@pytest.mark.parametrize(("scale_weights", "weights"), [(True, [0.2, 0.375]), (False, [0.8, 0.5])])
def test_a_quarter_of_the_first_image(scale_weights, weights) -> None:
    first, second = plain(100, 2, 2, 0.8), plain(200, 4, 3, 0.5)
    result = blend([first, second], tf.constant(0.25), scale_weights)
    expected = np.full((4, 3), 150.0)
    expected[:2, :2] = 175
    np.testing.assert_allclose(result.image, np.repeat(expected[..., None], 3, 2))
    np.testing.assert_allclose(result.boxes, [[0, 0, 0.5, 2 / 3], [0, 0, 1, 1]], rtol=1e-6)
    np.testing.assert_allclose(result.keypoints, [[[0.25, 2 / 3]], [[0.5, 1]]], rtol=1e-6)
    np.testing.assert_allclose(result.weights, weights, rtol=1e-6)
    np.testing.assert_array_equal(result.classes, [100, 200])
    masks = np.ones((2, 4, 3))
    masks[0, 2:], masks[0, :, 2:] = 0, 0
    np.testing.assert_array_equal(result.masks, masks)


def shares(alpha: float, count: int) -> np.ndarray:
    seeds = tf.data.Dataset.range(count).batch(count)
    draw = seeds.map(
        lambda numbers: tf.map_fn(
            lambda number: random_share(tf.stack([number, 1]), alpha),
            numbers,
            fn_output_signature=tf.float32,
        )
    )
    return next(draw.as_numpy_iterator())


@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_the_share_has_a_beta_distribution(alpha: float) -> None:
    """Mean 1/2, variance 1 / (4 (2 alpha + 1)); of 1,000 fixed seeds, within 4 deviations."""
    found = shares(alpha, 1000)
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(found.mean() - 0.5) < 4 * np.sqrt(variance / 1000)
    assert abs(found.var() - variance) < 0.15 * variance
    assert found.min() >= 0 and found.max() <= 1


def test_a_tiny_alpha_takes_one_of_the_images() -> None:
    """Both draws of the gamma distribution may be 0."""
    found = shares(1e-3, 40)
    np.testing.assert_allclose(found, np.round(found), atol=1e-3)
    assert 10 < found.sum() < 30


def test_the_step_draws_the_share() -> None:
    config = config_of("mixup { alpha: 2 }")
    seed = tf.constant([4, 2])
    samples = [plain(100, 1, 1, 1.0), plain(200, 1, 1, 1.0)]
    share = float(random_share(seed, 2.0))
    mixed = AUGMENTATIONS.get("mixup")(samples, seed, config)
    np.testing.assert_allclose(mixed.weights, [share, 1 - share], rtol=1e-5)
    np.testing.assert_allclose(mixed.image, np.full((1, 1, 3), 200 - 100 * share), rtol=1e-5)

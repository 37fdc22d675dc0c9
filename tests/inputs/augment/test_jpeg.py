from __future__ import annotations

import numpy as np

from estimator_det.compat import tf
from inputs.augment.jpeg import compress
from tests.inputs.augment.helpers import run_step, sample_of


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

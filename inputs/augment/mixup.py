"""Mixup: the weighted mean of two images.

Source: Zhang et al., Bag of Freebies for Training Object Detection Neural Networks (2019), section
3.1. Neither image is scaled: both lie at the top left of a black canvas that contains both.
"""

from __future__ import annotations

from typing import Sequence

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs.augment.base import AUGMENTATIONS, image_size, uniform
from inputs.augment.mixing import merge, mixes
from inputs.augment.pad import pad
from inputs.sample import Sample

SMALLEST_SUM = 1e-36  # sum of two gamma-distributed numbers that did not underflow


def blend(samples: Sequence[Sample], share: tf.Tensor, scale_weights: bool) -> Sample:
    """Blends two samples: `share` (float32 scalar, 0 to 1) of the first, the rest of the second.

    `scale_weights` multiplies the weights of boxes by the share of their image.
    """
    canvas = tf.maximum(*(image_size(sample.image) for sample in samples))
    origin = tf.zeros([2], tf.int32)
    shares = (share, 1.0 - share)
    padded = [
        pad(sample._replace(image=tf.cast(sample.image, tf.float32)), canvas, origin)
        for sample in samples
    ]
    if scale_weights:
        padded = [
            sample._replace(weights=sample.weights * share_of_image)
            for sample, share_of_image in zip(padded, shares)
        ]
    first, second = (
        sample.image * share_of_image for sample, share_of_image in zip(padded, shares)
    )
    # Rounding may exceed 255.
    return merge(padded)._replace(image=tf.minimum(first + second, 255.0))


def random_share(seed: tf.Tensor, alpha: float) -> tf.Tensor:
    """Draws a float32 scalar with the distribution Beta(alpha, alpha)."""
    # The shares of two gamma-distributed numbers in their sum have the Beta distribution.
    parts = tf.random.stateless_gamma([2], seed, alpha)
    total = tf.reduce_sum(parts)
    # With a small alpha both can underflow: TensorFlow then returns its least number for both.
    is_first = uniform([], seed) < 0.5
    return tf.where(total > SMALLEST_SUM, parts[0] / total, tf.cast(is_first, tf.float32))


@AUGMENTATIONS.register("mixup")
@mixes(2)
def mixup(samples: Sequence[Sample], seed: tf.Tensor, config: preprocessor_pb2.MixUp) -> Sample:
    """Blends two images with a share from Beta(alpha, alpha), and keeps the boxes of both."""
    return blend(samples, random_share(seed, config.alpha), config.scale_weights)

"""JPEG compression of pixels; labels do not change."""

from __future__ import annotations

from typing import Any

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment.base import (
    AUGMENTATIONS,
    change_if,
    check_probability,
    checked_by,
    random_integers,
    split_seed,
    uniform,
)
from inputs.augment.operations import on_rgb
from inputs.schema import Sample


def compress(image: tf.Tensor, quality: tf.Tensor) -> tf.Tensor:
    """Compresses and decodes an image, uint8 or float32; channels beyond RGB do not change.

    `quality` is an int32 scalar, 0 to 100. Pixel values are truncated to whole numbers.
    """
    return on_rgb(image, lambda rgb: _compress_rgb(rgb, quality))


def _compress_rgb(rgb: tf.Tensor, quality: tf.Tensor) -> tf.Tensor:
    encoded = tf.raw_ops.EncodeJpegVariableQuality(
        images=tf.saturate_cast(rgb, tf.uint8), quality=quality
    )
    return tf.cast(tf.io.decode_jpeg(encoded, channels=rgb.shape[-1] or 0), rgb.dtype)


def _check_quality(config: Any) -> None:
    check_probability("random_coef", config.random_coef)
    low, high = config.min_jpeg_quality, config.max_jpeg_quality
    if not 0 <= low < high <= 100:
        raise ConfigError(
            "min_jpeg_quality",
            f"is {low} and max_jpeg_quality is {high}",
            "set 0 <= min_jpeg_quality < max_jpeg_quality <= 100",
        )


@AUGMENTATIONS.register("random_jpeg_quality")
@checked_by(_check_quality)
def random_jpeg_quality(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Compresses as JPEG, except with probability `random_coef`.

    The quality is at least min_jpeg_quality and below max_jpeg_quality.
    """
    chance_seed, quality_seed = split_seed(seed, 2)
    bounds = tf.constant([[config.min_jpeg_quality], [config.max_jpeg_quality]])
    quality = random_integers(quality_seed, bounds[0], bounds[1])[0]
    return change_if(
        uniform([], chance_seed) >= config.random_coef,
        sample,
        lambda old: old._replace(image=compress(old.image, quality)),
    )

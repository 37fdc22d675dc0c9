"""What feature extractors of single-shot and of two-stage detectors share."""

from __future__ import annotations

from typing import Any, NamedTuple

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError

RGB_MEANS = (123.68, 116.779, 103.939)
"""Of the pictures that ResNet and VGG classifiers were trained on, in pixels of 0..255."""

FINEST_FPN_LEVEL = 2
"""Level of the finest activation a feature pyramid can use; level n is at stride 2^n."""


class FpnLevels(NamedTuple):
    """An `fpn` message: which levels a feature pyramid has; level n is at stride 2^n.

    Attributes:
        min_level: The finest.
        max_level: The coarsest.
        depth: Channels of every level at depth multiplier 1.
    """

    min_level: int = 3
    max_level: int = 7
    depth: int = 256


def make_fpn_levels(config: Any) -> FpnLevels:
    """Levels of a `FeaturePyramidNetworks` message.

    Raises:
        ConfigError: if a level or the depth is out of range.
    """
    levels = FpnLevels(config.min_level, config.max_level, config.additional_layer_depth)
    for field in ("min_level", "additional_layer_depth"):
        value = getattr(config, field)
        if value < 1:
            raise ConfigError(f"feature_extractor.fpn.{field} must be 1 or more; got {value}")
    if levels.max_level < levels.min_level:
        raise ConfigError(
            "feature_extractor.fpn: max_level must not be below min_level; got "
            f"{levels.max_level} and {levels.min_level}"
        )
    return levels


def minus_channel_means(images: tf.Tensor) -> tf.Tensor:
    """Pixels 0..255 less the means of red, green and blue, the scale of ResNets.

    Images of another number of channels stay as they are, as in the reference.
    """
    return images - tf.constant(RGB_MEANS) if images.shape[-1] == len(RGB_MEANS) else images


def to_plus_minus_one(images: tf.Tensor) -> tf.Tensor:
    """Pixels 0..255 to -1..1, the scale of MobileNets and Inceptions."""
    return (2.0 / 255.0) * images - 1.0


def large_enough(images: tf.Tensor, least: int) -> tf.Tensor:
    """[B, h, w, C], the images themselves if h and w are at least `least`.

    Where the sizes are not static, they are checked at run time.

    Raises:
        ConfigError: if they are too small.
    """
    message = f"image size must be at least {least} x {least} pixels"
    sides = images.shape[1:3].as_list()
    if any(side is not None and side < least for side in sides):
        raise ConfigError(f"{message}; got {sides}. Enlarge the images in image_resizer")
    if None not in sides:
        return images
    enough = tf.reduce_min(tf.shape(images)[1:3]) >= least
    with tf1.control_dependencies([tf1.Assert(enough, [message, tf.shape(images)])]):
        return tf.identity(images)

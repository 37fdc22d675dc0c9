"""Square crops of images at a random scale.

Sources: Zhou et al., Objects as Points (2019), for the crop by scale; Tan et al., EfficientDet
(2020), for the scaled crop to a fixed size. The windows are the Object Detection API's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs.augment.base import (
    AUGMENTATIONS,
    cut,
    float_image,
    image_size,
    random_between,
    random_integer,
    random_integers,
    split_seed,
    uniform,
)
from inputs.augment.crop import crop_labels
from inputs.augment.geometry import resize
from inputs.augment.pad import add_margins
from inputs.sample import Sample


class Frame(NamedTuple):
    """Window that becomes a square image; its pixels outside the image are black."""

    side: tf.Tensor  # int32 scalar, side of the result
    origin: tf.Tensor  # int32 [2], its first row and column in the image; may be negative
    end: tf.Tensor  # int32 [2], first row and column of the image that are not copied any more


def to_square(sample: Sample, frame: Frame) -> Sample:
    """Cuts image and masks to a frame; boxes outside are dropped, the others clipped to it."""
    size, begin = image_size(sample.image), tf.maximum(frame.origin, 0)
    extent = tf.maximum(frame.end - begin, 0)
    before = tf.where(extent > 0, begin - frame.origin, 0)
    margins = tf.stack([before, frame.side - before - extent], axis=1)
    ends = tf.concat([frame.origin, frame.origin + frame.side], axis=0)
    window = tf.cast(ends, tf.float32) / tf.tile(tf.cast(size, tf.float32), [2])
    labels = crop_labels(sample, window, tf.constant(0.0), tf.constant(True))
    return add_margins(cut(labels, begin, extent), margins)


def frame_by_scale(size: tf.Tensor, scale: tf.Tensor, center: tf.Tensor) -> Frame:
    """Square around a pixel, `scale` times as long as the longer side of the image.

    Like in the API, the last row and column of the image are never copied, and an odd side
    has a black last line.
    """
    side = tf.cast(scale * tf.cast(tf.reduce_max(size), tf.float32), tf.int32)
    half = side // 2
    return Frame(tf.maximum(side, 1), center - half, tf.minimum(center + half, size - 1))


def border_size(size: tf.Tensor, max_border: int) -> tf.Tensor:
    """Distance of a square's centre from the edges, int32 [2]: less in small images."""
    if max_border == 0:
        return tf.zeros([2], tf.int32)
    ratio = 2.0 * max_border / tf.cast(size, tf.float32)
    halvings = tf.pow(2.0, tf.math.ceil(tf.math.log(ratio) / tf.math.log(2.0)))
    divisor = tf.cast(tf.clip_by_value(halvings, 1.0, float(max_border)), tf.int32)
    return max_border // divisor


@AUGMENTATIONS.register("random_square_crop_by_scale")
def random_square_crop_by_scale(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomSquareCropByScale
) -> Sample:
    """Cuts a square of one of `num_scales` sizes out of the image, black around it.

    Its centre is any pixel outside a border of at most `max_border` pixels.
    """
    scale_seed, center_seed = split_seed(seed, 2)
    scales = np.linspace(config.scale_min, config.scale_max, config.num_scales, dtype=np.float32)
    index = random_integer(scale_seed, 0, config.num_scales)
    size = image_size(sample.image)
    border = border_size(size, config.max_border)
    center = random_integers(center_seed, border, size - border + 1)
    return to_square(sample, frame_by_scale(size, tf.gather(scales, index), center))


def scale_to(sample: Sample, output_size: int, scale: tf.Tensor) -> Sample:
    """Resizes so that the longer side is `scale` times `output_size`."""
    size = tf.cast(image_size(sample.image), tf.float32)
    scaled = scale * output_size * size / tf.reduce_max(size)
    target = tf.maximum(tf.cast(scaled, tf.int32), 1)
    return resize(sample, target, tf.image.ResizeMethod.BILINEAR)


def fixed_size_frame(size: tf.Tensor, output_size: int, fractions: tf.Tensor) -> Frame:
    """Square of fixed size; `fractions`, float32 [2] of 0 to 1, place it in a larger image."""
    num_places = tf.cast(tf.maximum(size - output_size, 0), tf.float32)
    origin = tf.cast(num_places * fractions, tf.int32)
    return Frame(tf.constant(output_size), origin, tf.minimum(origin + output_size, size))


@AUGMENTATIONS.register("random_scale_crop_and_pad_to_square")
@float_image
def random_scale_crop_and_pad_to_square(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomScaleCropAndPadToSquare
) -> Sample:
    """Resizes at random, then cuts or pads (below, to the right) to output_size x output_size.

    The longer side becomes `output_size` times a scale from [scale_min, scale_max).
    """
    scale_seed, place_seed = split_seed(seed, 2)
    scale = random_between(scale_seed, config.scale_min, config.scale_max)
    scaled = scale_to(sample, config.output_size, scale)
    fractions = uniform([2], place_seed)
    frame = fixed_size_frame(image_size(scaled.image), config.output_size, fractions)
    return to_square(scaled, frame)

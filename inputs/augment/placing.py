"""Places a part of one image, scaled, in the frame of another; for steps that mix records."""

from __future__ import annotations

from typing import NamedTuple, Optional

from estimator_det.compat import tf
from inputs.augment.crop import crop, window_at
from inputs.augment.geometry import resize
from inputs.augment.pad import pad
from inputs.schema import Sample


class Placement(NamedTuple):
    """Source and destination of an image's pixels; all int32 [2], rows and columns."""

    begin: tf.Tensor  # first pixel of the window that is cut out
    size: tf.Tensor  # size of the window
    target: tf.Tensor  # size of the window after scaling
    offset: tf.Tensor  # its first pixel in the area
    area: tf.Tensor  # size of the area; the window lies within it


def scaled_window(
    size: tf.Tensor, area: tf.Tensor, scale: tf.Tensor, position: tf.Tensor
) -> tf.Tensor:
    """Computes the largest window whose scaled size fits into an area: its begin, size and target.

    The result is int32 [3, 2]; `position`, float32 [2] in [0, 1), is that among possible places.
    """
    scaled = tf.round(tf.cast(size, tf.float32) * scale)
    target = tf.minimum(tf.cast(scaled, tf.int32), area)
    target = tf.maximum(target, 1)
    window = tf.cast(tf.round(tf.cast(target, tf.float32) / scale), tf.int32)
    window = tf.clip_by_value(window, 1, size)
    begin = tf.cast(position * tf.cast(size - window + 1, tf.float32), tf.int32)
    return tf.stack([tf.minimum(begin, size - window), window, target])


def largest_scale(size: tf.Tensor, frame: tf.Tensor) -> tf.Tensor:
    """Largest factor, float32, by which an image of `size` fits into `frame`, int32 [2] each."""
    return tf.reduce_min(tf.cast(frame, tf.float32) / tf.cast(size, tf.float32))


def place(
    sample: Sample, placement: Placement, overlap_thresh: float, color: Optional[tf.Tensor] = None
) -> Sample:
    """Cuts out a window, scales it and places it in an area, with all labels; float32.

    Boxes are clipped to the window; those of which less than `overlap_thresh` or nothing remains
    are dropped. `color`, float32 [C] or [1], is the colour around the window; None is black.
    """
    window = window_at(placement.begin, placement.size, sample.image)
    cut = crop(sample, window, tf.constant(overlap_thresh), tf.constant(True))
    scaled = resize(cut, placement.target, tf.image.ResizeMethod.BILINEAR)
    # Resizing to the same size keeps the image's type.
    scaled = scaled._replace(image=tf.cast(scaled.image, tf.float32))
    return pad(scaled, placement.area, placement.offset, color)


def mask_boxes(masks: tf.Tensor) -> tf.Tensor:
    """Smallest boxes, float32 [n, 4] normalized yxyx, around masks [n, h, w] above 0.

    Zeros for an empty mask.
    """
    is_object = masks > 0
    sides = []
    for axis in (2, 1):
        is_used = tf.reduce_any(is_object, axis=axis)
        length = tf.shape(is_used)[1]
        places = tf.range(length)
        low = tf.reduce_min(tf.where(is_used, places, length), axis=1)
        high = tf.reduce_max(tf.where(is_used, places + 1, 0), axis=1)
        pair = tf.stack([tf.minimum(low, high), high], axis=1)
        sides.append(tf.cast(pair, tf.float32) / tf.cast(length, tf.float32))
    return tf.stack([sides[0][:, 0], sides[1][:, 0], sides[0][:, 1], sides[1][:, 1]], axis=1)

"""Places a part of one image, scaled, in the frame of another; for steps that mix records."""

from __future__ import annotations

from typing import NamedTuple, Optional

from estimator_det.compat import tf
from inputs.augment.crop import crop, window_at
from inputs.augment.geometry import resize
from inputs.augment.pad import pad
from inputs.decoding.box_rules import TENSORFLOW, mask_extents
from inputs.sample import Sample


class Placement(NamedTuple):
    """The part of an image that fits into an area; all int32 [2], rows and columns."""

    begin: tf.Tensor  # first pixel of the window that is cut out
    size: tf.Tensor  # size of the window
    target: tf.Tensor  # size of the window after scaling
    area: tf.Tensor  # size of the area


def fit(size: tf.Tensor, area: tf.Tensor, scale: tf.Tensor, position: tf.Tensor) -> Placement:
    """Computes the largest window whose scaled size fits into an area.

    `position`, float32 [2] in [0, 1), chooses among its possible places in an image of `size`.
    """
    scaled = tf.cast(tf.round(tf.cast(size, tf.float32) * scale), tf.int32)
    target = tf.maximum(tf.minimum(scaled, area), 1)
    window = tf.cast(tf.round(tf.cast(target, tf.float32) / scale), tf.int32)
    window = tf.clip_by_value(window, 1, size)
    begin = tf.cast(position * tf.cast(size - window + 1, tf.float32), tf.int32)
    return Placement(tf.minimum(begin, size - window), window, target, area)


def largest_scale(size: tf.Tensor, frame: tf.Tensor) -> tf.Tensor:
    """Largest factor, float32, by which an image of `size` fits into `frame`, int32 [2] each."""
    return tf.reduce_min(tf.cast(frame, tf.float32) / tf.cast(size, tf.float32))


def place(
    sample: Sample,
    placement: Placement,
    offset: tf.Tensor,
    overlap_thresh: float,
    color: Optional[tf.Tensor] = None,
) -> Sample:
    """Cuts out a window, scales it and places it at an offset in its area, with all labels.

    Boxes are clipped to the window, and dropped if less than `overlap_thresh` of them, or nothing,
    remains. `color`, float32 [C] or [1], is the colour around the window; None is black.
    """
    window = window_at(placement.begin, placement.size, sample.image)
    cut = crop(sample, window, tf.constant(overlap_thresh), tf.constant(True))
    scaled = resize(cut, placement.target, tf.image.ResizeMethod.BILINEAR)
    # Resizing to the same size keeps the image's type.
    scaled = scaled._replace(image=tf.cast(scaled.image, tf.float32))
    return pad(scaled, placement.area, offset, color)


def mask_boxes(masks: tf.Tensor) -> tf.Tensor:
    """Smallest boxes, float32 [n, 4] normalized yxyx, around masks [n, h, w] of 0 and 1.

    The box of an empty mask is zeros.
    """
    boxes = mask_extents(masks, TENSORFLOW).boxes
    return tf.where(tf.reduce_all(boxes[:, :2] < boxes[:, 2:], 1, keepdims=True), boxes, 0.0)

"""Conversion of instance masks between the frame of their box and the frame of the image.

Letters: B images, N boxes, G masks of an image, h x w mask pixels, H x W image pixels. Boxes are
normalized to the image.
"""

from __future__ import annotations

from typing import Optional, Tuple

from estimator_det.boxes import geometry
from estimator_det.compat import tf

# Outside the mask: crop_and_resize fills such a crop with its extrapolation value.
_OUTSIDE = [2.0, 2.0, 3.0, 3.0]


def reframe_masks(
    masks: tf.Tensor, boxes: tf.Tensor, image_size: Tuple[int, int], method: str = "bilinear"
) -> tf.Tensor:
    """Pastes masks [..., h, w] that fill boxes [..., 4] into the image: float32 [..., H, W].

    Pixels outside the boxes are 0; others are not rounded to 0 and 1. The part of a box outside the
    image is cut off, and a box without area gives an empty mask. `method` is "bilinear" or
    "nearest".
    """
    leading = tf.shape(masks)[:-2]
    height, width = masks.shape[-2:]
    flat_masks = tf.reshape(masks, [-1, *_sizes(masks)])
    flat_boxes = tf.reshape(boxes, [-1, 4])
    # The image's position relative to the box: cropping the mask there pastes it into the image.
    image_in_box = geometry.change_frame(tf.constant([0.0, 0.0, 1.0, 1.0]), flat_boxes)
    has_area = (flat_boxes[:, 2] > flat_boxes[:, 0]) & (flat_boxes[:, 3] > flat_boxes[:, 1])
    image_in_box = tf.where(has_area[:, None], image_in_box, tf.constant(_OUTSIDE))
    pasted = tf.image.crop_and_resize(
        tf.ensure_shape(flat_masks, [None, height, width])[..., None],
        image_in_box,
        tf.range(tf.shape(flat_masks)[0]),
        image_size,
        method=method,
        extrapolation_value=0.0,
    )[..., 0]
    result = tf.reshape(pasted, tf.concat([leading, tf.shape(pasted)[1:]], axis=0))
    result.set_shape(masks.shape[:-2].concatenate(pasted.shape[1:]))
    return result


def crop_masks(
    masks: tf.Tensor,
    boxes: tf.Tensor,
    crop_size: Tuple[int, int],
    mask_indices: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """Cuts masks [B, G, H, W] to boxes [B, N, 4], and resizes them bilinearly: [B, N, h, w].

    This is the inverse of `reframe_masks`. Box n cuts mask n (N is G), or the mask of
    `mask_indices`, int32 [B, N]. The result is 0 outside the image.
    """
    batch, num_masks = tf.unstack(tf.shape(masks)[:2], num=2)
    if mask_indices is None:
        mask_indices = tf.broadcast_to(tf.range(num_masks)[None, :], [batch, num_masks])
    flat_indices = mask_indices + num_masks * tf.range(batch)[:, None]
    crops = tf.image.crop_and_resize(
        tf.reshape(masks, [-1, *_sizes(masks)])[..., None],
        tf.reshape(boxes, [-1, 4]),
        tf.reshape(flat_indices, [-1]),
        crop_size,
    )[..., 0]
    return tf.reshape(crops, [*tf.unstack(tf.shape(boxes)[:2], num=2), *crop_size])


def _sizes(masks: tf.Tensor) -> Tuple[int, int]:
    """Last two sizes of masks; ints if static, else tensors."""
    dynamic = tf.unstack(tf.shape(masks)[-2:], num=2)
    return tuple(
        static_size if static_size is not None else size
        for static_size, size in zip(masks.shape[-2:], dynamic)
    )

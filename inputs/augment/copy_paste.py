"""Copy-paste: objects of a second image, cut out along their masks and pasted onto the first.

Source: Ghiasi et al., Simple Copy-Paste is a Strong Data Augmentation Method for Instance
Segmentation (2021), section 3; without smoothing of edges, which has no effect according to the
paper. The paper flips and scales both images first: earlier steps do so with each record.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs import schema
from inputs.augment.base import (
    AUGMENTATIONS,
    image_size,
    random_between,
    random_integers,
    scale_area,
    split_seed,
    uniform,
)
from inputs.augment.mixing import merge, mixes
from inputs.augment.placing import fit, largest_scale, mask_boxes, place
from inputs.sample import Sample, is_in, keep_boxes


def paste(sample: Sample, pasted: Sample, overlap_thresh: float) -> Sample:
    """Pastes all objects of `pasted` over `sample`; both have masks and the same frame.

    Masks below lose their covered pixels, and boxes and `area` shrink with the masks. An object
    without a mask keeps its box. An object is dropped if less than `overlap_thresh` of it, or
    nothing, is visible.
    """
    # Padded, because reduce_max of no masks is the lowest float32.
    cover = tf.reduce_max(tf.pad(pasted.masks, [[1, 0], [0, 0], [0, 0]]), axis=0)  # [h, w]
    masks = sample.masks * (1.0 - cover)
    before = tf.reduce_sum(sample.masks, axis=[1, 2])
    after = tf.reduce_sum(masks, axis=[1, 2])
    has_mask = before > 0
    visible = tf.where(
        has_mask, tf.math.divide_no_nan(after, before), 1.0 - _covered_share(sample.boxes, cover)
    )
    is_cut = has_mask & (after < before)
    below = sample._replace(
        masks=masks,
        boxes=tf.where(is_cut[:, tf.newaxis], mask_boxes(masks), sample.boxes),
        area=scale_area(sample.area, tf.where(is_cut, visible, 1.0)),
    )
    below = keep_boxes(below, tf.where((visible > 0) & (visible >= overlap_thresh))[:, 0])
    image = tf.where(cover[..., tf.newaxis] > 0, pasted.image, sample.image)
    level = _image_level(sample.image_level, pasted.classes)
    return merge([below, pasted])._replace(image=image, image_level=level)


def _covered_share(boxes: tf.Tensor, cover: tf.Tensor) -> tf.Tensor:
    """Share of each box [n, 4] that `cover`, 0 or 1 [h, w], covers: float32 [n]."""
    inside = []
    for axis in range(2):
        length = tf.shape(cover)[axis]
        middles = (tf.range(length, dtype=tf.float32) + 0.5) / tf.cast(length, tf.float32)
        low, high = boxes[:, axis, tf.newaxis], boxes[:, axis + 2, tf.newaxis]
        inside.append(tf.cast((middles >= low) & (middles < high), tf.float32))
    rows, columns = inside
    # A box covers rows x columns of pixels, so its covered pixels are a product with two matrices.
    covered = tf.reduce_sum(tf.matmul(rows, cover) * columns, axis=1)
    return tf.math.divide_no_nan(
        covered, tf.reduce_sum(rows, axis=1) * tf.reduce_sum(columns, axis=1)
    )


def _image_level(
    level: Optional[Dict[str, tf.Tensor]], pasted: tf.Tensor
) -> Optional[Dict[str, tf.Tensor]]:
    """Image-level labels of the first image, without the pasted classes, int64 [n], as absent."""
    if level is None:
        return None
    level = dict(level)
    if schema.VERIFIED_NEG_CLASSES in level:
        ids = level[schema.VERIFIED_NEG_CLASSES]
        level[schema.VERIFIED_NEG_CLASSES] = tf.boolean_mask(ids, ~is_in(ids, pasted))
    if schema.IMAGE_CONFIDENCES in level:
        present = is_in(level[schema.IMAGE_CLASSES], pasted)
        confidences = level[schema.IMAGE_CONFIDENCES]
        level[schema.IMAGE_CONFIDENCES] = tf.where(present, 1.0, confidences)
    return level


@AUGMENTATIONS.register("copy_paste")
@mixes(2, needs_masks=True)
def copy_paste(
    samples: Sequence[Sample], seed: tf.Tensor, config: preprocessor_pb2.CopyPaste
) -> Sample:
    """Pastes random objects of the second image, scaled and moved, onto the first."""
    sample, source = samples
    scale_seed, position_seed, offset_seed, choice_seed = split_seed(seed, 4)
    canvas, size = image_size(sample.image), image_size(source.image)
    scale = random_between(scale_seed, config.min_scale, config.max_scale)
    scale *= largest_scale(size, canvas)
    placement = fit(size, canvas, scale, uniform([2], position_seed))
    room = canvas - placement.target
    offset = random_integers(offset_seed, tf.zeros_like(room), room + 1)
    is_selected = uniform(tf.shape(source.classes), choice_seed)
    is_selected = is_selected < config.object_probability
    for flag in (source.is_crowd, source.group_of):
        is_selected = is_selected if flag is None else is_selected & ~flag
    selection = keep_boxes(source, tf.where(is_selected)[:, 0])
    placed = place(selection, placement, offset, config.overlap_thresh)
    boxes = mask_boxes(placed.masks)  # zeros for an empty mask
    pasted = keep_boxes(placed._replace(boxes=boxes), tf.where(boxes[:, 2] > 0)[:, 0])
    first = sample._replace(image=tf.cast(sample.image, tf.float32))
    return paste(first, pasted, config.overlap_thresh)

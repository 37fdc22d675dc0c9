"""Copy-paste: objects of a second image, cut out along their masks and pasted onto the first.

Source: Ghiasi et al., Simple Copy-Paste is a Strong Data Augmentation Method for Instance
Segmentation (2021), section 3; without smoothing of edges, which the paper finds to have no effect.
The paper flips and scales both images before: steps before this one do so with each record.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs import schema
from inputs.augment.base import (
    AUGMENTATIONS,
    check_probability,
    check_range,
    image_size,
    keep_boxes,
    random_between,
    scale_area,
    split_seed,
    uniform,
)
from inputs.augment.mixing import merge, mixes
from inputs.augment.placing import Placement, largest_scale, mask_boxes, place, scaled_window
from inputs.schema import Sample


def paste(sample: Sample, pasted: Sample, overlap_thresh: float) -> Sample:
    """All objects of `pasted` over the objects of `sample`; both have masks and one frame size.

    Of the objects below, masks lose what is covered, boxes are those of the remaining masks, and
    `area` shrinks with the mask. An object without a mask keeps its box. Objects of which less than
    `overlap_thresh` or nothing remains visible are dropped.
    """
    cover = tf.reduce_max(tf.pad(pasted.masks, [[1, 0], [0, 0], [0, 0]]), axis=0)  # [h, w]
    masks = sample.masks * (1.0 - cover)
    before, after = (tf.reduce_sum(one, axis=[1, 2]) for one in (sample.masks, masks))
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
    """float32 [n]: the share of each box [n, 4] that `cover`, 0 or 1 [h, w], covers."""
    inside = []
    for axis in range(2):
        length = tf.shape(cover)[axis]
        middles = (tf.range(length, dtype=tf.float32) + 0.5) / tf.cast(length, tf.float32)
        low, high = boxes[:, axis, tf.newaxis], boxes[:, axis + 2, tf.newaxis]
        inside.append(tf.cast((middles >= low) & (middles < high), tf.float32))
    rows, columns = inside
    covered = tf.reduce_sum(tf.matmul(rows, cover) * columns, axis=1)
    return tf.math.divide_no_nan(
        covered, tf.reduce_sum(rows, axis=1) * tf.reduce_sum(columns, axis=1)
    )


def _image_level(
    level: Optional[Dict[str, tf.Tensor]], pasted: tf.Tensor
) -> Optional[Dict[str, tf.Tensor]]:
    """That of the first image; the pasted classes, int64 [n], are no longer absent from it."""
    if level is None:
        return None
    level = dict(level)

    def is_pasted(ids: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any(tf.equal(ids[:, tf.newaxis], pasted[tf.newaxis]), axis=1)

    if schema.VERIFIED_NEG_CLASSES in level:
        ids = level[schema.VERIFIED_NEG_CLASSES]
        level[schema.VERIFIED_NEG_CLASSES] = tf.boolean_mask(ids, ~is_pasted(ids))
    if schema.IMAGE_CONFIDENCES in level:
        present = is_pasted(level[schema.IMAGE_CLASSES])
        confidences = level[schema.IMAGE_CONFIDENCES]
        level[schema.IMAGE_CONFIDENCES] = tf.where(present, 1.0, confidences)
    return level


def _check(config: Any) -> None:
    for name in ("object_probability", "overlap_thresh"):
        check_probability(name, getattr(config, name))
    check_range("min_scale", config.min_scale, "max_scale", config.max_scale)
    if config.min_scale == 0:
        raise ConfigError("min_scale is 0; it must be above 0")


@AUGMENTATIONS.register("copy_paste")
@mixes(2, needs_masks=True, check=_check)
def copy_paste(samples: Sequence[Sample], seed: tf.Tensor, config: Any) -> Sample:
    """Pastes random objects of the second image, scaled and moved, onto the first.

    Crowd and group boxes are not pasted, nor are objects without a mask.

    ConfigError if the samples have no masks.
    """
    sample, other = samples
    if sample.masks is None:
        raise ConfigError(
            "copy_paste: the samples have no masks; set train_input_reader.load_instance_masks"
        )
    scale_seed, where_seed, offset_seed, choice_seed = split_seed(seed, 4)
    canvas, size = image_size(sample.image), image_size(other.image)
    scale = random_between(scale_seed, config.min_scale, config.max_scale)
    scale *= largest_scale(size, canvas)
    where = uniform([2], where_seed)
    begin, window, target = tf.unstack(scaled_window(size, canvas, scale, where))
    room = tf.cast(canvas - target + 1, tf.float32)
    offset = tf.cast(uniform([2], offset_seed) * room, tf.int32)
    offset = tf.minimum(offset, canvas - target)
    is_drawn = uniform(tf.shape(other.classes), choice_seed)
    is_drawn = is_drawn < config.object_probability
    for flag in (other.is_crowd, other.group_of):
        is_drawn = is_drawn if flag is None else is_drawn & ~flag
    drawn = keep_boxes(other, tf.where(is_drawn)[:, 0])
    moved = place(drawn, Placement(begin, window, target, offset, canvas), config.overlap_thresh)
    boxes = mask_boxes(moved.masks)  # zeros without a mask
    pasted = keep_boxes(moved._replace(boxes=boxes), tf.where(boxes[:, 2] > 0)[:, 0])
    first = sample._replace(image=tf.cast(sample.image, tf.float32))
    return paste(first, pasted, config.overlap_thresh)

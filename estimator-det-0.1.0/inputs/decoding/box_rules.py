"""The rules for boxes: one definition for the decoder (TensorFlow) and the examiner (NumPy).

Each rule takes an `ArrayOps`, which names the few operations that differ between the two.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs.bad_records.kinds import BOX_FAULTS, CLIP

FIRST_CLASS_ID = 1
ABSENT_SIZE = -(2**63)  # of a record without image/height or image/width; 0 is a given size
OUTSIDE_TOLERANCE = 1e-4  # of the image's side: rounding by label tools is no fault
# A side of a mask may differ from that of its box by so many pixels and this share of the box.
MASK_PIXELS, MASK_SHARE = 2.0, 0.25


class ArrayOps(NamedTuple):
    """Operations on arrays or tensors [n, k], each along the last axis where it reduces."""

    any: Callable[[Any], Any]
    all: Callable[[Any], Any]
    is_finite: Callable[[Any], Any]
    equal: Callable[[Any, Any], Any]
    clip: Callable[[Any, float, float], Any]
    max: Callable[[Any, int], Any]  # along an axis, 0 or more
    length: Callable[[Any], Any]  # float32, of the last axis
    count_to: Callable[[Any], Any]  # float32 k -> float32 [k]: 0, 1, … k - 1
    stack: Callable[[List[Any]], Any]  # of [n] to [n, k]


NUMPY = ArrayOps(
    any=lambda x: x.any(-1),
    all=lambda x: x.all(-1),
    is_finite=np.isfinite,
    equal=np.equal,
    clip=np.clip,
    max=lambda x, axis: x.max(axis),
    length=lambda x: np.float32(x.shape[-1]),
    count_to=lambda k: np.arange(k, dtype=np.float32),
    stack=lambda parts: np.stack(parts, -1),
)
TENSORFLOW = ArrayOps(
    any=lambda x: tf.reduce_any(x, -1),
    all=lambda x: tf.reduce_all(x, -1),
    is_finite=tf.math.is_finite,
    equal=tf.equal,
    # One operation, as tf.clip_by_value is two.
    clip=lambda x, low, high: tf.raw_ops.ClipByValue(t=x, clip_value_min=low, clip_value_max=high),
    max=tf.reduce_max,
    length=lambda x: tf.cast(tf.shape(x)[-1], tf.float32),
    count_to=tf.range,
    stack=lambda parts: tf.stack(parts, -1),
)


class MaskExtents(NamedTuple):
    """The smallest boxes around masks, in fractions of the image."""

    boxes: Any  # float32 [n, 4], yxyx; the maximum is below the minimum for an empty mask
    pixel: Any  # float32 [2], height and width of one pixel


def mask_extents(masks: Any, ops: ArrayOps) -> MaskExtents:
    """Of masks float32 [n, h, w], 1 inside and 0 outside."""
    (ymin, ymax, height), (xmin, xmax, width) = (
        _span(ops.max(masks, across), ops) for across in (2, 1)
    )
    sides = [ymin / height, xmin / width, ymax / height, xmax / width]
    return MaskExtents(ops.stack(sides), ops.stack([1 / height, 1 / width]))


def _span(occupied: Any, ops: ArrayOps) -> Tuple[Any, Any, Any]:
    """First index and index past the last of the ones in float32 [n, k], and k; k and 0 if none."""
    length = ops.length(occupied)
    index = ops.count_to(length)
    first = length - ops.max(occupied * (length - index), 1)
    return first, ops.max(occupied * (index + 1), 1), length


class Boxes(NamedTuple):
    """The boxes of an image as its record has them; arrays or tensors."""

    boxes: Any  # float32 [n, 4], yxyx
    classes: Any  # int64 [n], -1 where unknown
    labels: Any  # int64 [n], the class labels if they accompany class texts, else `classes`
    by_text: Any  # bool scalar, whether `classes` come from texts
    given_size: Any  # int64 [2], height and width in the record, ABSENT_SIZE where absent
    image_size: Any  # int64 [2], those of the image; zeros if unknown
    masks: Optional[MaskExtents] = None  # if masks are loaded


def box_flags(given: Boxes, num_classes: Any, ops: ArrayOps) -> Dict[str, Any]:
    """Kind of `BOX_FAULTS` -> bool [n]; `num_classes` None means no highest class id."""
    boxes, classes = given.boxes, given.classes
    extent = boxes[:, 2:] - boxes[:, :2]
    is_known = classes >= FIRST_CLASS_ID
    unknown_id = ~is_known & ~given.by_text
    if num_classes is not None:
        unknown_id = unknown_id | (classes > num_classes)
    none = is_known & ~is_known
    flags = {
        "box_nan": ops.any(~ops.is_finite(boxes)),
        "box_inverted": ops.any(extent < 0),
        "box_degenerate": ops.any(ops.equal(extent, 0)),
        "box_outside": ops.any(abs(boxes - 0.5) > 0.5 + OUTSIDE_TOLERANCE),
        "unknown_text": ~is_known & given.by_text,
        "unknown_id": unknown_id,
        "label_contradiction": is_known & ~ops.equal(classes, given.labels),
        "mask_empty": none,
        "mask_mismatch": none,
    }
    if given.masks is not None:
        is_empty, is_elsewhere = mask_flags(boxes, given.masks, ops)
        wrong = ("box_nan", "box_inverted", "box_degenerate", "box_outside")
        is_wrong = functools.reduce(lambda a, b: a | b, (flags[kind] for kind in wrong))
        flags.update(mask_empty=is_empty, mask_mismatch=is_elsewhere & ~is_wrong)
    return {kind: flags[kind] for kind in BOX_FAULTS}


def mask_flags(boxes: Any, masks: MaskExtents, ops: ArrayOps) -> Tuple[Any, Any]:
    """Whether the mask of a box is empty, bool [n], and whether it is not where the box is."""
    low, high = masks.boxes[:, :2], masks.boxes[:, 2:]
    is_empty = ops.any(high <= low)
    allowed = MASK_PIXELS * masks.pixel + MASK_SHARE * (boxes[:, 2:] - boxes[:, :2])
    is_far = (abs(low - boxes[:, :2]) > allowed) | (abs(high - boxes[:, 2:]) > allowed)
    return is_empty, ops.any(is_far) & ~is_empty


def size_mismatch(given: Boxes, ops: ArrayOps) -> Any:
    """Bool scalar: whether the record gives another size than the image has."""
    is_given = ~ops.equal(given.given_size, ABSENT_SIZE)
    return ops.any(is_given & ~ops.equal(given.given_size, given.image_size))


def correct_boxes(
    boxes: Any, flags: Mapping[str, Any], actions: Mapping[str, str], ops: ArrayOps
) -> Tuple[Any, Any]:
    """Applies the action CLIP to boxes float32 [n, 4] with the flags of `box_flags`.

    Returns:
        Boxes [n, 4], clipped to the image if box_outside is to be corrected; and bool [n], True
        for the boxes to drop.
    """
    drops: List[Any] = [
        flags[kind]
        for kind in BOX_FAULTS
        if actions[kind] == CLIP and kind not in ("box_outside", "label_contradiction")
    ]
    if actions["box_outside"] == CLIP:
        had_extent = ops.all(boxes[:, :2] < boxes[:, 2:])
        boxes = ops.clip(boxes, 0.0, 1.0)
        drops.append(had_extent & ops.any(boxes[:, :2] >= boxes[:, 2:]))
    nothing = flags["box_nan"] & ~flags["box_nan"]
    return boxes, functools.reduce(lambda a, b: a | b, drops, nothing)

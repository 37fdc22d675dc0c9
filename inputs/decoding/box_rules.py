"""Rules for boxes: one definition for the decoder (TensorFlow) and the examiner (NumPy).

Each rule has an argument `ArrayOps` with the few operations that differ between the two.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs.bad_records.kinds import BOX_FAULTS, CLIP

FIRST_CLASS_ID = 1
ABSENT_SIZE = -(2**63)  # size in a record without image/height or image/width; 0 is a real value
OUTSIDE_TOLERANCE = 1e-4  # share of the image's side; label tools round coordinates
# Sides of a mask and its box may differ by this many pixels plus this share of the box.
MASK_PIXELS, MASK_SHARE = 2.0, 0.25


class ArrayOps(NamedTuple):
    """Operations on arrays or tensors [n, k]; reductions are along the last axis."""

    any: Callable[[Any], Any]
    is_finite: Callable[[Any], Any]
    equal: Callable[[Any, Any], Any]
    clip: Callable[[Any, float, float], Any]
    max: Callable[[Any, int], Any]  # along an axis; at least 0
    length: Callable[[Any], Any]  # float32, length of the last axis
    count_to: Callable[[Any], Any]  # float32 k -> float32 [k]: 0, 1, … k - 1
    stack: Callable[[List[Any]], Any]  # arrays [n] -> [n, k]


NUMPY = ArrayOps(
    any=lambda x: x.any(-1),
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
    is_finite=tf.math.is_finite,
    equal=tf.equal,
    clip=tf.clip_by_value,
    max=tf.reduce_max,
    length=lambda x: tf.cast(tf.shape(x)[-1], tf.float32),
    count_to=tf.range,
    stack=lambda parts: tf.stack(parts, -1),
)


class MaskExtents(NamedTuple):
    """Smallest boxes around masks, in fractions of the image."""

    boxes: Any  # float32 [n, 4], yxyx; the maximum is below the minimum for an empty mask
    pixel: Any  # float32 [2], height and width of one pixel


def mask_extents(masks: Any, ops: ArrayOps) -> MaskExtents:
    """Computes the extents of masks float32 [n, h, w], 1 inside and 0 outside."""
    (ymin, ymax, height), (xmin, xmax, width) = (
        _span(ops.max(masks, across), ops) for across in (2, 1)
    )
    sides = [ymin / height, xmin / width, ymax / height, xmax / width]
    return MaskExtents(ops.stack(sides), ops.stack([1 / height, 1 / width]))


def _span(occupied: Any, ops: ArrayOps) -> Tuple[Any, Any, Any]:
    """First index and end index of the ones in float32 [n, k], and k; k and 0 without ones."""
    length = ops.length(occupied)
    index = ops.count_to(length)
    # reduce_max of weighted ones, because both libraries have it and argmax needs a special case.
    first = length - ops.max(occupied * (length - index), 1)
    return first, ops.max(occupied * (index + 1), 1), length


class RecordBoxes(NamedTuple):
    """Boxes of an image as in its record; arrays or tensors."""

    boxes: Any  # float32 [n, 4], yxyx
    classes: Any  # int64 [n], -1 if unknown
    labels: Any  # int64 [n], class labels if there are class texts, too, else `classes`
    has_texts: Any  # bool scalar, True if `classes` come from texts
    record_size: Any  # int64 [2], height and width in the record, or ABSENT_SIZE
    image_size: Any  # int64 [2], height and width of the image; zeros if unknown
    masks: Optional[MaskExtents] = None  # if masks are loaded


def box_flags(record_boxes: RecordBoxes, num_classes: Any, ops: ArrayOps) -> Dict[str, Any]:
    """Flags faults: kind of `BOX_FAULTS` -> bool [n]; `num_classes` None has no highest id."""
    boxes, classes = record_boxes.boxes, record_boxes.classes
    extent = boxes[:, 2:] - boxes[:, :2]
    is_known = classes >= FIRST_CLASS_ID
    unknown_id = ~is_known & ~record_boxes.has_texts
    if num_classes is not None:
        unknown_id = unknown_id | (classes > num_classes)
    # False for every box, in either library.
    no_boxes = is_known & ~is_known
    flags = {
        # No comparison: TensorFlow's optimizer turns "not less" into "greater or equal", which NaN
        # is not.
        "box_nan": ops.any(~ops.is_finite(boxes)),
        "box_inverted": ops.any(extent < 0),
        "box_degenerate": ops.any(ops.equal(extent, 0)),
        "box_outside": ops.any(abs(boxes - 0.5) > 0.5 + OUTSIDE_TOLERANCE),
        "unknown_text": ~is_known & record_boxes.has_texts,
        "unknown_id": unknown_id,
        "label_contradiction": is_known & ~ops.equal(classes, record_boxes.labels),
        "mask_empty": no_boxes,
        "mask_mismatch": no_boxes,
    }
    if record_boxes.masks is not None:
        is_empty, is_misplaced = mask_flags(boxes, record_boxes.masks, ops)
        is_faulty = flags["box_nan"] | flags["box_inverted"]
        is_faulty |= flags["box_degenerate"] | flags["box_outside"]
        flags.update(mask_empty=is_empty, mask_mismatch=is_misplaced & ~is_faulty)
    return {kind: flags[kind] for kind in BOX_FAULTS}


def mask_flags(boxes: Any, masks: MaskExtents, ops: ArrayOps) -> Tuple[Any, Any]:
    """Flags boxes, bool [n], with an empty mask, and boxes whose mask is somewhere else."""
    low, high = masks.boxes[:, :2], masks.boxes[:, 2:]
    is_empty = ops.any(high <= low)
    allowed = MASK_PIXELS * masks.pixel + MASK_SHARE * (boxes[:, 2:] - boxes[:, :2])
    is_far = (abs(low - boxes[:, :2]) > allowed) | (abs(high - boxes[:, 2:]) > allowed)
    return is_empty, ops.any(is_far) & ~is_empty


def size_mismatch(record_boxes: RecordBoxes, ops: ArrayOps) -> Any:
    """Bool scalar, True if the record gives another size than the image has."""
    has_size = ~ops.equal(record_boxes.record_size, ABSENT_SIZE)
    return ops.any(has_size & ~ops.equal(record_boxes.record_size, record_boxes.image_size))


def correct_boxes(
    boxes: Any, flags: Mapping[str, Any], actions: Mapping[str, str], ops: ArrayOps
) -> Tuple[Any, Any]:
    """Applies the action CLIP to boxes float32 [n, 4] with the flags of `box_flags`.

    Returns:
        Boxes [n, 4], clipped to the image if the policy corrects box_outside; bool [n], True for
        boxes to drop.
    """
    dropped = flags["box_nan"] & ~flags["box_nan"]
    for kind in BOX_FAULTS:
        if actions[kind] == CLIP and kind not in ("box_outside", "label_contradiction"):
            dropped |= flags[kind]
    if actions["box_outside"] == CLIP:
        # Boxes that were empty before are dropped only by the rule for degenerate boxes.
        was_empty = ops.any(boxes[:, :2] >= boxes[:, 2:])
        boxes = ops.clip(boxes, 0.0, 1.0)
        dropped |= ~was_empty & ops.any(boxes[:, :2] >= boxes[:, 2:])
    return boxes, dropped

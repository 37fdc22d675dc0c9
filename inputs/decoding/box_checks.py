"""Checks the boxes of one record in the graph, and corrects or rejects the faulty ones.

The number of operations determines the speed: each takes as long on few boxes as on many. So a few
operations first decide if all boxes are sound, as they mostly are; only if not, the rules of
`inputs.decoding.box_rules` run.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from estimator_det.compat import tf
from inputs.bad_records.kinds import BOX_FAULTS, COUNTED
from inputs.bad_records.policy import BadRecordPolicy
from inputs.decoding.box_rules import (
    ABSENT_SIZE,
    FIRST_CLASS_ID,
    OUTSIDE_TOLERANCE,
    TENSORFLOW,
    Boxes,
    box_flags,
    correct_boxes,
    mask_flags,
    size_mismatch,
)
from inputs.decoding.example import require

NUM_COUNTS = len(BOX_FAULTS) + 1  # the last one is size_mismatch

_HIGHEST_ID = 2**62  # if the policy has none
# The quick check is stricter, so that rounding cannot let a box pass that the rules would count.
_STRICT_TOLERANCE = OUTSIDE_TOLERANCE / 2


class Checked(NamedTuple):
    """Boxes after the policy was applied."""

    boxes: tf.Tensor  # float32 [n, 4], corrected
    kept: tf.Tensor  # int64 [k], indices of the boxes that are not dropped
    counts: tf.Tensor  # int32 [NUM_COUNTS], the first entries of COUNTED


def check_boxes(record_boxes: Boxes, record: tf.Tensor, policy: BadRecordPolicy) -> Checked:
    """Counts faults, and corrects or rejects them by the policy.

    Evaluating the result fails for a rejected record; the error contains its name `record`.
    """
    all_indices = tf.range(tf.size(record_boxes.classes, tf.int64))

    def keep_all() -> Checked:
        return Checked(record_boxes.boxes, all_indices, tf.zeros([NUM_COUNTS], tf.int32))

    # The rules are built into the other branch, so that sound boxes do not run them.
    apply_policy = functools.partial(_apply_policy, record_boxes, record, policy)
    return Checked(*tf.cond(_is_sound(record_boxes, policy), keep_all, apply_policy))


def _is_sound(record_boxes: Boxes, policy: BadRecordPolicy) -> tf.Tensor:
    """Bool scalar; False if there may be any fault."""
    low, high = tf.split(record_boxes.boxes, 2, axis=1)
    clipped = TENSORFLOW.clip(record_boxes.boxes, -_STRICT_TOLERANCE, 1 + _STRICT_TOLERANCE)
    # Clipping keeps numbers inside the tolerance; NaN equals nothing, so it fails here, too.
    floats = tf.concat([low < high, tf.equal(record_boxes.boxes, clipped)], 1)
    highest = _HIGHEST_ID if policy.num_classes is None else policy.num_classes
    clipped_classes = tf.raw_ops.ClipByValue(
        t=record_boxes.classes,
        clip_value_min=tf.constant(FIRST_CLASS_ID, tf.int64),
        clip_value_max=tf.constant(highest, tf.int64),
    )
    is_absent = tf.equal(record_boxes.record_size, ABSENT_SIZE)
    size = tf.where(is_absent, record_boxes.record_size, record_boxes.image_size)
    integers = tf.equal(
        tf.concat([record_boxes.classes, record_boxes.classes, record_boxes.record_size], 0),
        tf.concat([clipped_classes, record_boxes.labels, size], 0),
    )
    is_sound = tf.reduce_all(floats) & tf.reduce_all(integers)
    if record_boxes.masks is not None:
        is_empty, is_misplaced = mask_flags(record_boxes.boxes, record_boxes.masks, TENSORFLOW)
        is_sound &= ~tf.reduce_any(is_empty | is_misplaced)
    return is_sound


def _apply_policy(record_boxes: Boxes, record: tf.Tensor, policy: BadRecordPolicy) -> Checked:
    boxes = record_boxes.boxes
    flags = box_flags(record_boxes, policy.num_classes, TENSORFLOW)
    box_counts = tf.reduce_sum(tf.cast(tf.stack(list(flags.values())), tf.int32), 1)
    has_wrong_size = tf.cast(size_mismatch(record_boxes, TENSORFLOW), tf.int32)
    counts = tf.concat([box_counts, has_wrong_size[tf.newaxis]], 0)
    rejected = [kind for kind in COUNTED[:NUM_COUNTS] if policy.rejects(kind)]
    if rejected:
        rejected_counts = tf.gather(counts, [COUNTED.index(kind) for kind in rejected])
        is_accepted = require(
            tf.equal(tf.reduce_sum(rejected_counts), 0),
            record,
            rejected,
            "Number of each, boxes, and class ids:",
            [rejected_counts, boxes, record_boxes.classes],
        )
        with tf.control_dependencies([is_accepted]):
            boxes, counts = tf.identity(boxes), tf.identity(counts)
    boxes, dropped = correct_boxes(boxes, flags, policy.actions, TENSORFLOW)
    return Checked(boxes, tf.where(tf.logical_not(dropped))[:, 0], counts)

"""Checks the boxes of one record in the graph, and corrects or rejects the faulty ones.

The number of operations determines the speed: each costs the same on few boxes as on many. So a few
operations decide whether all boxes are sound, as they mostly are; only if not, the rules of
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

NUM_COUNTS = len(BOX_FAULTS) + 1  # and size_mismatch

_HIGHEST_ID = 2**62  # if the policy has none
# The quick check is the stricter one: rounding must not let a box pass that the rules would count.
_STRICT_TOLERANCE = OUTSIDE_TOLERANCE / 2


class Checked(NamedTuple):
    """The boxes after the policy was applied."""

    boxes: tf.Tensor  # float32 [n, 4], corrected
    kept: tf.Tensor  # int64 [k], indices of the boxes that are not dropped
    counts: tf.Tensor  # int32 [NUM_COUNTS], the first entries of COUNTED


def check_boxes(given: Boxes, record: tf.Tensor, policy: BadRecordPolicy) -> Checked:
    """Counts faults, and corrects or rejects them as the policy says.

    Evaluating the result fails for a record that is rejected; the error has its name `record`.
    """
    all_indices = tf.range(tf.size(given.classes, tf.int64))

    def sound() -> Checked:
        return Checked(given.boxes, all_indices, tf.zeros([NUM_COUNTS], tf.int32))

    faulty = functools.partial(_apply_policy, given, record, policy)
    return Checked(*tf.cond(_is_sound(given, policy), sound, faulty))


def _is_sound(given: Boxes, policy: BadRecordPolicy) -> tf.Tensor:
    """Bool scalar; False if there may be any fault."""
    low, high = tf.split(given.boxes, 2, axis=1)
    inside = TENSORFLOW.clip(given.boxes, -_STRICT_TOLERANCE, 1 + _STRICT_TOLERANCE)
    # NaN equals nothing.
    floats = tf.concat([low < high, tf.equal(given.boxes, inside)], 1)
    highest = _HIGHEST_ID if policy.num_classes is None else policy.num_classes
    known = tf.raw_ops.ClipByValue(
        t=given.classes,
        clip_value_min=tf.constant(FIRST_CLASS_ID, tf.int64),
        clip_value_max=tf.constant(highest, tf.int64),
    )
    is_absent = tf.equal(given.given_size, ABSENT_SIZE)
    size = tf.where(is_absent, given.given_size, given.image_size)
    integers = tf.equal(
        tf.concat([given.classes, given.classes, given.given_size], 0),
        tf.concat([known, given.labels, size], 0),
    )
    is_sound = tf.reduce_all(floats) & tf.reduce_all(integers)
    if given.masks is not None:
        is_empty, is_elsewhere = mask_flags(given.boxes, given.masks, TENSORFLOW)
        is_sound &= ~tf.reduce_any(is_empty | is_elsewhere)
    return is_sound


def _apply_policy(given: Boxes, record: tf.Tensor, policy: BadRecordPolicy) -> Checked:
    boxes = given.boxes
    flags = box_flags(given, policy.num_classes, TENSORFLOW)
    box_counts = tf.reduce_sum(tf.cast(tf.stack(list(flags.values())), tf.int32), 1)
    has_wrong_size = tf.cast(size_mismatch(given, TENSORFLOW), tf.int32)
    counts = tf.concat([box_counts, has_wrong_size[tf.newaxis]], 0)
    rejected = [kind for kind in COUNTED[:NUM_COUNTS] if policy.rejects(kind)]
    if rejected:
        found = tf.gather(counts, [COUNTED.index(kind) for kind in rejected])
        is_accepted = require(
            tf.equal(tf.reduce_sum(found), 0),
            record,
            rejected,
            "Number of each, boxes, and class ids:",
            [found, boxes, given.classes],
        )
        with tf.control_dependencies([is_accepted]):
            boxes, counts = tf.identity(boxes), tf.identity(counts)
    boxes, dropped = correct_boxes(boxes, flags, policy.actions, TENSORFLOW)
    return Checked(boxes, tf.where(tf.logical_not(dropped))[:, 0], counts)

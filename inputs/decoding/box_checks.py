"""The watch over the boxes of one record, in the graph.

What matters for speed is the number of operations, for each costs the same on few boxes as on many.
So a few of them ask whether everything is in order, as it mostly is; what is wrong is only looked
for where it is not.
"""

from __future__ import annotations

import functools
from typing import List, NamedTuple

from estimator_det.compat import tf
from inputs.bad_records.kinds import CLIP, COUNTED
from inputs.bad_records.policy import OUTSIDE_TOLERANCE, BadRecordPolicy
from inputs.decoding.example import require

FIRST_ID = 1

BOX_FAULTS = COUNTED[:7]  # found for each box; then the size fields, and what is cut off later

_HIGHEST_ID = 2**62  # where the policy have none
# The first look is the stricter one: rounding must not let a box pass that the second would count.
_STRICT_TOLERANCE = OUTSIDE_TOLERANCE / 2


class Facts(NamedTuple):
    """What a record says of its boxes."""

    boxes: tf.Tensor  # float32 [n, 4]
    classes: tf.Tensor  # int64 [n], -1 where unknown
    beside: tf.Tensor  # int64 [n], the labels where there are some beside texts, else the classes
    by_text: tf.Tensor  # bool scalar, whether the classes come from texts
    given_size: tf.Tensor  # int64 [2], height and width in the record, 0 where absent
    size: tf.Tensor  # int64 [2], those of the picture


class Checked(NamedTuple):
    """What is to be done about it."""

    boxes: tf.Tensor  # float32 [n, 4], mended
    kept: tf.Tensor  # int64 [k], indices of the boxes that are not left out
    counts: tf.Tensor  # int32 [len(BOX_FAULTS) + 1], how many of each kind of COUNTED


def check_boxes(facts: Facts, record: tf.Tensor, policy: BadRecordPolicy) -> Checked:
    """Counts faults, and mends or refuses them as the policy say.

    Args:
        facts: Of one record.
        record: Its name, string scalar.
        policy: What is done about which fault.

    Returns:
        Boxes, kept indices and counts; evaluating them fails for a record that is refused.
    """
    everyone = tf.range(tf.size(facts.classes, tf.int64))

    def fine() -> Checked:
        return Checked(facts.boxes, everyone, tf.zeros([len(BOX_FAULTS) + 1], tf.int32))

    return Checked(*tf.cond(_is_sound(facts, policy), fine, lambda: _mended(facts, record, policy)))


def _is_sound(facts: Facts, policy: BadRecordPolicy) -> tf.Tensor:
    """Bool scalar; False at the slightest doubt."""
    low, high = tf.split(facts.boxes, 2, axis=1)
    inside = _clipped(facts.boxes, -_STRICT_TOLERANCE, 1 + _STRICT_TOLERANCE)
    # NaN equals nothing.
    floats = tf.concat([low < high, tf.equal(facts.boxes, inside)], 1)
    highest = _HIGHEST_ID if policy.num_classes is None else policy.num_classes
    known = _clipped(facts.classes, tf.constant(FIRST_ID, tf.int64), tf.constant(highest, tf.int64))
    size = facts.size * tf.sign(facts.given_size)
    integers = tf.equal(
        tf.concat([facts.classes, facts.classes, facts.given_size], 0),
        tf.concat([known, facts.beside, size], 0),
    )
    return tf.reduce_all(floats) & tf.reduce_all(integers)


def _clipped(values: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """As `tf.clip_by_value`, in one operation."""
    return tf.raw_ops.ClipByValue(t=values, clip_value_min=low, clip_value_max=high)


def _mended(facts: Facts, record: tf.Tensor, policy: BadRecordPolicy) -> Checked:
    boxes, classes = facts.boxes, facts.classes
    flags = _flags(facts, policy)
    contradicts = (facts.given_size > 0) & tf.not_equal(facts.given_size, facts.size)
    counts = tf.concat(
        [
            tf.reduce_sum(tf.cast(tf.stack(flags), tf.int32), 1),
            tf.cast(tf.reduce_any(contradicts)[tf.newaxis], tf.int32),
        ],
        0,
    )
    refused = [kind for kind in (*BOX_FAULTS, "size_mismatch") if policy.refuses(kind)]
    if refused:
        found = tf.gather(counts, [COUNTED.index(kind) for kind in refused])
        sound = require(
            tf.equal(tf.reduce_sum(found), 0),
            record,
            f"has faults. Numbers of {', '.join(refused)}:",
            [found, boxes, classes],
        )
        with tf.control_dependencies([sound]):
            boxes, counts = tf.identity(boxes), tf.identity(counts)
    left_out = [
        flag
        for kind, flag in zip(BOX_FAULTS, flags)
        if policy.actions[kind] == CLIP and kind not in ("box_outside", "label_contradiction")
    ]
    if policy.actions["box_outside"] == CLIP:
        was_sound = tf.reduce_all(boxes[:, :2] < boxes[:, 2:], 1)
        boxes = _clipped(boxes, 0.0, 1.0)
        left_out.append(was_sound & tf.reduce_any(boxes[:, :2] >= boxes[:, 2:], 1))
    dropped = functools.reduce(tf.logical_or, left_out, tf.zeros_like(classes, tf.bool))
    return Checked(boxes, tf.where(tf.logical_not(dropped))[:, 0], counts)


def _flags(facts: Facts, policy: BadRecordPolicy) -> List[tf.Tensor]:
    """Bool [n] each, in the order of BOX_FAULTS."""
    boxes, classes = facts.boxes, facts.classes
    extent = boxes[:, 2:] - boxes[:, :2]
    known = classes >= FIRST_ID
    unknown = tf.logical_not(known)
    unknown_text = unknown & facts.by_text
    unknown_id = tf.not_equal(unknown, unknown_text)
    if policy.num_classes is not None:
        unknown_id |= classes > policy.num_classes
    return [
        tf.logical_not(tf.math.is_finite(tf.reduce_sum(boxes, 1))),
        tf.reduce_any(extent < 0, 1),
        tf.reduce_any(tf.equal(extent, 0.0), 1),
        tf.reduce_any(tf.abs(boxes - 0.5) > 0.5 + OUTSIDE_TOLERANCE, 1),
        unknown_text,
        unknown_id,
        known & tf.not_equal(classes, facts.beside),
    ]

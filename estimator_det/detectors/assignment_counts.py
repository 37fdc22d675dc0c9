"""How anchors and groundtruth match, as figures for TensorBoard.

They cost nothing in steps that do not fetch them. Names are those of the reference's summaries.

Letters: B images, A anchors, G groundtruth boxes.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

from estimator_det.boxes.matching import IGNORED, UNMATCHED
from estimator_det.compat import tf


class AssignmentCounts(NamedTuple):
    """Numbers per image, averaged over a batch; float32 scalars."""

    groundtruth: tf.Tensor  # boxes that are no padding
    matched: tf.Tensor  # such boxes with an anchor at least
    positive: tf.Tensor  # anchors with a box
    negative: tf.Tensor  # anchors that count as background
    ignored: tf.Tensor  # anchors that do not count

    def named(self, scope: str = "TargetAssignment") -> Dict[str, tf.Tensor]:
        """The figures by their tags; `scope` separates several assignments."""
        return {f"{scope}/{name}": value for name, value in zip(_NAMES, self)}


_NAMES = AssignmentCounts(
    "AvgNumGroundtruthBoxesPerImage",
    "AvgNumGroundtruthBoxesMatchedPerImage",
    "AvgNumPositiveAnchorsPerImage",
    "AvgNumNegativeAnchorsPerImage",
    "AvgNumIgnoredAnchorsPerImage",
)


def count_assignment(matches: tf.Tensor, valid: tf.Tensor) -> AssignmentCounts:
    """The figures of an assignment.

    Args:
        matches: int32 [B, A]: groundtruth row, UNMATCHED or IGNORED.
        valid: bool [B, G].
    """
    images, rows = tf.unstack(tf.shape(valid), num=2)
    is_matched = matches >= 0
    # Rows of all images in a line; negative numbers are left out of the sum.
    row = tf.where(is_matched, matches + rows * tf.range(images)[:, tf.newaxis], -1)
    anchors_of_row = tf.math.unsorted_segment_sum(tf.cast(is_matched, tf.int32), row, images * rows)

    def per_image(which: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(tf.cast(which, tf.float32))
        return total / tf.maximum(tf.cast(images, tf.float32), 1.0)

    return AssignmentCounts(
        groundtruth=per_image(valid),
        matched=per_image(anchors_of_row > 0),
        positive=per_image(is_matched),
        negative=per_image(tf.equal(matches, UNMATCHED)),
        ignored=per_image(tf.equal(matches, IGNORED)),
    )

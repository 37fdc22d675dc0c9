"""Counts of matches between anchors and groundtruth, for TensorBoard.

Steps that do not fetch them do not compute them. Names are those of the reference's summaries.

Letters: B images, A anchors, G groundtruth boxes.
"""

from __future__ import annotations

from typing import Dict

from estimator_det.boxes.matching import IGNORED, UNMATCHED
from estimator_det.compat import tf


def count_assignment(matches: tf.Tensor, valid: tf.Tensor) -> Dict[str, tf.Tensor]:
    """Counts per image, averaged over a batch, by their tags; float32 scalars.

    Args:
        matches: int32 [B, A]: groundtruth row, UNMATCHED or IGNORED.
        valid: bool [B, G], False for padding.
    """
    images, rows = tf.unstack(tf.shape(valid), num=2)
    is_matched = matches >= 0
    # Row numbers run over all images; the segment sum drops negative ones.
    row = tf.where(is_matched, matches + rows * tf.range(images)[:, tf.newaxis], -1)
    anchors_of_row = tf.math.unsorted_segment_sum(tf.cast(is_matched, tf.int32), row, images * rows)

    def per_image(flags: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(tf.cast(flags, tf.float32))
        return total / tf.maximum(tf.cast(images, tf.float32), 1.0)

    counts = {
        "GroundtruthBoxes": per_image(valid),
        "GroundtruthBoxesMatched": per_image(anchors_of_row > 0),
        "PositiveAnchors": per_image(is_matched),
        "NegativeAnchors": per_image(tf.equal(matches, UNMATCHED)),
        "IgnoredAnchors": per_image(tf.equal(matches, IGNORED)),
    }
    return {f"TargetAssignment/AvgNum{name}PerImage": count for name, count in counts.items()}

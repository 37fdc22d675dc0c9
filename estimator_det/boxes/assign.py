"""Target assignment: the values that anchors should predict, for a whole batch at once."""

from __future__ import annotations

import dataclasses
from typing import Dict, NamedTuple, Optional

from estimator_det.boxes.coders import BoxCoder
from estimator_det.boxes.geometry import Similarity, sizes
from estimator_det.boxes.matching import IGNORED, UNMATCHED, Matcher
from estimator_det.compat import num_tpu_shards, tf


class Targets(NamedTuple):
    """Values that each anchor should predict, with their weights in the loss."""

    class_targets: tf.Tensor  # float32 [B, A, C]
    class_weights: tf.Tensor  # float32 [B, A, C], or [B, A, 1] if all classes have the same
    box_targets: tf.Tensor  # float32 [B, A, code_size], zeros for anchors without a match
    box_weights: tf.Tensor  # float32 [B, A]
    matches: tf.Tensor  # int32 [B, A]: groundtruth row, UNMATCHED or IGNORED


def _fetch(rows: tf.Tensor, default_row: tf.Tensor, matches: tf.Tensor, matmul: bool) -> tf.Tensor:
    """Fetches the row of each match: [B, G, n], [n] for no match, [B, A] -> [B, A, n]."""
    batch, num_rows, columns = sizes(rows)
    # One more row for all anchors without a match, so that a single lookup serves every anchor.
    table = tf.concat([rows, tf.broadcast_to(default_row, [batch, 1, columns])], axis=1)
    index = tf.where(matches >= 0, matches, num_rows)
    # A one-hot product is exact in float32 as long as every number is finite.
    if matmul:
        return tf.matmul(tf.one_hot(index, num_rows + 1), table)
    return tf.gather(table, index, batch_dims=1)


def _fetch_keypoints(keypoints: tf.Tensor, matches: tf.Tensor, matmul: bool) -> tf.Tensor:
    """Fetches keypoints [B, G, P, 2] of each match -> [B, A, P, 2]; absent ones (NaN) stay NaN."""
    num_points = keypoints.shape[2]
    flat = tf.concat(tf.unstack(keypoints, num=num_points, axis=2), axis=-1)
    absent_row = tf.zeros([2 * num_points])
    if matmul:  # 0 * NaN would spread absent points over all rows
        absent = tf.math.is_nan(flat)
        present = _fetch(tf.where(absent, 0.0, flat), absent_row, matches, matmul)
        marks = _fetch(tf.cast(absent, tf.float32), absent_row, matches, matmul)
        flat = tf.where(marks > 0.5, float("nan"), present)
    else:
        flat = _fetch(flat, absent_row, matches, matmul)
    return tf.stack(tf.split(flat, num_points, axis=-1), axis=2)


@dataclasses.dataclass(frozen=True)
class TargetAssigner:
    """Matches anchors to groundtruth and builds targets from the matched rows."""

    similarity: Similarity  # compares groundtruth boxes with anchors
    matcher: Matcher  # chooses a groundtruth row for each anchor from the similarities
    coder: BoxCoder  # encodes boxes as regression targets
    negative_class_weight: float = 1.0  # class weight of unmatched anchors

    def assign(
        self,
        anchors: tf.Tensor,
        boxes: tf.Tensor,
        classes: tf.Tensor,
        unmatched_class_label: tf.Tensor,
        weights: tf.Tensor,
        valid: tf.Tensor,
        keypoints: Optional[tf.Tensor] = None,
    ) -> Targets:
        """Builds the targets of every anchor.

        A matched anchor has the classes and the encoded box of its groundtruth row, with the row's
        weight. An unmatched one has `unmatched_class_label` with weight `negative_class_weight`, an
        ignored one the same label with weight 0. Rows of weight 0 are matched like others, so that
        their anchors get weight 0, but are never force-matched.

        Anchors are [A, 4], or [B, A, 4] if they differ between images; keypoints [B, G, P, 2], NaN
        where absent. Targets are free of NaN except for the codes of absent keypoints.
        """
        label = tf.convert_to_tensor(unmatched_class_label, tf.float32)
        if not label.shape.is_compatible_with(classes.shape[2:]):
            raise ValueError(
                f"unmatched_class_label must have a value for each of the {classes.shape[2]} "
                f"class columns; given: shape {label.shape}"
            )
        anchors = tf.stop_gradient(anchors)
        matches = self._matches(anchors, boxes, classes, weights, valid)

        matmul = self.matcher.use_matmul_gather
        # Two tables: the class targets are large, and would be copied out of a common one.
        rows = tf.concat([boxes, tf.expand_dims(weights, -1)], axis=-1)
        fetched = _fetch(
            rows, tf.constant([0.0] * 4 + [self.negative_class_weight]), matches, matmul
        )
        matched_boxes, weight = tf.split(fetched, [4, 1], axis=-1)
        class_targets = self.class_targets(classes, label, matches)
        points = None if keypoints is None else _fetch_keypoints(keypoints, matches, matmul)
        codes = self.coder.encode(matched_boxes, anchors, points)

        match = tf.expand_dims(matches, -1)
        is_matched = match >= 0
        return Targets(
            class_targets=class_targets,
            class_weights=tf.where(tf.equal(match, IGNORED), 0.0, weight),
            box_targets=tf.where(is_matched, codes, 0.0),
            box_weights=tf.squeeze(tf.where(is_matched, weight, 0.0), -1),
            matches=matches,
        )

    def class_targets(
        self, classes: tf.Tensor, unmatched_class_label: tf.Tensor, matches: tf.Tensor
    ) -> tf.Tensor:
        """Class rows [B, G, C] of matches [B, A], or the label [C] -> [B, A, C]."""
        return _fetch(classes, unmatched_class_label, matches, self.matcher.use_matmul_gather)

    def _matches(
        self,
        anchors: tf.Tensor,
        boxes: tf.Tensor,
        classes: tf.Tensor,
        weights: tf.Tensor,
        valid: tf.Tensor,
    ) -> tf.Tensor:
        """Groundtruth row of each anchor, int32 [B, A]; arguments as of `assign`."""
        if num_tpu_shards() is None:
            # Most rows are padding, and all pairs with all anchors would take a fifth of the loss.
            # A TPU needs the static shape.
            ends = tf.where(valid, tf.range(1, tf.shape(valid)[1] + 1), 0)
            last = tf.maximum(tf.reduce_max(ends), 0)  # reduce_max of no rows is the lowest int32
            boxes, classes, weights, valid = (
                rows[:, :last] for rows in (boxes, classes, weights, valid)
            )
        return self.matcher(self.similarity(boxes, anchors, classes), valid, weights > 0)

    def assign_confidences(
        self,
        anchors: tf.Tensor,  # float32 [A, 4] or [B, A, 4]
        boxes: tf.Tensor,  # float32 [B, G, 4], in the frame of the anchors
        confidences: tf.Tensor,  # float32 [B, G, C], usually within -1..1
        unmatched_class_label: tf.Tensor,  # float32 [C]
        weights: tf.Tensor,  # float32 [B, G]; rows of weight 0 are never force-matched
        valid: tf.Tensor,  # bool [B, G]
        keypoints: Optional[tf.Tensor] = None,  # float32 [B, G, P, 2], NaN where absent
        *,
        include_background_class: bool = True,  # True if the first class column is the background
        implicit_class_weight: float = 1.0,  # weight of classes without an explicit confidence
    ) -> Targets:
        """Builds targets from groundtruth with a confidence for or against every class.

        A positive confidence is the class target. A negative one says that the class is absent:
        target 0. Zero means unknown, also with target 0. Classes with a confidence have weight 1,
        the others `implicit_class_weight`. Anchors with a positive class are regressed with weight
        1 and are not background, with weight 1; all others are background, with the implicit
        weight. Like in the Object Detection API, row weights, `negative_class_weight` and ignored
        matches do not affect the weights. The background column, if any, is 1 where no class is
        positive.
        """
        targets = self.assign(
            anchors, boxes, confidences, unmatched_class_label, weights, valid, keypoints
        )
        confidence = targets.class_targets[:, :, 1:] if include_background_class else targets[0]
        is_object = tf.reduce_any(confidence > 0, axis=-1)
        class_targets = tf.nn.relu(confidence)
        class_weights = tf.where(tf.equal(confidence, 0.0), implicit_class_weight, 1.0)
        if include_background_class:
            background = tf.where(is_object, 0.0, 1.0)[:, :, None]
            background_weights = tf.where(is_object, 1.0, implicit_class_weight)[:, :, None]
            class_targets = tf.concat([background, class_targets], axis=-1)
            class_weights = tf.concat([background_weights, class_weights], axis=-1)
        return Targets(
            class_targets=class_targets,
            class_weights=class_weights,
            box_targets=tf.where(is_object[:, :, None], targets.box_targets, 0.0),
            box_weights=tf.cast(is_object, tf.float32),
            matches=targets.matches,
        )


def count_assignment(matches: tf.Tensor, valid: tf.Tensor) -> Dict[str, tf.Tensor]:
    """Counts matches per image, averaged over a batch, by the tags of the API's summaries.

    Matches are int32 [B, A], valid groundtruth rows bool [B, G]. Steps that do not fetch these
    float32 scalars do not compute them.
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

"""Hard example mining, which selects the anchors of an image that count in the loss.

Letters: B images, A anchors. Sources: https://arxiv.org/abs/1604.03540 (the hardest regions after
suppression of overlapping ones) and https://arxiv.org/abs/1512.02325 (a fixed ratio of negatives to
positives).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, NamedTuple, Optional, Tuple, Union

import numpy as np

from estimator_det.boxes import geometry
from estimator_det.boxes.matching import UNMATCHED
from estimator_det.compat import tf
from estimator_det.protos import losses_pb2

# From this threshold on, so few pairs of boxes overlap enough that it is faster to search for these
# pairs among neighbours than to compare each box with all selected ones.
SPARSE_FROM_IOU = 0.8
# Below this many examples, comparing with all selected boxes is fast.
SPARSE_FROM_EXAMPLES = 256
# Pairs compared at a time, which limits the memory used.
PAIRS = 1 << 20
# Below the scores of `suppress_all_pairs`, and finite: a GPU's kernel has no threshold then, and
# chooses boxes of score -inf.
_SCORE_THRESHOLD = -1e30
# Weights of a box's edges on the line along which boxes are sorted. Their ratios are irrational, so
# that the boxes of a grid have different positions on it.
_LOW_WEIGHTS = np.array([1.0, (math.sqrt(5.0) - 1.0) / 2.0], np.float32)
_HIGH_WEIGHTS = np.array([math.sqrt(2.0) / 2.0, math.sqrt(3.0) / 3.0], np.float32)


class MinedLosses(NamedTuple):
    """Losses of the selected anchors, and their number."""

    localization: tf.Tensor  # float32 [], summed over the batch
    classification: tf.Tensor  # float32 [], summed over the batch
    num_positives: tf.Tensor  # int32 [B], selected anchors that are matched
    num_negatives: tf.Tensor  # int32 [B], all other selected anchors

    def counts(self) -> Dict[str, tf.Tensor]:
        """Means over images, for summaries."""
        return {
            f"HardExampleMiner/{name}": tf.reduce_mean(tf.cast(getattr(self, name), tf.float32))
            for name in ("num_positives", "num_negatives")
        }


@dataclasses.dataclass(frozen=True)
class HardExampleMiner:
    """Selects the anchors of highest loss, but none that overlaps a selected one."""

    # Most anchors per image, before the ratio is applied; None: no limit.
    num_hard_examples: Optional[int] = 64
    # An anchor is skipped if the IoU of its predicted box with the box of a selected anchor of
    # higher loss is above this.
    iou_threshold: float = 0.7
    loss_type: str = "both"  # "cls", "loc" or "both", the loss that ranks anchors
    cls_weight: float = 0.05  # factor of the classification loss in "both"
    loc_weight: float = 0.06  # factor of the localization loss in "both"
    # If an image has this many unmatched anchors per matched one, all anchors of lower loss except
    # matched ones are skipped; None: no limit.
    max_negatives_per_positive: Optional[float] = None
    min_negatives: int = 0  # unmatched anchors that the ratio always allows an image

    def __call__(
        self,
        location_losses: tf.Tensor,  # float32 [B, A]
        class_losses: tf.Tensor,  # float32 [B, A]
        decoded_boxes: tf.Tensor,  # float32 [B, A, 4], predicted
        matches: tf.Tensor,  # int32 [B, A]: 0 or more matched, UNMATCHED, or IGNORED
    ) -> MinedLosses:
        """Sums the losses of the selected anchors."""
        ranking = class_losses
        if self.loss_type == "loc":
            ranking = location_losses
        elif self.loss_type == "both":
            ranking = class_losses * self.cls_weight + location_losses * self.loc_weight
        selected = self.select(tf.stop_gradient(ranking), tf.stop_gradient(decoded_boxes), matches)
        matched = matches >= 0

        def total(losses: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.where(selected, losses, 0.0))

        def count(is_counted: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.cast(is_counted, tf.int32), axis=1)

        return MinedLosses(
            total(location_losses),
            total(class_losses),
            count(selected & matched),
            count(selected & ~matched),
        )

    def select(self, losses: tf.Tensor, boxes: tf.Tensor, matches: tf.Tensor) -> tf.Tensor:
        """Selects anchors: losses [B, A], boxes [B, A, 4], matches [B, A] -> bool [B, A].

        Equal losses are in the order of anchors. An anchor whose loss is NaN is never selected.
        """
        num_anchors = tf.shape(losses)[1]
        limit = num_anchors if self.num_hard_examples is None else self.num_hard_examples
        has_few_examples = (
            self.num_hard_examples is not None and self.num_hard_examples < SPARSE_FROM_EXAMPLES
        )
        suppress = (
            suppress_all_pairs
            if has_few_examples or self.iou_threshold < SPARSE_FROM_IOU
            else suppress_sparse
        )
        usable = losses > -float("inf")
        _, order = tf.math.top_k(tf.where(usable, losses, -float("inf")), num_anchors)
        kept = suppress(
            boxes, order, tf.gather(usable, order, batch_dims=1), self.iou_threshold, limit
        )
        if self.max_negatives_per_positive is not None:
            kept = _limit_negatives(
                kept,
                tf.gather(matches, order, batch_dims=1),
                self.max_negatives_per_positive,
                self.min_negatives,
            )
        selected = tf.gather(tf.reshape(kept, [-1]), _positions(order))
        return tf.reshape(selected, tf.shape(order))


def _positions(order: tf.Tensor) -> tf.Tensor:
    """Places [B * A] of boxes in the `order` [B, A] of their images, counted through the batch."""
    batch, num_boxes = tf.unstack(tf.shape(order), num=2)
    rows = tf.reshape(order + num_boxes * tf.range(batch)[:, None], [-1, 1])
    return tf.scatter_nd(rows, tf.range(batch * num_boxes), (batch * num_boxes)[None])


def _limit_negatives(
    kept: tf.Tensor, matches: tf.Tensor, per_positive: float, minimum: int
) -> tf.Tensor:
    """Drops negatives past the allowed number from kept anchors [B, A], by falling loss."""
    positive = kept & (matches >= 0)
    negative = kept & tf.equal(matches, UNMATCHED)
    num_positives = tf.reduce_sum(tf.cast(positive, tf.float32), axis=1)
    allowed = tf.maximum(minimum, tf.cast(per_positive * num_positives, tf.int32))
    # Ignored anchors are not counted, but are kept only as long as negatives are; the Object
    # Detection API's rule.
    within_limit = tf.cumsum(tf.cast(negative, tf.int32), axis=1) <= allowed[:, None]
    return positive | (kept & within_limit)


def suppress_all_pairs(
    boxes: tf.Tensor,
    order: tf.Tensor,
    usable: tf.Tensor,
    iou_threshold: float,
    limit: Union[int, tf.Tensor],
) -> tf.Tensor:
    """Suppresses boxes [B, A, 4] greedily in an `order` -> bool [B, A] in it, True if kept.

    Each box is compared with all kept boxes before it, image by image.

    Args:
        order: int32 [B, A], the boxes of each image from the first to the last.
        usable: bool [B, A], in this order; other boxes are never kept.
        limit: The most boxes kept for an image.
    """
    boxes = tf.gather(boxes, order, batch_dims=1)
    batch, num_anchors = tf.unstack(tf.shape(usable), num=2)
    # The kernel sorts by score; falling scores keep the order of the boxes.
    scores = tf.where(usable, tf.cast(-tf.range(num_anchors), tf.float32), -float("inf"))

    def suppress_image(inputs: Tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        indices = tf.raw_ops.NonMaxSuppressionV3(
            boxes=inputs[0],
            scores=inputs[1],
            max_output_size=limit,
            iou_threshold=iou_threshold,
            score_threshold=_SCORE_THRESHOLD,
        )
        marks = tf.ones_like(indices)
        return tf.scatter_nd(indices[:, None], marks, num_anchors[None]) > 0

    kept = tf.map_fn(
        suppress_image, (boxes, scores), fn_output_signature=tf.bool, parallel_iterations=16
    )
    return tf.reshape(kept, [batch, num_anchors])


def suppress_sparse(
    boxes: tf.Tensor,
    order: tf.Tensor,
    usable: tf.Tensor,
    iou_threshold: float,
    limit: Union[int, tf.Tensor],
) -> tf.Tensor:
    """Suppresses like `suppress_all_pairs`, but compares close pairs only; thresholds above 0.5.

    Boxes are sorted along a line on which boxes of high IoU cannot be far apart, and only
    neighbours are compared. The cost grows with the number of neighbours. The search does not wait
    for the order.
    """
    pairs = tf.gather(_positions(order), _close_pairs(boxes, iou_threshold))
    first, second = tf.reduce_min(pairs, axis=1), tf.reduce_max(pairs, axis=1)
    flat_usable = tf.reshape(usable, [-1])
    num_boxes = tf.size(flat_usable)

    def update(kept: tf.Tensor, changed: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        del changed
        suppressed = tf.scatter_nd(
            second[:, None], tf.cast(tf.gather(kept, first), tf.int32), num_boxes[None]
        )
        new_kept = flat_usable & (suppressed < 1)
        return new_kept, tf.reduce_any(tf.not_equal(new_kept, kept))

    # A box depends on earlier ones only, so each round decides at least one more box of a chain.
    # The greedy rule holds for all boxes as soon as none changes.
    kept, _ = tf.while_loop(lambda kept, changed: changed, update, (flat_usable, tf.constant(True)))
    kept = tf.reshape(kept, tf.shape(usable))
    return kept & (tf.cumsum(tf.cast(kept, tf.int32), axis=1) <= limit)


def _close_pairs(boxes: tf.Tensor, iou_threshold: float) -> tf.Tensor:
    """Pairs of an image with an IoU above the threshold, as indices [N, 2] into [B * A].

    The lower edges of two boxes of IoU above t, and their upper edges, are together less than
    s (1 - t) / t apart along an axis in which the boxes have size s. So the distance of two such
    boxes on a line `y + phi x + ...` is bounded by the size of either.
    """
    batch, num_anchors = tf.unstack(tf.shape(boxes)[:2], num=2)
    # Corners may come in any order.
    low = tf.minimum(boxes[..., :2], boxes[..., 2:])
    high = tf.maximum(boxes[..., :2], boxes[..., 2:])
    line = tf.reduce_sum(low * _LOW_WEIGHTS + high * _HIGH_WEIGHTS, axis=2)
    # The larger weight of an axis bounds the move of its edges; 1.001 is for rounding.
    reach = tf.reduce_sum((high - low) * np.maximum(_LOW_WEIGHTS, _HIGH_WEIGHTS), axis=2)
    reach = reach * (1.001 * (1.0 - iou_threshold) / iou_threshold) + 1e-6 * tf.abs(line)
    # Boxes that are not finite are sorted to the end and have no neighbours.
    finite = tf.math.is_finite(line + reach)
    line = tf.where(finite, line, line.dtype.max)
    reach = tf.where(finite, reach, 0.0)

    falling, order = tf.math.top_k(-line, num_anchors)
    line = -falling
    last = tf.searchsorted(line, line + tf.gather(reach, order, batch_dims=1), side="right") - 1
    neighbours = tf.reshape(last - tf.range(num_anchors), [-1])
    rows = tf.reshape(order + num_anchors * tf.range(batch)[:, None], [-1])
    corners = tf.gather(tf.reshape(tf.concat([low, high], axis=2), [-1, 4]), rows)
    # Box i has the pairs from starts[i] to stops[i], with the boxes i + 1, i + 2, ...
    stops = tf.cumsum(tf.cast(neighbours, tf.int64))
    starts = stops - tf.cast(neighbours, tf.int64)

    def compare(step: tf.Tensor, pairs: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        begin = step * PAIRS
        count = tf.minimum(stops[-1] - begin, PAIRS)
        numbers = begin + tf.range(count)
        # The box of a pair is the number of boxes whose pairs end before it.
        ends = tf.math.unsorted_segment_sum(
            tf.ones_like(neighbours), tf.clip_by_value(stops - begin, 0, count), count + 1
        )
        box = tf.cumsum(ends)[:-1]
        neighbour = box + 1 + tf.cast(numbers - tf.gather(starts, box), tf.int32)
        iou = geometry.matched_iou(tf.gather(corners, box), tf.gather(corners, neighbour))
        close = iou > iou_threshold
        close_pairs = tf.boolean_mask(tf.stack([box, neighbour], axis=1), close)
        return step + 1, tf.concat([pairs, close_pairs], axis=0)

    _, pairs = tf.while_loop(
        lambda step, pairs: step * PAIRS < stops[-1],
        compare,
        (tf.constant(0, tf.int64), tf.zeros([0, 2], tf.int32)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 2])),
    )
    return tf.gather(rows, pairs)


def make_hard_example_miner(
    config: losses_pb2.HardExampleMiner, loc_weight: float, cls_weight: float
) -> HardExampleMiner:
    """Builds a miner from a `HardExampleMiner` proto and the weights of the two losses.

    `num_hard_examples` and `max_negatives_per_positive` of 0 or less set no limit, as in the API.
    """
    loss_types = {"BOTH": "both", "CLASSIFICATION": "cls", "LOCALIZATION": "loc"}
    return HardExampleMiner(
        num_hard_examples=config.num_hard_examples if config.num_hard_examples > 0 else None,
        iou_threshold=config.iou_threshold,
        loss_type=loss_types[config.LossType.Name(config.loss_type)],
        cls_weight=cls_weight,
        loc_weight=loc_weight,
        max_negatives_per_positive=(
            config.max_negatives_per_positive if config.max_negatives_per_positive > 0 else None
        ),
        min_negatives=config.min_negatives_per_image,
    )

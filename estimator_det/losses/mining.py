"""Hard example mining: which anchors of an image count in the loss.

Letters: B images, A anchors. Sources: https://arxiv.org/abs/1604.03540 (the hardest regions after
suppression of overlapping ones) and https://arxiv.org/abs/1512.02325 (a fixed ratio of negatives to
positives).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, Optional, Tuple, Union

import numpy as np

from estimator_det.boxes.matching import UNMATCHED
from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.config.text import ConfigError

TPU = (
    TpuAdvice(
        "loss.hard_example_miner",
        "remove the hard_example_miner block and use weighted_sigmoid_focal as "
        "classification_loss: it needs no mining",
    ),
    TpuAdvice("hard_example_miner", "remove the hard_example_miner block"),
)

# From this threshold on, few pairs of boxes overlap enough to matter, and finding those pairs
# among neighbours is faster than comparing each box with all that were chosen before.
SPARSE_FROM_IOU = 0.8
# Below this many examples the chosen ones are so few that comparing with all is fast.
SPARSE_FROM_EXAMPLES = 256
# Pairs compared at a time, which bounds the memory taken.
PAIRS = 1 << 20
# Weights of a box's edges on a line along which boxes are sorted. Being irrational to each other,
# they put boxes of a grid on different places.
_LOW_WEIGHTS = np.array([1.0, (math.sqrt(5.0) - 1.0) / 2.0], np.float32)
_HIGH_WEIGHTS = np.array([math.sqrt(2.0) / 2.0, math.sqrt(3.0) / 3.0], np.float32)


class MinedLosses(NamedTuple):
    """Losses of the chosen anchors."""

    localization: tf.Tensor  # float32 [], summed over the batch
    classification: tf.Tensor  # float32 [], summed over the batch
    num_positives: tf.Tensor  # int32 [B], chosen anchors that are matched
    num_negatives: tf.Tensor  # int32 [B], all others chosen


@dataclasses.dataclass(frozen=True)
class HardExampleMiner:
    """Chooses the anchors of highest loss, those that overlap a chosen one excepted.

    Attributes:
        num_hard_examples: most anchors chosen per image, before the ratio is applied; None: all.
        iou_threshold: an anchor whose predicted box has a higher IoU with that of a chosen one of
            higher loss is passed over.
        loss_type: "cls", "loc" or "both", the loss that ranks anchors.
        cls_weight: factor of the classification loss in "both".
        loc_weight: factor of the localization loss in "both".
        max_negatives_per_positive: once an image has this many times as many unmatched anchors as
            matched ones, all further anchors but matched ones are passed over; None: no ratio.
        min_negatives: unmatched anchors that the ratio always allows an image.

    Raises:
        ValueError: if a value is out of its range; for `iou_threshold` a ConfigError.
    """

    num_hard_examples: Optional[int] = 64
    iou_threshold: float = 0.7
    loss_type: str = "both"
    cls_weight: float = 0.05
    loc_weight: float = 0.06
    max_negatives_per_positive: Optional[float] = None
    min_negatives: int = 0

    def __post_init__(self) -> None:
        if self.loss_type not in ("cls", "loc", "both"):
            raise ValueError(f"loss_type must be 'cls', 'loc' or 'both'; given: {self.loss_type!r}")
        if not 0.0 <= self.iou_threshold <= 1.0:
            raise ConfigError(
                "hard_example_miner.iou_threshold must lie within 0 to 1; "
                f"given: {self.iou_threshold}"
            )

    def __call__(
        self,
        location_losses: tf.Tensor,
        class_losses: tf.Tensor,
        decoded_boxes: tf.Tensor,
        matches: tf.Tensor,
    ) -> MinedLosses:
        """Sums of the chosen anchors' losses.

        Args:
            location_losses: float32 [B, A].
            class_losses: float32 [B, A].
            decoded_boxes: float32 [B, A, 4], as predicted.
            matches: int32 [B, A]: 0 or more matched, UNMATCHED, or IGNORED.
        """
        ranking = class_losses
        if self.loss_type == "loc":
            ranking = location_losses
        elif self.loss_type == "both":
            ranking = class_losses * self.cls_weight + location_losses * self.loc_weight
        chosen = self.choose(tf.stop_gradient(ranking), tf.stop_gradient(decoded_boxes), matches)
        matched = matches >= 0

        def total(losses: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.where(chosen, losses, 0.0))

        def count(which: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.cast(which, tf.int32), axis=1)

        return MinedLosses(
            total(location_losses),
            total(class_losses),
            count(chosen & matched),
            count(chosen & ~matched),
        )

    def choose(self, losses: tf.Tensor, boxes: tf.Tensor, matches: tf.Tensor) -> tf.Tensor:
        """The chosen anchors: losses [B, A], boxes [B, A, 4], matches [B, A] -> bool [B, A].

        Equal losses are taken in the order of anchors. A loss that is NaN is never chosen.
        """
        num_anchors = tf.shape(losses)[1]
        limit = num_anchors if self.num_hard_examples is None else self.num_hard_examples
        few = self.num_hard_examples is not None and self.num_hard_examples < SPARSE_FROM_EXAMPLES
        suppress = (
            suppress_all_pairs if few or self.iou_threshold < SPARSE_FROM_IOU else suppress_sparse
        )
        # From here on anchors are in the order of their losses.
        usable = losses > -float("inf")
        _, order = tf.math.top_k(tf.where(usable, losses, -float("inf")), num_anchors)
        kept = suppress(
            tf.gather(boxes, order, batch_dims=1),
            tf.gather(usable, order, batch_dims=1),
            self.iou_threshold,
            limit,
        )
        if self.max_negatives_per_positive is not None:
            kept = _limit_negatives(
                kept,
                tf.gather(matches, order, batch_dims=1),
                self.max_negatives_per_positive,
                self.min_negatives,
            )
        images = tf.broadcast_to(tf.range(tf.shape(order)[0])[:, None], tf.shape(order))
        chosen = tf.scatter_nd(
            tf.stack([images, order], axis=-1), tf.cast(kept, tf.int32), tf.shape(order)
        )
        return chosen > 0


def _limit_negatives(
    kept: tf.Tensor, matches: tf.Tensor, per_positive: float, minimum: int
) -> tf.Tensor:
    """Kept anchors [B, A], by falling loss, less those past the allowed number of negatives."""
    positive = kept & (matches >= 0)
    negative = kept & tf.equal(matches, UNMATCHED)
    num_positives = tf.reduce_sum(tf.cast(positive, tf.float32), axis=1)
    allowed = tf.maximum(minimum, tf.cast(per_positive * num_positives, tf.int32))
    # Ignored anchors are not counted, but pass only while negatives still do, as in the reference.
    open_still = tf.cumsum(tf.cast(negative, tf.int32), axis=1) <= allowed[:, None]
    return positive | (kept & open_still)


def suppress_all_pairs(
    boxes: tf.Tensor, usable: tf.Tensor, iou_threshold: float, limit: Union[int, tf.Tensor]
) -> tf.Tensor:
    """Greedy suppression of boxes [B, A, 4] in the order given: -> kept bool [B, A].

    Each box is compared with all kept before it, image by image.

    Args:
        boxes: float32 [B, A, 4].
        usable: bool [B, A]; others are never kept.
        iou_threshold: a box with a higher IoU with a kept one is not kept.
        limit: most boxes kept per image, int or int32 scalar.
    """
    batch, num_anchors = tf.unstack(tf.shape(usable), num=2)
    # The kernel orders by score; these scores keep their order.
    scores = tf.where(usable, tf.cast(-tf.range(num_anchors), tf.float32), -float("inf"))

    def suppress_image(inputs: Tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        indices = tf.raw_ops.NonMaxSuppressionV3(
            boxes=inputs[0],
            scores=inputs[1],
            max_output_size=limit,
            iou_threshold=iou_threshold,
            score_threshold=-float("inf"),
        )
        marks = tf.ones_like(indices)
        return tf.scatter_nd(indices[:, None], marks, num_anchors[None]) > 0

    kept = tf.map_fn(
        suppress_image, (boxes, scores), fn_output_signature=tf.bool, parallel_iterations=16
    )
    return tf.reshape(kept, [batch, num_anchors])


def suppress_sparse(
    boxes: tf.Tensor, usable: tf.Tensor, iou_threshold: float, limit: Union[int, tf.Tensor]
) -> tf.Tensor:
    """What `suppress_all_pairs` computes, for a threshold above 0.5, by finding close pairs only.

    Boxes are laid out along a line such that boxes of high IoU cannot lie far apart; only
    neighbours on it are compared. The work grows with the neighbours there are.
    """
    first, second = _close_pairs(boxes, iou_threshold)
    flat_usable = tf.reshape(usable, [-1])
    num_boxes = tf.size(flat_usable)

    def settle(kept: tf.Tensor, changed: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        del changed
        suppressed = tf.scatter_nd(
            second[:, None], tf.cast(tf.gather(kept, first), tf.int32), num_boxes[None]
        )
        now = flat_usable & (suppressed < 1)
        return now, tf.reduce_any(tf.not_equal(now, kept))

    # A box depends on earlier ones only, so each round settles at least one further link of every
    # chain of overlaps; where none changes, the greedy rule holds for all.
    kept, _ = tf.while_loop(lambda kept, changed: changed, settle, (flat_usable, tf.constant(True)))
    kept = tf.reshape(kept, tf.shape(usable))
    return kept & (tf.cumsum(tf.cast(kept, tf.int32), axis=1) <= limit)


def _close_pairs(boxes: tf.Tensor, iou_threshold: float) -> Tuple[tf.Tensor, tf.Tensor]:
    """Pairs of one image with an IoU above the threshold, as indices into [B * A]: earlier, later.

    Two boxes of IoU above t agree in every direction: along an axis where they measure s, their
    lower edges and their upper edges together are less than s (1 - t) / t apart. So the distance of
    two such boxes on a line `y + phi x + ...` is bounded by the size of either.
    """
    batch, num_anchors = tf.unstack(tf.shape(boxes)[:2], num=2)
    # Corners may come in any order.
    low = tf.minimum(boxes[..., :2], boxes[..., 2:])
    high = tf.maximum(boxes[..., :2], boxes[..., 2:])
    line = tf.reduce_sum(low * _LOW_WEIGHTS + high * _HIGH_WEIGHTS, axis=2)
    # The larger weight of an axis bounds what its two edges can move; a little more for rounding.
    reach = tf.reduce_sum((high - low) * np.maximum(_LOW_WEIGHTS, _HIGH_WEIGHTS), axis=2)
    reach = reach * (1.001 * (1.0 - iou_threshold) / iou_threshold) + 1e-6 * tf.abs(line)
    # Boxes that are not finite come last and have no neighbours.
    finite = tf.math.is_finite(line + reach)
    line = tf.where(finite, line, line.dtype.max)
    reach = tf.where(finite, reach, 0.0)

    falling, order = tf.math.top_k(-line, num_anchors)
    line = -falling
    last = tf.searchsorted(line, line + tf.gather(reach, order, batch_dims=1), side="right") - 1
    neighbours = tf.reshape(last - tf.range(num_anchors), [-1])
    rows = tf.reshape(order + num_anchors * tf.range(batch)[:, None], [-1])
    corners = tf.gather(tf.reshape(tf.concat([low, high], axis=2), [-1, 4]), rows)
    # Box i owns the pairs from starts[i] up to stops[i], with the boxes i + 1, i + 2, ...
    stops = tf.cumsum(tf.cast(neighbours, tf.int64))
    starts = stops - tf.cast(neighbours, tf.int64)

    def compare(step: tf.Tensor, pairs: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        numbers = tf.range(step * PAIRS, tf.minimum((step + 1) * PAIRS, stops[-1]))
        one = tf.searchsorted(stops, numbers, side="right")
        two = one + 1 + tf.cast(numbers - tf.gather(starts, one), tf.int32)
        close = _iou(tf.gather(corners, one), tf.gather(corners, two)) > iou_threshold
        found = tf.boolean_mask(tf.stack([one, two], axis=1), close)
        return step + 1, tf.concat([pairs, found], axis=0)

    _, pairs = tf.while_loop(
        lambda step, pairs: step * PAIRS < stops[-1],
        compare,
        (tf.constant(0, tf.int64), tf.zeros([0, 2], tf.int32)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 2])),
    )
    one, two = tf.unstack(tf.gather(rows, pairs), num=2, axis=1)
    return tf.minimum(one, two), tf.maximum(one, two)


def _iou(one: tf.Tensor, two: tf.Tensor) -> tf.Tensor:
    """IoU box by box: [P, 4], [P, 4] -> [P]; NaN where both are empty, never above a threshold."""
    ymin_a, xmin_a, ymax_a, xmax_a = tf.unstack(one, num=4, axis=1)
    ymin_b, xmin_b, ymax_b, xmax_b = tf.unstack(two, num=4, axis=1)
    height = tf.nn.relu(tf.minimum(ymax_a, ymax_b) - tf.maximum(ymin_a, ymin_b))
    width = tf.nn.relu(tf.minimum(xmax_a, xmax_b) - tf.maximum(xmin_a, xmin_b))
    common = height * width
    area_a = (ymax_a - ymin_a) * (xmax_a - xmin_a)
    area_b = (ymax_b - ymin_b) * (xmax_b - xmin_b)
    # Every operation in the kernel's order: pairs at the threshold must fall on its side.
    return common / (area_a + area_b - common)


def make_hard_example_miner(config: Any, loc_weight: float, cls_weight: float) -> HardExampleMiner:
    """A miner from a `HardExampleMiner` proto and the weights of the two losses.

    `num_hard_examples` and `max_negatives_per_positive` of 0 or less set no limit, as in the
    reference.
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

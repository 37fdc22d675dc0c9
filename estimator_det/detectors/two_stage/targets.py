"""What anchors and regions should predict, and which of them a training step uses.

Letters: B images, N anchors or regions, G groundtruth boxes, K foreground classes. Boxes are in
pixels of the padded image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from estimator_det.boxes.assign import TargetAssigner, Targets
from estimator_det.boxes.coders import CenterSizeCoder
from estimator_det.boxes.geometry import IOU_SIMILARITY
from estimator_det.boxes.matching import ArgMaxMatcher
from estimator_det.boxes.sampling import balanced_sample
from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Groundtruth
from estimator_det.detectors.two_stage.outputs import Regions, in_pixels

TPU = TpuAdvice("use_matmul_gather_in_matcher", "set it to true")

BOX_CODER = CenterSizeCoder(10.0, 10.0, 5.0, 5.0)
"""Of both stages; the scales are part of what published checkpoints have learnt."""


def make_anchor_assigner(config: Any) -> TargetAssigner:
    """Of the first stage: an anchor is an object from IoU 0.7 on, background below 0.3."""
    matcher = ArgMaxMatcher(
        matched_threshold=0.7,
        unmatched_threshold=0.3,
        force_match_for_each_row=True,
        use_matmul_gather=config.use_matmul_gather_in_matcher,
    )
    return TargetAssigner(IOU_SIMILARITY, matcher, BOX_CODER)


def make_region_assigner(config: Any) -> TargetAssigner:
    """Of the second stage: a region has the class of its best match from IoU 0.5 on."""
    matcher = ArgMaxMatcher(
        matched_threshold=0.5, use_matmul_gather=config.use_matmul_gather_in_matcher
    )
    return TargetAssigner(IOU_SIMILARITY, matcher, BOX_CODER)


def with_boxes_in_pixels(groundtruth: Groundtruth, inputs: tf.Tensor) -> Groundtruth:
    """Groundtruth of images padded to inputs [B, H, W, C]."""
    return groundtruth._replace(boxes=in_pixels(groundtruth.boxes, inputs))


def assign_objects(
    assigner: TargetAssigner, anchors: tf.Tensor, groundtruth: Groundtruth
) -> Targets:
    """Targets of anchors [A, 4] regardless of class: class targets are [B, A, 1], 1 for objects."""
    return assigner.assign(
        anchors,
        groundtruth.boxes,
        tf.ones_like(groundtruth.boxes[:, :, :1]),
        tf.zeros([1]),
        groundtruth.weights,
        groundtruth.valid,
    )


def assign_classes(assigner: TargetAssigner, boxes: tf.Tensor, groundtruth: Groundtruth) -> Targets:
    """Targets of boxes [B, N, 4]: class targets are [B, N, K + 1], background first."""
    num_classes = groundtruth.classes.shape[2]
    return assigner.assign(
        boxes,
        groundtruth.boxes,
        tf.pad(groundtruth.classes, [[0, 0], [0, 0], [1, 0]]),
        tf.one_hot(0, num_classes + 1),
        groundtruth.weights,
        groundtruth.valid,
    )


@dataclass(frozen=True)
class Sampling:
    """How many rows of an image count in the loss, and at most which share of them are objects."""

    batch_size: int
    positive_fraction: float

    def __call__(self, eligible: tf.Tensor, positive: tf.Tensor) -> tf.Tensor:
        """Bool [B, N], bool [B, N] -> bool [B, N], at random."""
        return balanced_sample(eligible, positive, self.batch_size, self.positive_fraction)


def make_sampling(batch_size: int, fraction: float, size_field: str, share_field: str) -> Sampling:
    """Sampling of the two fields of a `FasterRcnn` message; ConfigError if out of range.

    `use_static_balanced_label_sampler` chooses between samplers of one distribution in the
    reference, and changes nothing here.
    """
    if batch_size < 1:
        raise ConfigError(f"faster_rcnn.{size_field}: must be 1 or more; got {batch_size}")
    if not 0.0 <= fraction <= 1.0:
        raise ConfigError(f"faster_rcnn.{share_field}: must lie within 0 to 1; got {fraction:g}")
    return Sampling(batch_size, fraction)


@dataclass(frozen=True)
class RegionSampler:
    """Chooses the proposals that the second stage is trained on.

    Attributes:
        assigner: Matches proposals to groundtruth.
        sampling: How many are chosen.
    """

    assigner: TargetAssigner
    sampling: Sampling

    def __call__(
        self, proposals: Regions, groundtruth: Optional[Groundtruth], inputs: tf.Tensor
    ) -> Regions:
        """N proposals of each image -> `sampling.batch_size` regions, in the same order.

        Args:
            proposals: In pixels.
            groundtruth: Normalized to the inputs.
            inputs: float [B, H, W, C], padded images.

        Raises:
            ValueError: if there is no groundtruth.
        """
        if groundtruth is None:
            raise ValueError("predict: a two-stage detector in training needs groundtruth")
        groundtruth = with_boxes_in_pixels(groundtruth, inputs)
        targets = assign_classes(self.assigner, proposals.boxes, groundtruth)
        chosen = self.sampling(
            proposals.valid & (tf.reduce_mean(targets.class_weights, axis=2) > 0.0),
            tf.argmax(targets.class_targets, axis=2) > 0,
        )
        size = self.sampling.batch_size
        order = tf.argsort(tf.where(chosen, 0, 1), axis=1, stable=True)[:, :size]
        num = tf.minimum(tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1), size)
        taken = tf.sequence_mask(num, size)[:, :, tf.newaxis]
        boxes = tf.where(taken, tf.gather(proposals.boxes, order, batch_dims=1), 0.0)
        return Regions(tf.ensure_shape(boxes, [boxes.shape[0], size, 4]), num)


def make_region_sampler(config: Any) -> RegionSampler:
    """The sampler of a `FasterRcnn` message.

    Raises:
        ConfigError: if a field is out of range, or more regions are wanted than there are.
    """
    wanted, proposed = config.second_stage_batch_size, config.first_stage_max_proposals
    if wanted > proposed:
        raise ConfigError(
            f"faster_rcnn.second_stage_batch_size: is {wanted}, more than the "
            f"first_stage_max_proposals, {proposed}; lower the former or raise the latter"
        )
    sampling = make_sampling(
        wanted,
        config.second_stage_balance_fraction,
        "second_stage_batch_size",
        "second_stage_balance_fraction",
    )
    return RegionSampler(make_region_assigner(config), sampling)

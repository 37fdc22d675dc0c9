"""Targets of anchors and regions, and the sample that a training step uses.

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
from estimator_det.detectors.two_stage.outputs import Regions, boxes_to_pixels

TPU = TpuAdvice("use_matmul_gather_in_matcher", "set it to true")

BOX_CODER = CenterSizeCoder(10.0, 10.0, 5.0, 5.0)
"""Box coder of both stages. Published checkpoints were trained with these scales."""


def make_anchor_assigner(config: Any) -> TargetAssigner:
    """Builds the first stage's assigner: objects from IoU 0.7, background below 0.3."""
    matcher = ArgMaxMatcher(
        matched_threshold=0.7,
        unmatched_threshold=0.3,
        force_match_for_each_row=True,
        use_matmul_gather=config.use_matmul_gather_in_matcher,
    )
    return TargetAssigner(IOU_SIMILARITY, matcher, BOX_CODER)


def make_region_assigner(config: Any) -> TargetAssigner:
    """Builds the second stage's assigner: the class of the best match from IoU 0.5."""
    matcher = ArgMaxMatcher(
        matched_threshold=0.5, use_matmul_gather=config.use_matmul_gather_in_matcher
    )
    return TargetAssigner(IOU_SIMILARITY, matcher, BOX_CODER)


def convert_boxes_to_pixels(groundtruth: Groundtruth, inputs: tf.Tensor) -> Groundtruth:
    """Converts the boxes of groundtruth to pixels of inputs [B, H, W, C]."""
    return groundtruth._replace(boxes=boxes_to_pixels(groundtruth.boxes, inputs))


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
    """Number of rows of an image that count in the loss, and the largest share of objects."""

    batch_size: int
    positive_fraction: float

    def __call__(self, eligible: tf.Tensor, positive: tf.Tensor) -> tf.Tensor:
        """Samples rows at random: bool [B, N] eligible, bool [B, N] positive -> bool [B, N]."""
        return balanced_sample(eligible, positive, self.batch_size, self.positive_fraction)


def make_sampling(batch_size: int, fraction: float, size_field: str, share_field: str) -> Sampling:
    """Builds the sampling of two fields of a `FasterRcnn` message, or raises ConfigError."""
    # `use_static_balanced_label_sampler` chooses between samplers of one distribution in the
    # reference, and has no effect here.
    if batch_size < 1:
        raise ConfigError(f"faster_rcnn.{size_field} must be 1 or more; given: {batch_size}")
    if not 0.0 <= fraction <= 1.0:
        raise ConfigError(f"faster_rcnn.{share_field} must be 0 to 1; given: {fraction:g}")
    return Sampling(batch_size, fraction)


@dataclass(frozen=True)
class RegionSampler:
    """Chooses the proposals that the second stage is trained on.

    Attributes:
        assigner: matches proposals to groundtruth.
        sampling: chooses proposals.
    """

    assigner: TargetAssigner
    sampling: Sampling

    def __call__(
        self, proposals: Regions, groundtruth: Optional[Groundtruth], inputs: tf.Tensor
    ) -> Regions:
        """Chooses `sampling.batch_size` of N proposals of each image, in the same order.

        Args:
            proposals: boxes in pixels.
            groundtruth: labels with boxes normalized to the inputs.
            inputs: float [B, H, W, C], padded images.

        Raises:
            ValueError: if there is no groundtruth.
        """
        if groundtruth is None:
            raise ValueError(
                "predict needs groundtruth in training of a two-stage detector; pass it"
            )
        groundtruth = convert_boxes_to_pixels(groundtruth, inputs)
        targets = assign_classes(self.assigner, proposals.boxes, groundtruth)
        is_selected = self.sampling(
            proposals.valid & (tf.reduce_mean(targets.class_weights, axis=2) > 0.0),
            tf.argmax(targets.class_targets, axis=2) > 0,
        )
        size = self.sampling.batch_size
        order = tf.argsort(tf.where(is_selected, 0, 1), axis=1, stable=True)[:, :size]
        num = tf.minimum(tf.reduce_sum(tf.cast(is_selected, tf.int32), axis=1), size)
        is_region = tf.sequence_mask(num, size)[:, :, tf.newaxis]
        boxes = tf.where(is_region, tf.gather(proposals.boxes, order, batch_dims=1), 0.0)
        return Regions(tf.ensure_shape(boxes, [boxes.shape[0], size, 4]), num)


def make_region_sampler(config: Any) -> RegionSampler:
    """Builds the sampler of a `FasterRcnn` message, or raises ConfigError."""
    batch_size, max_proposals = config.second_stage_batch_size, config.first_stage_max_proposals
    if batch_size > max_proposals:
        raise ConfigError(
            f"faster_rcnn.second_stage_batch_size must not be above first_stage_max_proposals, "
            f"{max_proposals}; given: {batch_size}. Lower the former or raise the latter"
        )
    sampling = make_sampling(
        batch_size,
        config.second_stage_balance_fraction,
        "second_stage_batch_size",
        "second_stage_balance_fraction",
    )
    return RegionSampler(make_region_assigner(config), sampling)

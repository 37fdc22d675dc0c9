"""Regions of the second stage: their targets, loss and detections.

Letters in shapes: B images, N regions of an image (padded), K foreground classes, q boxes of a
region (K, or 1 that all classes share). Boxes are in pixels of the padded image that enters the
network unless an argument says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Iterator, Optional

from estimator_det.boxes import geometry
from estimator_det.boxes.assign import TargetAssigner, Targets
from estimator_det.boxes.geometry import IOU_SIMILARITY
from estimator_det.boxes.matching import ArgMaxMatcher
from estimator_det.boxes.nms.coded_boxes import CodedBoxes
from estimator_det.boxes.nms.multiclass import make_nms_options
from estimator_det.boxes.sampling import balanced_sample
from estimator_det.boxes.score_conversion import make_score_converter
from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.detectors.base import (
    BatchDetections,
    Groundtruth,
    ImageFrame,
    Losses,
    Postprocessing,
    WeightedLosses,
    boxes_to_pixels,
)
from estimator_det.detectors.two_stage.proposals import (
    BOX_CODER,
    Regions,
    Sampling,
    make_weighted_losses,
)
from estimator_det.detectors.two_stage.region_stage import RegionOutput
from estimator_det.errors import Problem
from estimator_det.losses.classification import check_per_anchor
from estimator_det.losses.mining import HardExampleMiner, make_hard_example_miner
from estimator_det.protos import faster_rcnn_pb2, post_processing_pb2

REGION_LOCALIZATION = "Loss/BoxClassifierLoss/localization_loss"
REGION_CLASSIFICATION = "Loss/BoxClassifierLoss/classification_loss"


def make_region_assigner(config: faster_rcnn_pb2.FasterRcnn) -> TargetAssigner:
    """Builds the assigner of regions: the class of the best match from IoU 0.5."""
    matcher = ArgMaxMatcher(
        matched_threshold=0.5, use_matmul_gather=config.use_matmul_gather_in_matcher
    )
    return TargetAssigner(IOU_SIMILARITY, matcher, BOX_CODER)


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
class RegionSampler:
    """Chooses the proposals that the second stage is trained on."""

    assigner: TargetAssigner  # matches proposals to groundtruth
    sampling: Sampling  # chooses proposals

    def __call__(
        self, proposals: Regions, groundtruth: Optional[Groundtruth], inputs: tf.Tensor
    ) -> Regions:
        """Chooses `sampling.batch_size` of N proposals of each image, in the same order.

        Proposals are in pixels; groundtruth boxes are normalized to inputs [B, H, W, C].
        """
        if groundtruth is None:
            raise ValueError(
                "predict needs groundtruth in training of a two-stage detector; pass it"
            )
        groundtruth = groundtruth._replace(boxes=boxes_to_pixels(groundtruth.boxes, inputs))
        targets = assign_classes(self.assigner, proposals.boxes, groundtruth)
        is_selected = balanced_sample(
            proposals.valid & (tf.reduce_mean(targets.class_weights, axis=2) > 0.0),
            tf.argmax(targets.class_targets, axis=2) > 0,
            *self.sampling,
        )
        size = self.sampling.batch_size
        order = tf.argsort(tf.where(is_selected, 0, 1), axis=1, stable=True)[:, :size]
        num = tf.minimum(tf.reduce_sum(tf.cast(is_selected, tf.int32), axis=1), size)
        is_region = tf.sequence_mask(num, size)[:, :, tf.newaxis]
        boxes = tf.where(is_region, tf.gather(proposals.boxes, order, batch_dims=1), 0.0)
        return Regions(tf.ensure_shape(boxes, [boxes.shape[0], size, 4]), num)


def make_region_sampler(config: faster_rcnn_pb2.FasterRcnn) -> RegionSampler:
    """Builds the sampler of a `FasterRcnn` message."""
    sampling = Sampling(config.second_stage_batch_size, config.second_stage_balance_fraction)
    return RegionSampler(make_region_assigner(config), sampling)


@dataclass(frozen=True)
class RegionLoss:
    """Loss of all regions of each image, or of the hardest ones."""

    assigner: TargetAssigner  # matches regions to groundtruth
    terms: WeightedLosses  # the two losses
    # Uses the regions of the largest losses only; None: uses all.
    miner: Optional[HardExampleMiner] = None

    def __call__(self, regions: Regions, output: RegionOutput, groundtruth: Groundtruth) -> Losses:
        """Computes scalar terms, means over regions, then over images; counts of mining."""
        targets = assign_classes(self.assigner, regions.boxes, groundtruth)
        box_losses = self.terms.localization(
            select_class_codes(output.box_encodings, targets.class_targets),
            targets.box_targets,
            weights=targets.box_weights,
            losses_mask=groundtruth.is_annotated,
        )
        class_losses = self.terms.classification(
            output.class_logits,
            targets.class_targets,
            weights=targets.class_weights,
            losses_mask=groundtruth.is_annotated,
        )
        if class_losses.shape.rank == 3:
            class_losses = tf.reduce_sum(class_losses, axis=2)
        images = tf.cast(tf.shape(regions.num)[0], tf.float32)
        share = images * tf.maximum(tf.cast(regions.num, tf.float32), 1.0)[:, tf.newaxis]
        box_losses, class_losses = box_losses / share, class_losses / share
        counts: Dict[str, tf.Tensor] = {}
        if self.miner:
            # The miner never selects a loss of -inf.
            never_selected = -float("inf")
            mined_losses = self.miner(
                tf.where(regions.valid, box_losses, never_selected),
                tf.where(regions.valid, class_losses, never_selected),
                regions.boxes,
                targets.matches,
            )
            box_total, class_total = mined_losses.localization, mined_losses.classification
            counts = mined_losses.counts()
        else:
            box_total = tf.reduce_sum(tf.where(regions.valid, box_losses, 0.0))
            class_total = tf.reduce_sum(tf.where(regions.valid, class_losses, 0.0))
        terms = {
            REGION_LOCALIZATION: self.terms.localization_weight * box_total,
            REGION_CLASSIFICATION: self.terms.classification_weight * class_total,
        }
        return Losses(terms, counts, dict.fromkeys(terms, images))


def select_class_codes(box_encodings: tf.Tensor, class_targets: tf.Tensor) -> tf.Tensor:
    """Selects the codes [B, N, q, 4] of each region's target class, [B, N, K + 1] -> [B, N, 4].

    Background regions have zeros, and no box target.
    """
    if box_encodings.shape[2] == 1:
        return box_encodings[:, :, 0]
    label = tf.argmax(class_targets, axis=2, output_type=tf.int32)
    codes = tf.gather(box_encodings, tf.maximum(label - 1, 0), batch_dims=2)
    return tf.where(label[:, :, tf.newaxis] > 0, codes, 0.0)


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_loss(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    if config.number_of_stages > 1:
        path = f"{at}.second_stage_classification_loss"
        yield from check_per_anchor(
            config.second_stage_classification_loss, path, "the second stage"
        )


def make_region_loss(config: faster_rcnn_pb2.FasterRcnn) -> RegionLoss:
    """Builds the second stage's loss of a `FasterRcnn` message."""
    box_weight = config.second_stage_localization_loss_weight
    class_weight = config.second_stage_classification_loss_weight
    miner = None
    if config.HasField("hard_example_miner"):
        miner = make_hard_example_miner(config.hard_example_miner, box_weight, class_weight)
    terms = make_weighted_losses(box_weight, class_weight, config.second_stage_classification_loss)
    return RegionLoss(make_region_assigner(config), terms, miner)


def coded_boxes(regions: Regions, output: RegionOutput) -> CodedBoxes:
    """Boxes [B, N, q, 4] of the second stage, in pixels, not decoded yet."""
    return CodedBoxes(output.box_encodings, regions.boxes, BOX_CODER)


def detect_in_regions(
    postprocessing: Postprocessing,
    regions: Regions,
    output: RegionOutput,
    frame: ImageFrame,
    mask_logits: Optional[tf.Tensor] = None,
) -> BatchDetections:
    """Decodes boxes, cuts them to the real images, converts scores and suppresses.

    Mask logits, float32 [B, N, K or 1, h, w], belong to the regions, not to the detections.
    """
    boxes = coded_boxes(regions, output)
    best_classes = tf.argmax(output.class_logits[:, :, 1:], axis=2, output_type=tf.int32)
    best_boxes = boxes.select_classes(best_classes).decode()[:, :, 0]
    return postprocessing.suppress(
        boxes,
        postprocessing.convert_scores(output.class_logits),
        geometry.clip_to_window(
            frame.normalize_to_real_image(best_boxes), tf.constant([0.0, 0.0, 1.0, 1.0])
        ),
        frame.windows,
        num_valid=regions.num,
        masks=None if mask_logits is None else tf.sigmoid(mask_logits),
    )


def make_postprocessing(config: post_processing_pb2.PostProcessing) -> Postprocessing:
    """Builds the postprocessing of a `PostProcessing` message."""
    # Detections of two stages are always relative to the real image.
    nms = make_nms_options(config.batch_non_max_suppression)
    return Postprocessing(make_score_converter(config), replace(nms, change_frame=True))

"""Losses of both stages.

Letters: B images, A anchors, N regions of an image, K foreground classes, q boxes of a region (K,
or 1 that all classes share). Boxes are in pixels of the padded image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from estimator_det.boxes.assign import TargetAssigner
from estimator_det.compat import tf
from estimator_det.detectors.assignment_counts import count_assignment
from estimator_det.detectors.base import Groundtruth, Losses
from estimator_det.detectors.two_stage.outputs import RegionOutput, Regions, RpnOutput
from estimator_det.detectors.two_stage.targets import (
    Sampling,
    assign_classes,
    assign_objects,
    make_anchor_assigner,
    make_region_assigner,
    make_sampling,
)
from estimator_det.losses.classification import ClassificationLoss, make_classification_loss
from estimator_det.losses.localization import LocalizationLoss, make_localization_loss
from estimator_det.losses.mining import HardExampleMiner, make_hard_example_miner
from estimator_det.protos import losses_pb2

RPN_LOCALIZATION = "Loss/RPNLoss/localization_loss"
RPN_OBJECTNESS = "Loss/RPNLoss/objectness_loss"
REGION_LOCALIZATION = "Loss/BoxClassifierLoss/localization_loss"
REGION_CLASSIFICATION = "Loss/BoxClassifierLoss/classification_loss"


@dataclass(frozen=True)
class WeightedLosses:
    """The two losses of a stage, and the factors of their sums.

    Attributes:
        localization: box codes, targets, weights -> [B, A].
        classification: class logits, targets, weights -> [B, A] or [B, A, C].
        localization_weight: factor of the localization term.
        classification_weight: factor of the classification term.
    """

    localization: LocalizationLoss
    classification: ClassificationLoss
    localization_weight: float
    classification_weight: float


@dataclass(frozen=True)
class RpnLoss:
    """Loss of a random sample of the anchors of each image.

    Attributes:
        assigner: matches anchors to groundtruth.
        sampling: chooses the anchors that count.
        terms: the two losses.
    """

    assigner: TargetAssigner
    sampling: Sampling
    terms: WeightedLosses

    def __call__(self, output: RpnOutput, groundtruth: Groundtruth) -> Losses:
        """Computes scalar terms, means over the sample, then over images, and match counts."""
        targets = assign_objects(self.assigner, output.anchors, groundtruth)
        is_object = targets.class_targets[:, :, 0] > 0.0
        sampled = self.sampling(targets.class_weights[:, :, 0] > 0.0, is_object)
        is_sampled = tf.cast(sampled, tf.float32)
        box_losses = self.terms.localization(
            output.box_encodings,
            targets.box_targets,
            weights=is_sampled * targets.box_weights,
            losses_mask=groundtruth.is_annotated,
        )
        object_losses = self.terms.classification(
            output.objectness_logits,
            tf.one_hot(tf.cast(is_object, tf.int32), 2),
            weights=is_sampled,
            losses_mask=groundtruth.is_annotated,
        )
        sample_size = tf.maximum(tf.reduce_sum(is_sampled, axis=1), 1.0)

        def mean(losses: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(tf.reduce_sum(losses, axis=1) / sample_size)

        terms = {
            RPN_LOCALIZATION: self.terms.localization_weight * mean(box_losses),
            RPN_OBJECTNESS: self.terms.classification_weight * mean(object_losses),
        }
        images = tf.cast(tf.shape(is_sampled)[0], tf.float32)
        counts = count_assignment(targets.matches, groundtruth.valid)
        return Losses(terms, counts, dict.fromkeys(terms, images))


@dataclass(frozen=True)
class RegionLoss:
    """Loss of all regions of each image, or of the hardest ones.

    Attributes:
        assigner: matches regions to groundtruth.
        terms: the two losses.
        miner: uses the regions of the largest losses only; None: uses all.
    """

    assigner: TargetAssigner
    terms: WeightedLosses
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
        counts = {}
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
            for name in ("num_positives", "num_negatives"):
                mean = tf.reduce_mean(tf.cast(getattr(mined_losses, name), tf.float32))
                counts[f"HardExampleMiner/{name}"] = mean
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


def make_rpn_loss(config: Any) -> RpnLoss:
    """Builds the first stage's loss of a `FasterRcnn` message, or raises ConfigError."""
    return RpnLoss(
        assigner=make_anchor_assigner(config),
        sampling=make_sampling(
            config.first_stage_minibatch_size,
            config.first_stage_positive_balance_fraction,
            "first_stage_minibatch_size",
            "first_stage_positive_balance_fraction",
        ),
        terms=WeightedLosses(
            localization=_smooth_l1(),
            classification=_softmax(),
            localization_weight=config.first_stage_localization_loss_weight,
            classification_weight=config.first_stage_objectness_loss_weight,
        ),
    )


def make_region_loss(config: Any) -> RegionLoss:
    """Builds the second stage's loss of a `FasterRcnn` message, or raises ConfigError."""
    loss_config = config.second_stage_classification_loss
    has_loss = loss_config.WhichOneof("classification_loss") is not None
    box_weight = config.second_stage_localization_loss_weight
    class_weight = config.second_stage_classification_loss_weight
    return RegionLoss(
        assigner=make_region_assigner(config),
        terms=WeightedLosses(
            localization=_smooth_l1(),
            classification=make_classification_loss(loss_config) if has_loss else _softmax(),
            localization_weight=box_weight,
            classification_weight=class_weight,
        ),
        miner=(
            make_hard_example_miner(config.hard_example_miner, box_weight, class_weight)
            if config.HasField("hard_example_miner")
            else None
        ),
    )


def _smooth_l1() -> LocalizationLoss:
    message = losses_pb2.LocalizationLoss()
    message.weighted_smooth_l1.SetInParent()
    return make_localization_loss(message)


def _softmax() -> ClassificationLoss:
    message = losses_pb2.ClassificationLoss()
    message.weighted_softmax.SetInParent()
    return make_classification_loss(message)

"""The first stage: a region proposal network (https://arxiv.org/abs/1506.01497), its targets and
its loss. Both stages share the box coder, the sampling of a step and the pair of losses.

Letters in shapes: B images, A anchors, N regions of an image (padded), G groundtruth boxes. Boxes
are in pixels of the padded image that enters the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.boxes import geometry
from estimator_det.boxes.anchors import AnchorGenerator, check_maps, make_anchor_generator
from estimator_det.boxes.assign import TargetAssigner, Targets, count_assignment
from estimator_det.boxes.coders import CenterSizeCoder
from estimator_det.boxes.geometry import IOU_SIMILARITY
from estimator_det.boxes.matching import ArgMaxMatcher
from estimator_det.boxes.nms.kernels import NmsOptions
from estimator_det.boxes.nms.multiclass import multiclass_nms
from estimator_det.boxes.sampling import balanced_sample
from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.detectors.base import Groundtruth, Losses, WeightedLosses, padded_window
from estimator_det.errors import Problem, error
from estimator_det.extractors.two_stage.registry import EXTRACTORS, pyramid_levels
from estimator_det.images.resize import Length, height_and_width
from estimator_det.losses.classification import (
    ClassificationLoss,
    make_classification_loss,
    softmax_cross_entropy,
)
from estimator_det.losses.localization import LocalizationLoss, smooth_l1
from estimator_det.nets.hyperparams import make_arg_scope
from estimator_det.predictors.two_stage import ProposalHead
from estimator_det.protos import faster_rcnn_pb2, losses_pb2

RPN_LOCALIZATION = "Loss/RPNLoss/localization_loss"
RPN_OBJECTNESS = "Loss/RPNLoss/objectness_loss"

ANCHORS_IN_PIXELS = (
    "grid_anchor_generator",
    "multiscale_anchor_generator",
    "flexible_grid_anchor_generator",
)

BOX_CODER = CenterSizeCoder(10.0, 10.0, 5.0, 5.0)
"""Box coder of both stages. Published checkpoints were trained with these scales."""


class RpnOutput(NamedTuple):
    """Output of the region proposal network, without the anchors that training drops."""

    # Float32 [B, h, w, depth] of each map, of the convolution before the last layers.
    features: Tuple[tf.Tensor, ...]
    anchors: tf.Tensor  # float32 [A, 4]
    box_encodings: tf.Tensor  # float32 [B, A, 4]
    objectness_logits: tf.Tensor  # float32 [B, A, 2], background and object


class Regions(NamedTuple):
    """Boxes that the second stage classifies; rows past `num` are zero."""

    boxes: tf.Tensor  # float32 [B, N, 4]
    num: tf.Tensor  # int32 [B]

    @property
    def valid(self) -> tf.Tensor:
        """Flags bool [B, N], False for padding."""
        return tf.sequence_mask(self.num, self.boxes.shape[1] or tf.shape(self.boxes)[1])


class Proposals(NamedTuple):
    """Proposals of the first stage after suppression, by falling score."""

    regions: Regions
    scores: tf.Tensor  # float32 [B, N]
    multiclass_scores: tf.Tensor  # float32 [B, N, 2]
    raw_boxes: tf.Tensor  # float32 [B, A, 4], before suppression
    raw_scores: tf.Tensor  # float32 [B, A, 2]


@dataclass(frozen=True)
class ProposalNetwork:
    """Scores anchors as objects and refines them to proposals."""

    head: ProposalHead  # feature map -> codes and objectness
    anchor_generator: AnchorGenerator  # feature map size -> anchors in pixels
    nms: NmsOptions  # limits and thresholds of proposals
    # True if anchors that cross the border are dropped, as in training; otherwise anchors are
    # clipped to the image.
    drops_crossing: bool

    def predict(self, feature_maps: Sequence[tf.Tensor], inputs: tf.Tensor) -> RpnOutput:
        """Predicts codes and objectness from maps [B, h, w, C] of inputs [B, H, W, C]."""
        nets, raw = self.head.predict(feature_maps, self.anchor_generator.num_per_location)
        codes, logits = (tf.cast(tensor, tf.float32) for tensor in raw)
        sizes = [height_and_width(features) for features in feature_maps]
        anchors, rows = self.generate_anchors(sizes, padded_window(inputs))
        if rows is not None:
            codes, logits = tf.gather(codes, rows, axis=1), tf.gather(logits, rows, axis=1)
        return RpnOutput(nets, anchors, codes, logits)

    def generate_anchors(
        self, map_sizes: Sequence[Tuple[Length, Length]], window: tf.Tensor
    ) -> Tuple[tf.Tensor, Optional[Any]]:
        """Generates the anchors of feature maps, in pixels of the padded image, float32 [A, 4].

        If some are dropped, their rows among the anchors of all cells are returned, too, int32 [A].
        """
        # Anchors in pixels do not depend on the image's size, so any size is right here.
        anchors = self.anchor_generator.generate(map_sizes, (1, 1))
        if not self.drops_crossing:
            return geometry.clip_to_window(anchors, window), None
        rows = _rows_inside(anchors, window)
        return tf.gather(anchors, rows), rows

    def propose(self, output: RpnOutput, windows: tf.Tensor) -> Proposals:
        """Decodes and suppresses; proposals are cut to the real images, windows [B, 4]."""
        boxes = BOX_CODER.decode(output.box_encodings, output.anchors).boxes
        scores = tf.nn.softmax(output.objectness_logits)
        survivors = multiclass_nms(
            boxes[:, :, tf.newaxis, :],
            scores[:, :, 1:],
            self.nms,
            clip_windows=windows,
            fields={"scores": scores},
        )
        # Crops are constant for the second stage: no gradient flows through their positions.
        regions = Regions(tf.stop_gradient(survivors.boxes), survivors.num)
        return Proposals(regions, survivors.scores, survivors.fields["scores"], boxes, scores)


def _rows_inside(anchors: tf.Tensor, window: tf.Tensor) -> Any:
    """Rows of the anchors [A, 4] that do not cross the window [4].

    The rows are a constant if anchors and window are, so that shapes stay static.
    """
    static_values: Tuple[Any, Any] = (tf.get_static_value(anchors), tf.get_static_value(window))
    if static_values[0] is not None and static_values[1] is not None:
        low_inside = (static_values[0][:, :2] >= static_values[1][:2]).all(axis=1)
        high_inside = (static_values[0][:, 2:] <= static_values[1][2:]).all(axis=1)
        return np.flatnonzero(low_inside & high_inside).astype(np.int32)
    inside = tf.concat([anchors[:, :2] >= window[:2], anchors[:, 2:] <= window[2:]], axis=1)
    return tf.where(tf.reduce_all(inside, axis=1))[:, 0]


class Sampling(NamedTuple):
    """Number of rows of an image that count in the loss, and the largest share of objects.

    `use_static_balanced_label_sampler` chooses between samplers of one distribution in the Object
    Detection API, and has no effect here.
    """

    batch_size: int
    positive_fraction: float


@dataclass(frozen=True)
class RpnLoss:
    """Loss of a random sample of the anchors of each image."""

    assigner: TargetAssigner  # matches anchors to groundtruth
    sampling: Sampling  # chooses the anchors that count
    terms: WeightedLosses  # the two losses

    def __call__(self, output: RpnOutput, groundtruth: Groundtruth) -> Losses:
        """Computes scalar terms, means over the sample, then over images, and match counts."""
        targets = self._assign(output.anchors, groundtruth)
        is_object = targets.class_targets[:, :, 0] > 0.0
        sampled = balanced_sample(targets.class_weights[:, :, 0] > 0.0, is_object, *self.sampling)
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

    def _assign(self, anchors: tf.Tensor, groundtruth: Groundtruth) -> Targets:
        """Targets of anchors [A, 4], regardless of class: [B, A, 1], 1 for objects."""
        return self.assigner.assign(
            anchors,
            groundtruth.boxes,
            tf.ones_like(groundtruth.boxes[:, :, :1]),
            tf.zeros([1]),
            groundtruth.weights,
            groundtruth.valid,
        )


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_anchors(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    generator, at = config.first_stage_anchor_generator, f"{at}.first_stage_anchor_generator"
    kind = generator.WhichOneof("anchor_generator_oneof")
    if kind is not None and kind not in ANCHORS_IN_PIXELS:
        yield error(
            f"{at}.{kind}",
            "generates anchors in fractions of the image, but the first stage needs anchors in "
            "pixels",
            f"use one of {list(ANCHORS_IN_PIXELS)}",
        )
    elif config.feature_extractor.type in EXTRACTORS:
        levels = pyramid_levels(config.feature_extractor)
        count = 1 if levels is None else levels[1] - levels[0] + 1
        yield from check_maps(generator, at, count, levels)


def make_proposal_network(
    config: faster_rcnn_pb2.FasterRcnn, is_training: bool, tf2_line: bool = False
) -> ProposalNetwork:
    """Builds the first stage of a `FasterRcnn` message."""
    return ProposalNetwork(
        head=ProposalHead(
            conv_scope=make_arg_scope(
                config.first_stage_box_predictor_conv_hyperparams, is_training, tf2_line=tf2_line
            ),
            depth=config.first_stage_box_predictor_depth,
            kernel_size=config.first_stage_box_predictor_kernel_size,
            atrous_rate=config.first_stage_atrous_rate,
        ),
        anchor_generator=make_anchor_generator(config.first_stage_anchor_generator),
        # `use_combined_nms_in_first_stage` and `use_partitioned_nms_in_first_stage` choose between
        # kernels with equal results in the API, and have no effect here.
        nms=NmsOptions(
            score_threshold=config.first_stage_nms_score_threshold,
            iou_threshold=config.first_stage_nms_iou_threshold,
            max_per_class=config.first_stage_max_proposals,
            max_total=config.first_stage_max_proposals,
            static_shapes=config.use_static_shapes
            and (is_training or config.use_static_shapes_for_eval),
            # Proposals overlap most: 100 in a photo may need 1600.
            static_candidates=20,
        ),
        drops_crossing=is_training and not config.clip_anchors_to_image,
    )


def make_rpn_loss(config: faster_rcnn_pb2.FasterRcnn) -> RpnLoss:
    """Builds the first stage's loss of a `FasterRcnn` message."""
    matcher = ArgMaxMatcher(
        matched_threshold=0.7,
        unmatched_threshold=0.3,
        force_match_for_each_row=True,
        use_matmul_gather=config.use_matmul_gather_in_matcher,
    )
    return RpnLoss(
        assigner=TargetAssigner(IOU_SIMILARITY, matcher, BOX_CODER),
        sampling=Sampling(
            config.first_stage_minibatch_size, config.first_stage_positive_balance_fraction
        ),
        terms=make_weighted_losses(
            config.first_stage_localization_loss_weight, config.first_stage_objectness_loss_weight
        ),
    )


def make_weighted_losses(
    localization_weight: float,
    classification_weight: float,
    classification: Optional[losses_pb2.ClassificationLoss] = None,
) -> WeightedLosses:
    """Builds smooth L1 and a `ClassificationLoss` message, softmax by default."""
    loss = ClassificationLoss(softmax_cross_entropy)
    if classification is not None and classification.WhichOneof("classification_loss"):
        loss = make_classification_loss(classification)
    return WeightedLosses(
        LocalizationLoss(smooth_l1), loss, localization_weight, classification_weight
    )

"""Losses of a single-shot detector: assignment, weighting, mining and normalization.

Letters: B images, A anchors, K foreground classes, C class columns (K + 1 with a background
column, else K).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, Iterator, Optional, Tuple

from estimator_det.boxes.assign import TargetAssigner, Targets, count_assignment
from estimator_det.boxes.coders import make_box_coder
from estimator_det.boxes.geometry import make_similarity
from estimator_det.boxes.matching import make_matcher
from estimator_det.boxes.sampling import Sampler, balanced_sample
from estimator_det.compat import num_tpu_shards, tf
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.config.rules import Tpu, rules
from estimator_det.detectors.base import Groundtruth, Losses, Predictions, WeightedLosses
from estimator_det.detectors.equalization import make_equalization
from estimator_det.detectors.loss_weights import ExpectedWeights, make_expected_weights
from estimator_det.errors import Problem, error
from estimator_det.losses.classification import (
    check_per_anchor,
    make_classification_loss,
    sum_by_image,
)
from estimator_det.losses.localization import compares_boxes, make_localization_loss
from estimator_det.losses.mining import HardExampleMiner, make_hard_example_miner
from estimator_det.protos import ssd_pb2

LOCALIZATION = "Loss/localization_loss"
CLASSIFICATION = "Loss/classification_loss"
EQUALIZATION = "Loss/equalization_loss"

# Class logits of an image from which on images are computed one after the other: EfficientDet D0
# has 4.4 million. A TPU fuses the loss, and needs no wide tensors for it.
WIDE = 1 << 21


@dataclass(frozen=True)
class SsdLoss:
    """Computes loss terms from predictions and groundtruth."""

    assigner: TargetAssigner  # matches anchors to groundtruth
    terms: WeightedLosses  # the two losses
    unmatched_class: Tuple[float, ...]  # class target [C] of an anchor without groundtruth
    add_background: bool  # True if class column 0 is a background that groundtruth does not have
    # True if confidences of groundtruth classes are the class targets.
    use_confidences: bool = False
    # Weight of classes without a confidence; used with `use_confidences`.
    implicit_weight: float = 1.0
    # Divide by the sum of box weights of matched anchors, if above 1.
    normalize_by_num_matches: bool = True
    normalize_by_code_size: bool = False  # divide the localization term by the numbers per box
    # (bool [B, A] eligible, bool [B, A] matched) -> sampled; None: use all anchors.
    sampler: Optional[Sampler] = None
    # Weight anchors as sampling would on average; None: do not.
    expected_weights: Optional[ExpectedWeights] = None
    # Use the anchors of the largest losses only; None: use all.
    miner: Optional[HardExampleMiner] = None
    # Computes the penalty of uneven kernels; None: no penalty.
    equalization: Optional[Callable[[], tf.Tensor]] = None

    def __call__(self, predictions: Predictions, groundtruth: Groundtruth) -> Losses:
        """Computes scalar loss terms of a batch, weighted and normalized, and assignment counts."""
        targets = self._apply_sampler(self.assign(predictions.anchors, groundtruth))
        counts = count_assignment(targets.matches, groundtruth.valid)
        box_losses = self._box_losses(predictions, targets, groundtruth.is_annotated)
        if self.expected_weights:
            box_total, class_total = self._expected_losses(
                predictions, targets, box_losses, groundtruth.is_annotated
            )
        elif self.miner:
            class_losses = self._class_losses(predictions, targets, groundtruth.is_annotated)
            decoded = self.assigner.coder.decode(predictions.box_encodings, predictions.anchors)
            per_anchor = class_losses  # [B, A]; softmax losses have no class axis
            if class_losses.shape.rank == 3:
                per_anchor = tf.reduce_sum(class_losses, axis=2)
            mined_losses = self.miner(box_losses, per_anchor, decoded.boxes, targets.matches)
            box_total, class_total = mined_losses.localization, mined_losses.classification
            counts.update(mined_losses.counts())
        else:
            box_total = tf.reduce_sum(box_losses)
            class_total = self._class_total(predictions, targets, groundtruth)

        divisor = (
            tf.reduce_sum(targets.box_weights)
            if self.normalize_by_num_matches
            else tf.constant(0.0)
        )
        normalizer = tf.maximum(divisor, 1.0)
        code_size = float(self.assigner.coder.code_size) if self.normalize_by_code_size else 1.0
        terms = {
            LOCALIZATION: self.terms.localization_weight / (normalizer * code_size) * box_total,
            CLASSIFICATION: self.terms.classification_weight / normalizer * class_total,
        }
        divisors = dict.fromkeys(terms, divisor)
        if self.equalization:
            terms[EQUALIZATION] = self.equalization()
        return Losses(terms, counts, divisors)

    def assign(self, anchors: tf.Tensor, groundtruth: Groundtruth) -> Targets:
        """Builds the targets of every anchor."""
        unmatched = tf.constant(self.unmatched_class)
        weights, valid, keypoints = groundtruth.weights, groundtruth.valid, groundtruth.keypoints
        if not self.use_confidences:
            classes = self._with_background(groundtruth.classes)
            return self.assigner.assign(
                anchors, groundtruth.boxes, classes, unmatched, weights, valid, keypoints
            )
        assert groundtruth.confidences is not None
        confidences = self._with_background(groundtruth.confidences)
        return self.assigner.assign_confidences(
            anchors,
            groundtruth.boxes,
            confidences,
            unmatched,
            weights,
            valid,
            keypoints,
            include_background_class=self.add_background,
            implicit_class_weight=self.implicit_weight,
        )

    def _with_background(self, classes: tf.Tensor) -> tf.Tensor:
        """Adds the background column: [B, G, K] -> [B, G, C]."""
        if not self.add_background:
            return classes
        return tf.pad(classes, [[0, 0], [0, 0], [1, 0]])

    def _apply_sampler(self, targets: Targets) -> Targets:
        """Sets the weights of anchors that are not sampled to zero."""
        if self.sampler is None:
            return targets
        foreground = targets.class_targets
        if self.add_background:
            foreground = foreground[:, :, 1:]
        sampled = self.sampler(
            # Anchors with any class weight are eligible, those with any foreground class are
            # positive.
            tf.not_equal(tf.reduce_mean(targets.class_weights, axis=2), 0.0),
            tf.not_equal(tf.reduce_sum(foreground, axis=2), 0.0),
        )
        keep = tf.cast(sampled, tf.float32)
        return targets._replace(
            class_weights=targets.class_weights * keep[:, :, tf.newaxis],
            box_weights=targets.box_weights * keep,
        )

    def _box_losses(
        self, predictions: Predictions, targets: Targets, annotated: Optional[tf.Tensor]
    ) -> tf.Tensor:
        """Localization losses, float32 [B, A]; NaN targets (absent keypoints) count as zero."""
        predictions_to_compare, targets_to_compare = predictions.box_encodings, targets.box_targets
        if self.terms.localization.on_boxes:
            coder = self.assigner.coder
            predictions_to_compare = coder.decode(predictions_to_compare, predictions.anchors).boxes
            targets_to_compare = coder.decode(targets_to_compare, predictions.anchors).boxes
        return self.terms.localization(
            predictions_to_compare,
            targets_to_compare,
            weights=targets.box_weights,
            losses_mask=annotated,
            ignore_nan_targets=True,
        )

    def _class_losses(
        self, predictions: Predictions, targets: Targets, annotated: Optional[tf.Tensor]
    ) -> tf.Tensor:
        return self.terms.classification(
            predictions.class_logits,
            targets.class_targets,
            weights=targets.class_weights,
            losses_mask=annotated,
        )

    def _class_total(
        self, predictions: Predictions, targets: Targets, groundtruth: Groundtruth
    ) -> tf.Tensor:
        """Sum of the classification losses of all anchors."""
        logits, annotated = predictions.class_logits, groundtruth.is_annotated
        is_wide = (logits.shape[1:].num_elements() or 0) >= WIDE
        if not is_wide or self.use_confidences or num_tpu_shards() is not None:
            return tf.reduce_sum(self._class_losses(predictions, targets, annotated))
        classes = self._with_background(groundtruth.classes)

        def loss_of_image(number: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
            class_targets = self.assigner.class_targets(
                classes[number][tf.newaxis],
                tf.constant(self.unmatched_class),
                targets.matches[number][tf.newaxis],
            )
            return self.terms.classification(
                logits,
                class_targets,
                weights=targets.class_weights[number][tf.newaxis],
                losses_mask=None if annotated is None else annotated[number][tf.newaxis],
            )

        return tf.reduce_sum(sum_by_image(loss_of_image, logits))

    def _expected_losses(
        self,
        predictions: Predictions,
        targets: Targets,
        box_losses: tf.Tensor,
        annotated: Optional[tf.Tensor],
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Computes the sums of losses that sampling would have on average.

        If each class has a loss, each pair of anchor and class is sampled separately: the class's
        target is the probability of foreground.
        """
        assert self.expected_weights is not None
        class_losses = self._class_losses(predictions, targets, annotated)
        unmatched = tf.broadcast_to(
            tf.constant(self.unmatched_class), tf.shape(targets.class_targets)
        )
        background_losses = self._class_losses(
            predictions, targets._replace(class_targets=unmatched), annotated
        )
        if class_losses.shape.rank == 3:
            shape = tf.shape(class_losses)
            foreground = tf.reshape(targets.class_targets, [shape[0], -1])
            class_losses = tf.reshape(class_losses, [shape[0], -1])
            background_losses = tf.reshape(background_losses, [shape[0], -1])
            box_losses = tf.repeat(box_losses, shape[2], axis=1)
        else:
            foreground = 1.0 - targets.class_targets[:, :, 0]
        weights = self.expected_weights(foreground)
        return (
            tf.reduce_sum(box_losses * weights.assigned),
            tf.reduce_sum(class_losses * weights.assigned + background_losses * weights.background),
        )


@rules(ssd_pb2.Ssd)
def _check_keypoints(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    loss = config.loss.localization_loss
    if config.box_coder.HasField("keypoint_box_coder") and compares_boxes(loss):
        yield error(
            f"{at}.loss.localization_loss.{loss.WhichOneof('localization_loss')}",
            "compares boxes alone, so that keypoints are never learned",
            "use weighted_smooth_l1",
        )


@rules(ssd_pb2.Ssd)
def _check_choice_of_anchors(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    """Losses that choose or weight anchors have a value for each, and one way of choosing."""
    if config.loss.HasField("hard_example_miner") and config.loss.expected_loss_weights:
        path = f"{at}.loss.hard_example_miner"
        yield no_effect(path, "expected_loss_weights weights all anchors")
    for user in non_default_fields(config.loss, ("hard_example_miner", "expected_loss_weights")):
        path = f"{at}.loss.classification_loss"
        yield from check_per_anchor(config.loss.classification_loss, path, user)


@rules(ssd_pb2.Ssd, target="tpu")
def _check_class_imbalance(config: ssd_pb2.Ssd, at: str, _: Tpu) -> Iterator[Problem]:
    """Something must limit the weight of the many easy negatives, and mining cannot."""
    loss, path = config.loss, f"{at}.loss"
    kind = loss.classification_loss.WhichOneof("classification_loss")
    bias = "start the class biases at about -4.6 with class_prediction_bias_init"
    focal: Tuple[str, ...] = (
        f"{path}.classification_loss={{ weighted_sigmoid_focal {{ alpha: 0.25 gamma: 2.0 }} }}",
        f"{at}.post_processing.score_converter=SIGMOID",
    )
    if loss.HasField("random_example_sampler"):
        sampler = f"{path}.random_example_sampler"
        yield Problem(
            "warning",
            sampler,
            "sorts all anchors twice in each step, which is slow on TPU",
            "the expected loss needs no sample; or use the focal loss",
            (f"{sampler}=null", f"{path}.expected_loss_weights=EXPECTED_SAMPLING"),
        )
    if loss.HasField("hard_example_miner"):
        miner = f"{path}.hard_example_miner"
        yield Problem(
            "error",
            miner,
            "selects anchors by non-maximum suppression within the train step",
            f"the focal loss replaces it; {bias} of the box predictor",
            (f"{miner}=null", *(() if kind == "weighted_sigmoid_focal" else focal)),
        )
    elif (
        kind not in (None, "weighted_sigmoid_focal", "custom")
        and not loss.HasField("random_example_sampler")
        and not loss.expected_loss_weights
    ):
        yield Problem(
            "warning",
            f"{path}.classification_loss.{kind}",
            "all anchors have the same weight: the background outweighs the objects",
            bias,
            focal,
        )


def make_ssd_loss(config: ssd_pb2.Ssd, is_training: bool) -> SsdLoss:
    """Builds the losses of an `Ssd` message."""
    loss = config.loss
    columns = config.num_classes + int(config.add_background_class)
    background = 0.0 if config.encode_background_as_zeros else 1.0
    return SsdLoss(
        assigner=TargetAssigner(
            make_similarity(config.similarity_calculator),
            make_matcher(config.matcher),
            make_box_coder(config.box_coder),
            negative_class_weight=config.negative_class_weight,
        ),
        terms=WeightedLosses(
            classification=make_classification_loss(loss.classification_loss),
            localization=make_localization_loss(loss.localization_loss),
            classification_weight=loss.classification_weight,
            localization_weight=loss.localization_weight,
        ),
        unmatched_class=(background,) + (0.0,) * (columns - 1),
        add_background=config.add_background_class,
        use_confidences=is_training and config.use_confidences_as_targets,
        implicit_weight=config.implicit_example_weight,
        normalize_by_num_matches=config.normalize_loss_by_num_matches,
        normalize_by_code_size=config.normalize_loc_loss_by_codesize,
        sampler=(
            functools.partial(
                balanced_sample,
                batch_size=None,
                positive_fraction=loss.random_example_sampler.positive_sample_fraction,
            )
            if loss.HasField("random_example_sampler")
            else None
        ),
        expected_weights=make_expected_weights(loss),
        miner=(
            make_hard_example_miner(
                loss.hard_example_miner, loss.localization_weight, loss.classification_weight
            )
            if loss.HasField("hard_example_miner")
            else None
        ),
        equalization=make_equalization(loss),
    )

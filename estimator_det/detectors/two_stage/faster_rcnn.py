"""Two-stage detectors: Faster R-CNN (Ren et al., 2015), R-FCN (Dai et al., 2016) and Mask R-CNN
(He et al., 2017).

Variable scopes are those of the reference: each stage's part of the backbone has one, the
convolution before the first stage's head has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.config.fields import check_supported
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import (
    DETECTORS,
    PREPROCESSORS,
    Context,
    Detections,
    Groundtruth,
    Losses,
)
from estimator_det.detectors.collected import collection_of_replica
from estimator_det.detectors.restore import variables_to_restore
from estimator_det.detectors.two_stage import detections, losses, mask, roi_stage, rpn, targets
from estimator_det.detectors.two_stage.context import AttentionContext, check_context_or_raise
from estimator_det.detectors.two_stage.outputs import Regions, TwoStagePredictions, normalize_boxes
from estimator_det.extractors.two_stage.recipe import (
    FIRST_STAGE_SCOPE,
    SECOND_STAGE_SCOPE,
    TwoStageExtractor,
    make_extractor,
)
from estimator_det.images.preprocess import Preprocessor
from estimator_det.images.resize import make_resizer


@dataclass(frozen=True)
class SecondStage:
    """The stages after the proposals.

    Attributes:
        stage: regions -> boxes and classes.
        loss: loss of the regions.
        postprocessing: regions -> detections.
        sampler: chooses the regions of a training step; None: all proposals.
        masks: the third stage; None: no third stage.
    """

    stage: roi_stage.RegionStage
    loss: losses.RegionLoss
    postprocessing: detections.Postprocessing
    sampler: Optional[targets.RegionSampler] = None
    masks: Optional[mask.MaskStage] = None


@dataclass(frozen=True)
class Extras:
    """Additional outputs.

    Attributes:
        raw_boxes: True if `predict` also decodes the boxes of regions.
        box_features: True if detections have their second-stage features, averaged over cells.
        cropped_features: True if detections have their crops of the first stage's feature map.
    """

    raw_boxes: bool = False
    box_features: bool = False
    cropped_features: bool = False


@dataclass(frozen=True)
class FasterRcnnDetector:
    """A two-stage detector; `Detector` documents its methods.

    Attributes:
        num_classes: foreground classes.
        is_training: True if the model is built for training.
        preprocess: pixels -> the network's input.
        extractor: images -> a feature map; crops of it -> features of boxes.
        rpn: the first stage.
        rpn_loss: loss of the first stage.
        second: the stages after it; None: proposals are the detections.
        extras: additional outputs.
    """

    num_classes: int
    is_training: bool
    preprocess: Preprocessor
    extractor: TwoStageExtractor
    rpn: rpn.ProposalNetwork
    rpn_loss: losses.RpnLoss
    second: Optional[SecondStage] = None
    extras: Extras = Extras()

    @property
    def is_class_agnostic(self) -> bool:
        return self.second is None

    def predict(
        self,
        inputs: tf.Tensor,
        true_shapes: Optional[tf.Tensor] = None,
        groundtruth: Optional[Groundtruth] = None,
        context: Optional[Context] = None,
    ) -> TwoStagePredictions:
        """Builds the network.

        Args:
            inputs: float [B, H, W, C] from `preprocess`.
            true_shapes: int32 [B, 3] from `preprocess`; proposals are cut to the real image. None:
                the whole padded image is real.
            groundtruth: needed in training, to choose regions.
            context: features to attend to, for models with a `context_config`.

        Raises:
            ConfigError: if the configuration's parts do not fit, or a model needs a context but
                there is none.
            ValueError: if groundtruth is missing but needed to choose regions.
        """
        frame = detections.Frame(inputs, true_shapes)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            features = self.extractor.proposal_features(inputs)
        output = self.rpn.predict(features, inputs)
        predictions = TwoStagePredictions(inputs, (features,), output)
        if self.second is None:
            return predictions
        regions = self.rpn.propose(output, frame.windows).regions
        if self.second.sampler:
            regions = self.second.sampler(regions, groundtruth, inputs)
        attention_context = AttentionContext(regions.valid, context)
        region_outputs = self.second.stage.predict(
            features, normalize_boxes(regions.boxes, inputs), attention_context
        )
        predictions = predictions._replace(regions=regions, second_stage=region_outputs)
        if self.extras.raw_boxes:
            predictions = _with_raw_boxes(predictions, frame)
        if not self.is_training:
            return self._with_final_crops(predictions, frame, context)
        if self.second.masks:
            logits = self.second.masks.predict(region_outputs.features, regions.boxes)
            predictions = predictions._replace(mask_logits=logits)
        return predictions

    def loss(self, predictions: TwoStagePredictions, groundtruth: Groundtruth) -> Losses:
        inputs = predictions.inputs
        groundtruth = targets.convert_boxes_to_pixels(groundtruth, inputs)
        with tf1.name_scope("Loss"):
            terms, counts, divisors = self.rpn_loss(predictions.rpn, groundtruth)
            if self.second is None:
                return Losses(terms, counts, divisors)
            regions, output = predictions.region_outputs
            region_losses = self.second.loss(regions, output, groundtruth)
            terms.update(region_losses.terms)
            counts.update(region_losses.counts)
            # Terms that have the same tensor as divisor can share a backward pass.
            images = divisors[losses.RPN_LOCALIZATION]
            divisors.update(dict.fromkeys(region_losses.terms, images))
            if self.second.masks:
                terms[mask.MASK_LOSS], divisors[mask.MASK_LOSS] = self.second.masks.loss(
                    predictions.mask_logits,
                    predictions.detected_regions or regions,
                    groundtruth,
                    inputs,
                )
            return Losses(terms, counts, divisors)

    def postprocess(
        self, predictions: TwoStagePredictions, true_shapes: Optional[tf.Tensor] = None
    ) -> Detections:
        """Decodes boxes, converts scores and suppresses.

        Args:
            predictions: output of `predict`.
            true_shapes: int32 [B, 3] from `preprocess`; detections are cut to the real image and
                normalized to it. None: the whole padded image is real.

        Returns:
            The detections; `raw_boxes` are those of the regions before suppression, each with the
            box of its best class, cut to the real image. Detections of a first stage without a
            second are proposals, all of class 0, and `raw_boxes` are the decoded anchors.
        """
        if predictions.detections is not None:
            return predictions.detections
        frame = detections.Frame(predictions.inputs, true_shapes)
        with tf1.name_scope("Postprocessor"):
            if self.second is None:
                proposals = self.rpn.propose(predictions.rpn, frame.windows)
                return detections.proposals_as_detections(proposals, frame)
            regions, output = predictions.region_outputs
            return self.second.postprocessing.detect(
                regions, output, frame, predictions.mask_logits
            )

    def updates(self) -> List[tf.Operation]:
        return collection_of_replica(tf1.GraphKeys.UPDATE_OPS)

    def regularization_losses(self) -> List[tf.Tensor]:
        return collection_of_replica(tf1.GraphKeys.REGULARIZATION_LOSSES)

    def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        """See `variables_to_restore`."""
        scopes = [FIRST_STAGE_SCOPE, SECOND_STAGE_SCOPE]
        return variables_to_restore(
            checkpoint_type, load_all, scopes, self.extractor.classifier_name
        )

    def _with_final_crops(
        self, predictions: TwoStagePredictions, frame: detections.Frame, context: Optional[Context]
    ) -> TwoStagePredictions:
        """Runs the second stage again on detections, for their masks and features.

        Crops are at the detections' positions in the padded image. The reference crops as if the
        real image filled it, which differs only if images are padded.
        """
        assert self.second is not None
        masks, extras, stage = self.second.masks, self.extras, self.second.stage
        if not (masks or extras.box_features or extras.cropped_features):
            return predictions
        assert isinstance(stage, roi_stage.CropStage)
        with tf1.name_scope("Postprocessor"):
            final = self.second.postprocessing.detect(*predictions.region_outputs, frame)
        boxes = frame.to_pixels(final.boxes)
        detected_regions = Regions(boxes, tf.cast(final.num, tf.int32))
        attention_context = AttentionContext(detected_regions.valid, context)
        crops = stage.crop(
            predictions.feature_maps[0], normalize_boxes(boxes, frame.inputs), attention_context
        )
        features = stage.box_features(crops, attention_context)
        if extras.cropped_features:
            final = final._replace(cropped_features=roi_stage.per_region(crops, boxes))
        if extras.box_features:
            averaged = tf.reduce_mean(features, axis=[1, 2])
            final = final._replace(features=roi_stage.per_region(averaged, boxes))
        if masks:
            logits = masks.predict(features, boxes)
            class_masks = mask.select_class_masks(logits, tf.cast(final.classes, tf.int32))
            final = final._replace(masks=tf.sigmoid(class_masks))
            predictions = predictions._replace(mask_logits=logits)
        return predictions._replace(detections=final, detected_regions=detected_regions)


def _with_raw_boxes(
    predictions: TwoStagePredictions, frame: detections.Frame
) -> TwoStagePredictions:
    boxes = detections.coded_boxes(*predictions.region_outputs).decode()
    return predictions._replace(
        raw_boxes=frame.normalize_to_real_image(boxes),
        raw_feature_map_indices=tf.zeros(tf.shape(boxes)[:2], tf.int32),
    )


@PREPROCESSORS.register("faster_rcnn")
def make_faster_rcnn_preprocessor(config: Any) -> Preprocessor:
    """Builds the preprocessing of a `FasterRcnn` message; ConfigError if a part is unknown."""
    extractor = make_extractor(config.feature_extractor, False)
    return Preprocessor(
        make_resizer(config.image_resizer), extractor.normalize, normalizes_last=True
    )


@DETECTORS.register("faster_rcnn")
def make_faster_rcnn(config: Any, is_training: bool) -> FasterRcnnDetector:
    """Builds the detector of a `FasterRcnn` message, but no graph."""
    _check_model(config)
    extractor = make_extractor(config.feature_extractor, is_training)
    has_regions = config.number_of_stages > 1
    return FasterRcnnDetector(
        num_classes=config.num_classes,
        is_training=is_training,
        preprocess=make_faster_rcnn_preprocessor(config),
        extractor=extractor,
        rpn=rpn.make_proposal_network(config, is_training),
        rpn_loss=losses.make_rpn_loss(config),
        second=_make_second_stage(config, extractor, is_training) if has_regions else None,
        extras=Extras(
            raw_boxes=config.return_raw_detections_during_predict,
            box_features=config.output_final_box_features,
            cropped_features=config.output_final_box_rpn_features,
        ),
    )


def _make_second_stage(config: Any, extractor: TwoStageExtractor, is_training: bool) -> SecondStage:
    # Mining chooses among all proposals, instead of a sample.
    samples = is_training and not config.HasField("hard_example_miner")
    return SecondStage(
        stage=roi_stage.make_region_stage(config, extractor, is_training),
        loss=losses.make_region_loss(config),
        postprocessing=detections.make_postprocessing(config.second_stage_post_processing),
        sampler=targets.make_region_sampler(config) if samples else None,
        masks=mask.make_mask_stage(config, is_training) if config.number_of_stages == 3 else None,
    )


def _check_model(config: Any) -> None:
    """Raises ConfigError for options that are not supported or contradict each other."""
    check_supported(config, "faster_rcnn")
    if config.number_of_stages not in (1, 2, 3):
        raise ConfigError(
            f"faster_rcnn.number_of_stages must be 1, 2 or 3; given: {config.number_of_stages}"
        )
    check_context_or_raise(config)
    crops = config.second_stage_box_predictor.HasField("mask_rcnn_box_predictor")
    for field in ("output_final_box_features", "output_final_box_rpn_features"):
        if getattr(config, field) and (config.number_of_stages == 1 or not crops):
            raise ConfigError(
                f"faster_rcnn.{field} needs 2 or 3 stages and a mask_rcnn_box_predictor, which "
                "crops features of boxes; set it to false"
            )
    if config.return_raw_detections_during_predict and config.number_of_stages == 1:
        raise ConfigError(
            "faster_rcnn.return_raw_detections_during_predict needs 2 or 3 stages; set it to false"
        )

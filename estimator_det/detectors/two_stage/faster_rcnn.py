"""Two-stage detectors: Faster R-CNN (Ren et al., 2015), R-FCN (Dai et al., 2016) and Mask R-CNN
(He et al., 2017).

Variable scopes are as in the Object Detection API: each stage's part of the backbone has one,
the convolution before the first stage's head has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.boxes.score_conversion import check_class_ids
from estimator_det.compat import tf, tf1
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.config.rules import Tpu, rules
from estimator_det.detectors.base import (
    DETECTORS,
    PREPROCESSORS,
    BatchDetections,
    Context,
    Groundtruth,
    ImageFrame,
    Losses,
    Postprocessing,
    boxes_to_pixels,
    check_num_classes,
    check_parts,
)
from estimator_det.detectors.two_stage import masks, proposals, region_stage, regions
from estimator_det.detectors.two_stage.proposals import Regions
from estimator_det.detectors.two_stage.region_stage import RegionOutput
from estimator_det.detectors.variables import collection_of_replica, variables_to_restore
from estimator_det.errors import Problem, error, warning
from estimator_det.extractors.stages import (
    FIRST_STAGE_SCOPE,
    SECOND_STAGE_SCOPE,
    StageExtractor,
)
from estimator_det.extractors.two_stage.registry import EXTRACTORS, make_extractor
from estimator_det.images.resize import Preprocessor, make_resizer
from estimator_det.nets.context_attention import AttentionContext
from estimator_det.nets.object_paths import layer_scopes, variable_paths
from estimator_det.nets.quantization import Quantization
from estimator_det.protos import faster_rcnn_pb2, pipeline_pb2

_FIRST_STAGE_PARTS = ("image_resizer", "feature_extractor", "first_stage_anchor_generator")
# Cropping from the feature map; R-FCN crops inside its predictor instead.
_CROP_PARTS = ("initial_crop_size", "maxpool_kernel_size", "maxpool_stride")


class TwoStagePredictions(NamedTuple):
    """Raw network output of a two-stage detector; fields of a missing stage are None.

    Boxes are in pixels of the padded image that enters the network.
    """

    inputs: tf.Tensor  # float32 [B, H, W, C], preprocessed
    feature_maps: Tuple[tf.Tensor, ...]  # float32 [B, h, w, C], from which regions are cropped
    rpn: proposals.RpnOutput
    context: Optional[Context] = None
    regions: Optional[Regions] = None
    second_stage: Optional[RegionOutput] = None
    mask_output: Optional[masks.MaskOutput] = None  # masks of regions, in training only
    raw_boxes: Optional[tf.Tensor] = None  # float32 [B, N, q, 4], normalized to the real image
    raw_feature_map_indices: Optional[tf.Tensor] = None  # int32 [B, N], always 0

    @property
    def anchors(self) -> tf.Tensor:
        """Anchors, float32 [A, 4]."""
        return self.rpn.anchors

    @property
    def region_outputs(self) -> Tuple[Regions, RegionOutput]:
        """Regions, and the output of the second stage for them."""
        assert self.regions is not None and self.second_stage is not None
        return self.regions, self.second_stage


@dataclass(frozen=True)
class SecondStage:
    """The stages after the proposals."""

    stage: region_stage.RegionStage  # regions -> boxes and classes
    loss: regions.RegionLoss  # loss of the regions
    postprocessing: Postprocessing  # regions -> detections
    # Chooses the regions of a training step; None: all proposals.
    sampler: Optional[regions.RegionSampler] = None
    masks: Optional[masks.MaskStage] = None  # the third stage; None: no third stage


@dataclass(frozen=True)
class FasterRcnnDetector:
    """A two-stage detector; `TrainableDetector` documents its methods."""

    num_classes: int  # foreground classes
    is_training: bool  # True if the model is built for training
    preprocess: Preprocessor  # pixels -> the network's input
    extractor: StageExtractor  # images -> a feature map; crops of it -> features of boxes
    rpn: proposals.ProposalNetwork  # the first stage
    rpn_loss: proposals.RpnLoss  # loss of the first stage
    second: Optional[SecondStage] = None  # the stages after it; None: proposals are the detections
    return_raw_boxes: bool = False  # True if `predict` also decodes the boxes of regions
    # True if detections have their second-stage features, averaged over cells.
    return_box_features: bool = False
    # True if detections have their crops of the first stage's feature map.
    return_crops: bool = False

    @property
    def is_class_agnostic(self) -> bool:
        return self.second is None

    @property
    def is_tf2_line(self) -> bool:
        return self.extractor.recipe.is_tf2_line

    def predict(
        self,
        inputs: tf.Tensor,
        true_shapes: Optional[tf.Tensor] = None,
        groundtruth: Optional[Groundtruth] = None,
        context: Optional[Context] = None,
    ) -> TwoStagePredictions:
        """Builds the network on inputs [B, H, W, C] from `preprocess`.

        Proposals are cut to the real images; without true shapes the whole padded images are real.
        Training needs the groundtruth to choose regions, a model with a `context_config` needs the
        context.
        """
        frame = ImageFrame(inputs, true_shapes)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            feature_maps = self.extractor.proposal_features(inputs)
        output = self.rpn.predict(feature_maps, inputs)
        predictions = TwoStagePredictions(inputs, feature_maps, output, context)
        if self.second is None:
            return predictions
        stage_regions = self.rpn.propose(output, frame.windows).regions
        if self.second.sampler:
            stage_regions = self.second.sampler(stage_regions, groundtruth, inputs)
        region_output = self.second.stage.predict(
            feature_maps,
            stage_regions.boxes,
            inputs,
            AttentionContext(stage_regions.valid, context),
        )
        predictions = predictions._replace(regions=stage_regions, second_stage=region_output)
        if self.return_raw_boxes:
            predictions = _with_raw_boxes(predictions, frame)
        # Outside of training, `postprocess` predicts the masks of detections.
        if self.second.masks and self.is_training:
            mask_output = self.second.masks.predict(region_output.features, stage_regions)
            predictions = predictions._replace(mask_output=mask_output)
        return predictions

    def loss(
        self,
        predictions: TwoStagePredictions,
        groundtruth: Groundtruth,
        detections: Optional[BatchDetections] = None,
    ) -> Losses:
        """Computes the loss terms of a batch, and counts of its assignment."""
        inputs = predictions.inputs
        groundtruth = groundtruth._replace(boxes=boxes_to_pixels(groundtruth.boxes, inputs))
        with tf1.name_scope("Loss"):
            terms, counts, divisors = self.rpn_loss(predictions.rpn, groundtruth)
            if self.second is None:
                return Losses(terms, counts, divisors)
            region_losses = self.second.loss(*predictions.region_outputs, groundtruth)
            terms.update(region_losses.terms)
            counts.update(region_losses.counts)
            # Terms that have the same tensor as divisor can share a backward pass.
            images = divisors[proposals.RPN_LOCALIZATION]
            divisors.update(dict.fromkeys(region_losses.terms, images))
            if self.second.masks:
                output = predictions.mask_output or (detections and detections.mask_output)
                if output is None:
                    raise ValueError(
                        "loss needs the detections of postprocess if a detector with masks is not "
                        "built for training; pass detections"
                    )
                mask_loss = self.second.masks.loss(output, groundtruth, inputs)
                terms[masks.MASK_LOSS], divisors[masks.MASK_LOSS] = mask_loss
            return Losses(terms, counts, divisors)

    def postprocess(
        self, predictions: TwoStagePredictions, true_shapes: Optional[tf.Tensor] = None
    ) -> BatchDetections:
        """Decodes boxes, cuts them to the real images, converts scores and suppresses.

        Without true shapes, int32 [B, 3], the whole padded images are real. `raw_boxes` are
        the boxes before suppression: for each region, the box of its best class. Without a second
        stage, detections are proposals, all of class 0, and `raw_boxes` are the decoded anchors.
        """
        frame = ImageFrame(predictions.inputs, true_shapes)
        with tf1.name_scope("Postprocessor"):
            if self.second is None:
                survivors = self.rpn.propose(predictions.rpn, frame.windows)
                return _proposals_as_detections(survivors, frame)
            detections = regions.detect_in_regions(
                self.second.postprocessing,
                *predictions.region_outputs,
                frame,
                mask_logits=predictions.mask_output and predictions.mask_output.logits,
            )
            if self.is_training:
                return detections
            return self._with_final_crops(predictions, detections, frame)

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

    def object_paths(self, names: Sequence[str], checkpoint_type: str = "full") -> Dict[str, str]:
        scopes = layer_scopes(names)
        paths = self.extractor.object_paths(scopes, checkpoint_type)
        if paths and checkpoint_type != "classification":
            paths.update(self.rpn.head.object_paths(scopes))
            if self.second is not None:
                paths.update(self.second.stage.object_paths(scopes))
                masks_head = self.second.masks and self.second.masks.head
                paths.update(masks_head.object_paths(scopes) if masks_head else {})
        return variable_paths(names, paths)

    def with_quantization(self, quantization: Quantization) -> FasterRcnnDetector:
        raise NotImplementedError("no two-stage detector simulates quantization")

    def _with_final_crops(
        self, predictions: TwoStagePredictions, detections: BatchDetections, frame: ImageFrame
    ) -> BatchDetections:
        """Runs the second stage again on detections, for their masks and features.

        Crops are at the detections' positions in the padded image. The API crops as if the
        real image filled it, which differs only if images are padded.
        """
        assert self.second is not None
        stage = self.second.stage
        if not (self.second.masks or self.return_box_features or self.return_crops):
            return detections
        assert isinstance(stage, region_stage.CropStage)
        boxes = frame.to_pixels(detections.boxes)
        detected = Regions(boxes, tf.cast(detections.num, tf.int32))
        context = AttentionContext(detected.valid, predictions.context)
        crops = stage.crop(predictions.feature_maps, boxes, frame.inputs, context)
        features = stage.box_features(crops, context)
        if self.return_crops:
            detections = detections._replace(cropped_features=region_stage.per_region(crops, boxes))
        if self.return_box_features:
            averages = tf.reduce_mean(features, axis=[1, 2])
            detections = detections._replace(features=region_stage.per_region(averages, boxes))
        if not self.second.masks:
            return detections
        output = self.second.masks.predict(features, detected)
        logits = masks.select_class_masks(output.logits, tf.cast(detections.classes, tf.int32))
        return detections._replace(masks=tf.sigmoid(logits), mask_output=output)


def _proposals_as_detections(survivors: proposals.Proposals, frame: ImageFrame) -> BatchDetections:
    """Converts proposals to detections of class 0, for a first stage only."""
    return BatchDetections(
        boxes=frame.normalize_to_real_image(survivors.regions.boxes),
        scores=survivors.scores,
        classes=tf.zeros_like(survivors.scores),
        num=tf.cast(survivors.regions.num, tf.float32),
        raw_boxes=frame.normalize_to_real_image(survivors.raw_boxes),
        raw_scores=survivors.raw_scores,
        multiclass_scores=survivors.multiclass_scores,
    )


def _with_raw_boxes(predictions: TwoStagePredictions, frame: ImageFrame) -> TwoStagePredictions:
    boxes = regions.coded_boxes(*predictions.region_outputs).decode()
    return predictions._replace(
        raw_boxes=frame.normalize_to_real_image(boxes),
        raw_feature_map_indices=tf.zeros(tf.shape(boxes)[:2], tf.int32),
    )


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_faster_rcnn(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    yield from check_num_classes(config, at)
    yield from check_parts(config, at, _FIRST_STAGE_PARTS)
    if config.number_of_stages > 1:
        yield from check_parts(config, at, ("second_stage_box_predictor",))
        if not config.second_stage_box_predictor.HasField("rfcn_box_predictor"):
            yield from check_parts(config, at, _CROP_PARTS)
    crops = config.second_stage_box_predictor.HasField("mask_rcnn_box_predictor")
    for field in ("output_final_box_features", "output_final_box_rpn_features"):
        if getattr(config, field) and (config.number_of_stages == 1 or not crops):
            yield error(
                f"{at}.{field}",
                "needs 2 or 3 stages and a mask_rcnn_box_predictor, which crops features of boxes",
                "set it to false",
            )
    if config.return_raw_detections_during_predict and config.number_of_stages == 1:
        field = f"{at}.return_raw_detections_during_predict"
        yield error(field, "needs 2 or 3 stages", "set it to false")
    columns, post_processing = config.num_classes + 1, config.second_stage_post_processing
    yield from check_class_ids(post_processing, columns, f"{at}.second_stage_post_processing")


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_masks(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    predictor = config.second_stage_box_predictor.mask_rcnn_box_predictor
    head = f"{at}.second_stage_box_predictor.mask_rcnn_box_predictor"
    where = f"{head}.predict_instance_masks"
    if config.number_of_stages == 3 and not predictor.predict_instance_masks:
        yield error(where, "is false, and a third stage predicts masks", "set it, or use 2 stages")
    elif config.number_of_stages == 3 and not predictor.HasField("conv_hyperparams"):
        yield error(
            f"{head}.conv_hyperparams",
            "is missing, and predict_instance_masks needs it for the layers of the mask head",
            f"--set {head}.conv_hyperparams.initializer.truncated_normal_initializer.stddev=0.01",
        )
    if config.number_of_stages < 3 and predictor.predict_instance_masks:
        yield warning(
            where,
            "has no effect: masks need a third stage",
            "remove it, or set number_of_stages: 3, with load_instance_masks in the readers",
        )


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_sample(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    if config.HasField("hard_example_miner"):
        sample = ("second_stage_batch_size", "second_stage_balance_fraction")
        for name in non_default_fields(config, sample):
            yield no_effect(f"{at}.{name}", "hard_example_miner chooses among all proposals")


@rules(faster_rcnn_pb2.FasterRcnn, target="tpu")
def _check_miner(config: faster_rcnn_pb2.FasterRcnn, at: str, _: Tpu) -> Iterator[Problem]:
    if config.HasField("hard_example_miner"):
        miner = f"{at}.hard_example_miner"
        yield Problem(
            "error",
            miner,
            "selects examples by non-maximum suppression within the train step",
            "a sample of second_stage_batch_size regions then replaces it; "
            "second_stage_balance_fraction sets the share of objects",
            (f"{miner}=null",),
        )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_quantization(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    if config.model.HasField("faster_rcnn") and config.graph_rewriter.HasField("quantization"):
        yield error(
            "graph_rewriter.quantization",
            "is not supported yet in faster_rcnn models, only in ssd",
            "remove graph_rewriter (--set graph_rewriter=null)",
        )


@PREPROCESSORS.register("faster_rcnn")
def make_faster_rcnn_preprocessor(config: faster_rcnn_pb2.FasterRcnn) -> Preprocessor:
    """Builds the preprocessing of a `FasterRcnn` message."""
    normalize = EXTRACTORS.get(config.feature_extractor.type).normalize
    return Preprocessor(make_resizer(config.image_resizer), normalize, normalizes_last=True)


@DETECTORS.register("faster_rcnn")
def make_faster_rcnn(config: faster_rcnn_pb2.FasterRcnn, is_training: bool) -> FasterRcnnDetector:
    """Builds the detector of a `FasterRcnn` message, but no graph."""
    extractor = make_extractor(config.feature_extractor, is_training)
    has_regions = config.number_of_stages > 1
    return FasterRcnnDetector(
        num_classes=config.num_classes,
        is_training=is_training,
        preprocess=make_faster_rcnn_preprocessor(config),
        extractor=extractor,
        rpn=proposals.make_proposal_network(config, is_training, extractor.recipe.is_tf2_line),
        rpn_loss=proposals.make_rpn_loss(config),
        second=_make_second_stage(config, extractor, is_training) if has_regions else None,
        return_raw_boxes=config.return_raw_detections_during_predict,
        return_box_features=config.output_final_box_features,
        return_crops=config.output_final_box_rpn_features,
    )


def _make_second_stage(
    config: faster_rcnn_pb2.FasterRcnn, extractor: StageExtractor, is_training: bool
) -> SecondStage:
    # Mining chooses among all proposals, instead of a sample.
    samples = is_training and not config.HasField("hard_example_miner")
    return SecondStage(
        stage=region_stage.make_region_stage(config, extractor, is_training),
        loss=regions.make_region_loss(config),
        postprocessing=regions.make_postprocessing(config.second_stage_post_processing),
        sampler=regions.make_region_sampler(config) if samples else None,
        masks=masks.make_mask_stage(config, is_training, extractor.recipe.is_tf2_line)
        if config.number_of_stages == 3
        else None,
    )

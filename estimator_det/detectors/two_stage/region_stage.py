"""Predictions of the second stage: boxes and classes of regions.

Letters in shapes: B images, N regions of an image (padded), K foreground classes, q boxes of a
region (K, or 1 that all classes share). Boxes are in pixels of the padded image that enters the
network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator, NamedTuple, Optional, Protocol, Sequence

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.detectors.base import normalize_boxes
from estimator_det.detectors.two_stage.proposals import BOX_CODER
from estimator_det.errors import Problem, error
from estimator_det.extractors.stages import StageExtractor
from estimator_det.extractors.two_stage.registry import EXTRACTORS
from estimator_det.nets.context_attention import (
    POST_BOX_CLASSIFIER,
    POST_RPN,
    AttentionContext,
    ContextAttention,
    make_context_attention,
)
from estimator_det.nets.hyperparams import make_arg_scope
from estimator_det.nets.object_paths import Paths
from estimator_det.nets.roi import crop_levels, crop_regions, levels_of_boxes, split_rows
from estimator_det.predictors.base import Prediction
from estimator_det.predictors.two_stage import RegionBoxHead, RfcnHead, make_region_box_head
from estimator_det.protos import box_predictor_pb2, faster_rcnn_pb2

REGION_STAGES: Registry[Callable[..., RegionStage]] = Registry(
    "second-stage box predictor", chosen_by="FasterRcnn.second_stage_box_predictor"
)


class RegionOutput(NamedTuple):
    """Output of the second stage for every region."""

    features: tf.Tensor  # float32 [B * N, h, w, C]; R-FCN: [B, h, w, C] of the whole image
    box_encodings: tf.Tensor  # float32 [B, N, q, 4]
    class_logits: tf.Tensor  # float32 [B, N, K + 1], background first


class RegionStage(Protocol):
    """Predicts boxes and classes of regions from feature maps."""

    def predict(
        self,
        feature_maps: Sequence[tf.Tensor],
        boxes: tf.Tensor,
        inputs: tf.Tensor,
        attention_context: AttentionContext,
    ) -> RegionOutput:
        """Predicts from maps [B, h, w, C] of inputs [B, H, W, C] and boxes [B, N, 4]."""

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        """Paths of the head's layers in object-based checkpoints of the TF2 line."""


@dataclass(frozen=True)
class CropStage:
    """Runs the rest of the network, then the head, on crops of the feature map."""

    extractor: StageExtractor  # crops -> features of boxes
    head: RegionBoxHead  # features -> boxes and classes
    crop_size: int  # height and width of a crop
    pool_size: int  # window of the max pooling of a crop
    pool_stride: int  # stride of the max pooling
    matmul: bool = False  # True if crops are matrix products, for TPU
    # Attention of crops or of features of boxes; None: no attention.
    attention: Optional[ContextAttention] = None

    def predict(
        self,
        feature_maps: Sequence[tf.Tensor],
        boxes: tf.Tensor,
        inputs: tf.Tensor,
        attention_context: AttentionContext,
    ) -> RegionOutput:
        crops = self.crop(feature_maps, boxes, inputs, attention_context)
        box_features = self.box_features(crops, attention_context)
        return _output(box_features, self.head.predict(box_features), boxes)

    def crop(
        self,
        feature_maps: Sequence[tf.Tensor],
        boxes: tf.Tensor,
        inputs: tf.Tensor,
        attention_context: AttentionContext,
    ) -> tf.Tensor:
        """Crops maps [B, h, w, C] at boxes [B, N, 4] and pools -> [B * N, s, s, C].

        In a pyramid, each box is cropped from the level of its size.
        """
        size, normalized = (self.crop_size,) * 2, normalize_boxes(boxes, inputs)
        if len(feature_maps) == 1:
            crops = crop_regions(feature_maps[0], normalized, size, matmul=self.matmul)
        else:
            levels = levels_of_boxes(boxes, len(feature_maps))
            crops = crop_levels(feature_maps, normalized, levels, size, matmul=self.matmul)
        pooled = tf.nn.max_pool2d(crops, self.pool_size, self.pool_stride, "VALID")
        return self._attend(pooled, attention_context, POST_RPN)

    def box_features(self, crops: tf.Tensor, attention_context: AttentionContext) -> tf.Tensor:
        """Computes [B * N, h', w', C'] from crops [B * N, s, s, C]; calls share variables."""
        features = self.extractor.box_features(crops)
        return self._attend(features, attention_context, POST_BOX_CLASSIFIER)

    def _attend(
        self, rows: tf.Tensor, attention_context: AttentionContext, position: int
    ) -> tf.Tensor:
        if self.attention is None or self.attention.position != position:
            return rows
        return self.attention(rows, attention_context)

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        return self.head.object_paths(scopes)


@REGION_STAGES.register("mask_rcnn_box_predictor")
def make_crop_stage(
    config: box_predictor_pb2.MaskRCNNBoxPredictor,
    model: faster_rcnn_pb2.FasterRcnn,
    extractor: StageExtractor,
    is_training: bool,
) -> CropStage:
    """Builds the second stage with a `MaskRCNNBoxPredictor` message."""
    return CropStage(
        extractor=extractor,
        head=make_region_box_head(
            config, model.num_classes, is_training, extractor.recipe.is_tf2_line
        ),
        crop_size=model.initial_crop_size,
        pool_size=model.maxpool_kernel_size,
        pool_stride=model.maxpool_stride,
        matmul=model.use_matmul_crop_and_resize,
        attention=make_context_attention(model, is_training),
    )


@dataclass(frozen=True)
class RfcnStage:
    """Runs the rest of the network on the whole feature map; the head crops its score maps."""

    extractor: StageExtractor  # feature map -> features of boxes
    head: RfcnHead  # features and boxes -> boxes and classes

    def predict(
        self,
        feature_maps: Sequence[tf.Tensor],
        boxes: tf.Tensor,
        inputs: tf.Tensor,
        attention_context: AttentionContext,
    ) -> RegionOutput:
        del attention_context
        (features,) = feature_maps
        box_features = self.extractor.box_features(features)
        raw = self.head.predict(box_features, normalize_boxes(boxes, inputs))
        return _output(box_features, raw, boxes)

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        return {}


@REGION_STAGES.register("rfcn_box_predictor")
def make_rfcn_stage(
    config: box_predictor_pb2.RfcnBoxPredictor,
    model: faster_rcnn_pb2.FasterRcnn,
    extractor: StageExtractor,
    is_training: bool,
) -> RfcnStage:
    """Builds the second stage with an `RfcnBoxPredictor` message; see `make_crop_stage`."""
    head = RfcnHead(
        num_classes=model.num_classes,
        conv_scope=make_arg_scope(config.conv_hyperparams, is_training),
        num_bins=(config.num_spatial_bins_height, config.num_spatial_bins_width),
        depth=config.depth,
        crop_size=(config.crop_height, config.crop_width),
        matmul=model.use_matmul_crop_and_resize,
    )
    return RfcnStage(extractor, head)


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_second_stage(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    predictor = config.second_stage_box_predictor
    kind = predictor.WhichOneof("box_predictor_oneof")
    if config.number_of_stages == 1 or kind not in REGION_STAGES:
        return
    size = getattr(predictor, kind).box_code_size
    if size != BOX_CODER.code_size:
        yield error(
            f"{at}.second_stage_box_predictor.{kind}.box_code_size",
            f"must be {BOX_CODER.code_size}; given: {size}",
            f"set it to {BOX_CODER.code_size}",
        )
    network = config.feature_extractor.type
    is_tf2_line = network in EXTRACTORS and EXTRACTORS.get(network).is_tf2_line
    if kind == "rfcn_box_predictor" and is_tf2_line:
        yield error(
            f"{at}.second_stage_box_predictor.rfcn_box_predictor",
            "is not supported by networks of the TF2 line",
            "use mask_rcnn_box_predictor",
        )
    if kind == "mask_rcnn_box_predictor":
        # Their default is 0, which R-FCN may have.
        for field in ("initial_crop_size", "maxpool_kernel_size", "maxpool_stride"):
            if config.HasField(field) and not getattr(config, field):
                yield error(f"{at}.{field}", "must be 1 or more; given: 0", "set it")
        if config.maxpool_kernel_size > config.initial_crop_size > 0:
            yield error(
                f"{at}.maxpool_kernel_size",
                f"must not be above initial_crop_size, {config.initial_crop_size}; "
                f"given: {config.maxpool_kernel_size}",
                "lower it",
            )
    if config.second_stage_batch_size > config.first_stage_max_proposals and not config.HasField(
        "hard_example_miner"
    ):
        yield error(
            f"{at}.second_stage_batch_size",
            f"must not be above first_stage_max_proposals, {config.first_stage_max_proposals}; "
            f"given: {config.second_stage_batch_size}",
            "Lower the former or raise the latter",
        )


def make_region_stage(
    model: faster_rcnn_pb2.FasterRcnn, extractor: StageExtractor, is_training: bool
) -> RegionStage:
    """Builds the second stage of a `FasterRcnn` message."""
    return REGION_STAGES.make_chosen(
        model.second_stage_box_predictor, model, extractor, is_training
    )


def per_region(rows: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
    """Splits rows [B * N, …] of boxes [B, N, 4] into [B, N, …], float32."""
    return split_rows(tf.cast(rows, tf.float32), boxes)


def _output(features: tf.Tensor, raw: Prediction, boxes: tf.Tensor) -> RegionOutput:
    return RegionOutput(
        features, per_region(raw.box_encodings, boxes), per_region(raw.class_logits, boxes)
    )

"""The second stage, which computes features of regions, and from them boxes and classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Protocol

from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError
from estimator_det.detectors.two_stage.context import (
    POST_BOX_CLASSIFIER,
    POST_RPN,
    AttentionContext,
    ContextAttention,
    make_context_attention,
)
from estimator_det.detectors.two_stage.outputs import RegionOutput
from estimator_det.detectors.two_stage.targets import BOX_CODER
from estimator_det.extractors.two_stage.recipe import TwoStageExtractor
from estimator_det.nets.roi import crop_regions, pool_crops
from estimator_det.predictors.base import Prediction
from estimator_det.predictors.box_head import RegionBoxHead, make_region_box_head
from estimator_det.predictors.rfcn import RfcnHead, make_rfcn_head

TPU = TpuAdvice("second_stage_box_predictor", "use mask_rcnn_box_predictor without dropout")

REGION_STAGES: Registry[Callable[..., RegionStage]] = Registry("second-stage box predictor")


class RegionStage(Protocol):
    """Predicts boxes and classes of regions from a feature map."""

    def predict(
        self, features: tf.Tensor, boxes: tf.Tensor, attention_context: AttentionContext
    ) -> RegionOutput:
        """Predicts from a map [B, h, w, C] and boxes [B, N, 4] normalized to padded images."""


@dataclass(frozen=True)
class CropOptions:
    """Options of cropping regions from a feature map.

    Attributes:
        size: height and width of the crop.
        pool_size: window of the max pooling of a crop.
        pool_stride: stride of the max pooling.
        matmul: True if crops are matrix products, for TPU.
    """

    size: int
    pool_size: int
    pool_stride: int
    matmul: bool = False

    def __post_init__(self) -> None:
        for field, value in (
            ("initial_crop_size", self.size),
            ("maxpool_kernel_size", self.pool_size),
            ("maxpool_stride", self.pool_stride),
        ):
            if value < 1:
                raise ConfigError(f"faster_rcnn.{field} must be 1 or more; given: {value}")
        if self.pool_size > self.size:
            raise ConfigError(
                "faster_rcnn.maxpool_kernel_size must not be above initial_crop_size, "
                f"{self.size}; given: {self.pool_size}"
            )


@dataclass(frozen=True)
class CropStage:
    """Runs the rest of the network, then the head, on crops of the feature map.

    Attributes:
        extractor: crops -> features of boxes.
        crops: options of cropping.
        head: features -> boxes and classes.
        attention: attention of crops or of features of boxes; None: no attention.
    """

    extractor: TwoStageExtractor
    crops: CropOptions
    head: RegionBoxHead
    attention: Optional[ContextAttention] = None

    def predict(
        self, features: tf.Tensor, boxes: tf.Tensor, attention_context: AttentionContext
    ) -> RegionOutput:
        box_features = self.box_features(
            self.crop(features, boxes, attention_context), attention_context
        )
        return _output(box_features, self.head.predict(box_features), boxes)

    def crop(
        self,
        features: tf.Tensor,
        boxes: tf.Tensor,
        attention_context: Optional[AttentionContext] = None,
    ) -> tf.Tensor:
        """Crops [B, h, w, C] at normalized boxes [B, N, 4] and pools -> [B * N, s, s, C]."""
        options = self.crops
        crops = crop_regions(features, boxes, (options.size,) * 2, matmul=options.matmul)
        pooled = pool_crops(crops, options.pool_size, options.pool_stride)
        return self._attend(pooled, attention_context, POST_RPN)

    def box_features(
        self, crops: tf.Tensor, attention_context: Optional[AttentionContext] = None
    ) -> tf.Tensor:
        """Computes [B * N, h', w', C'] from crops [B * N, s, s, C]; calls share variables."""
        return self._attend(
            self.extractor.box_features(crops), attention_context, POST_BOX_CLASSIFIER
        )

    def _attend(
        self, rows: tf.Tensor, attention_context: Optional[AttentionContext], position: int
    ) -> tf.Tensor:
        if self.attention is None or self.attention.position != position:
            return rows
        assert attention_context is not None, "attention needs its context"
        return self.attention(rows, attention_context)


@REGION_STAGES.register("mask_rcnn_box_predictor")
def make_crop_stage(
    config: Any, model: Any, extractor: TwoStageExtractor, is_training: bool
) -> CropStage:
    """Builds the second stage with a `MaskRCNNBoxPredictor` message, or raises ConfigError."""
    crops = CropOptions(
        size=model.initial_crop_size,
        pool_size=model.maxpool_kernel_size,
        pool_stride=model.maxpool_stride,
        matmul=model.use_matmul_crop_and_resize,
    )
    return CropStage(
        extractor=extractor,
        crops=crops,
        head=make_region_box_head(config, model.num_classes, is_training),
        attention=make_context_attention(model, is_training),
    )


@dataclass(frozen=True)
class RfcnStage:
    """Runs the rest of the network on the whole feature map; the head crops its score maps.

    Attributes:
        extractor: feature map -> features of boxes.
        head: features and boxes -> boxes and classes.
    """

    extractor: TwoStageExtractor
    head: RfcnHead

    def predict(
        self, features: tf.Tensor, boxes: tf.Tensor, attention_context: AttentionContext
    ) -> RegionOutput:
        del attention_context
        box_features = self.extractor.box_features(features)
        return _output(box_features, self.head.predict(box_features, boxes), boxes)


@REGION_STAGES.register("rfcn_box_predictor")
def make_rfcn_stage(
    config: Any, model: Any, extractor: TwoStageExtractor, is_training: bool
) -> RfcnStage:
    """Builds the second stage with an `RfcnBoxPredictor` message; see `make_crop_stage`."""
    head = make_rfcn_head(
        config, model.num_classes, is_training, matmul=model.use_matmul_crop_and_resize
    )
    return RfcnStage(extractor, head)


def make_region_stage(model: Any, extractor: TwoStageExtractor, is_training: bool) -> RegionStage:
    """Builds the second stage of a `FasterRcnn` message, or raises ConfigError."""
    predictor = model.second_stage_box_predictor
    kind = predictor.WhichOneof("box_predictor_oneof")
    if kind in REGION_STAGES and getattr(predictor, kind).box_code_size != BOX_CODER.code_size:
        raise ConfigError(
            f"faster_rcnn.second_stage_box_predictor.{kind}.box_code_size must be "
            f"{BOX_CODER.code_size}; given: {getattr(predictor, kind).box_code_size}"
        )
    return REGION_STAGES.make_chosen(
        predictor,
        "box_predictor_oneof",
        "faster_rcnn.second_stage_box_predictor",
        model,
        extractor,
        is_training,
    )


def per_region(rows: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
    """Splits rows [B * N, …] of boxes [B, N, 4] into [B, N, …], float32."""
    leading = [tf.shape(boxes)[0], boxes.shape[1] or tf.shape(boxes)[1]]
    split = tf.reshape(tf.cast(rows, tf.float32), [*leading, *rows.shape[1:]])
    return tf.ensure_shape(split, [*boxes.shape[:2], *rows.shape[1:]])


def _output(features: tf.Tensor, raw: Prediction, boxes: tf.Tensor) -> RegionOutput:
    return RegionOutput(
        features, per_region(raw.box_encodings, boxes), per_region(raw.class_logits, boxes)
    )

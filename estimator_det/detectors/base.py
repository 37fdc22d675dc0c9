"""Interface of a detector, and the tuples of tensors that enter and leave it.

Letters in shapes: B batch, A anchors, G groundtruth boxes (padded), K foreground classes,
N detections (padded), P keypoints, H x W pixels. Boxes are `ymin, xmin, ymax, xmax`, normalized to
the padded image that enters the network unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

from google.protobuf.message import Message

from estimator_det.boxes import geometry
from estimator_det.boxes.nms.coded_boxes import Boxes
from estimator_det.boxes.nms.kernels import NmsOptions
from estimator_det.boxes.nms.multiclass import multiclass_nms
from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import check, missing_choice, require, rules
from estimator_det.errors import Problem, error, raise_errors
from estimator_det.images.resize import Preprocessor, height_and_width
from estimator_det.losses.classification import ClassificationLoss
from estimator_det.losses.localization import LocalizationLoss
from estimator_det.nets.context_attention import Context
from estimator_det.nets.quantization import Quantization, QuantizedTensor, make_quantization
from estimator_det.protos import graph_rewriter_pb2, model_pb2, pipeline_pb2

DETECTORS: Registry[Callable[..., TrainableDetector]] = Registry(
    "detection model", chosen_by="DetectionModel.model"
)
PREPROCESSORS: Registry[Callable[..., Preprocessor]] = Registry("detection model")


class Groundtruth(NamedTuple):
    """Labels of a batch; rows past the real boxes of an image are zero and not `valid`."""

    boxes: tf.Tensor  # float32 [B, G, 4]
    classes: tf.Tensor  # float32 [B, G, K], one-hot or k-hot, no background column
    weights: tf.Tensor  # float32 [B, G]
    valid: tf.Tensor  # bool [B, G]
    confidences: Optional[tf.Tensor] = None  # float32 [B, G, K]
    masks: Optional[tf.Tensor] = None  # float32 [B, G, H, W], 0 or 1
    keypoints: Optional[tf.Tensor] = None  # float32 [B, G, P, 2], y and x; NaN where absent
    keypoint_visibilities: Optional[tf.Tensor] = None  # bool [B, G, P]
    is_crowd: Optional[tf.Tensor] = None  # bool [B, G]
    area: Optional[tf.Tensor] = None  # float32 [B, G], pixels squared
    difficult: Optional[tf.Tensor] = None  # bool [B, G]
    group_of: Optional[tf.Tensor] = None  # bool [B, G]
    labeled_classes: Optional[tf.Tensor] = None  # float32 [B, K]
    verified_negatives: Optional[tf.Tensor] = None  # float32 [B, K], 1 if certainly absent
    not_exhaustive: Optional[tf.Tensor] = None  # float32 [B, K], 1 if some may lack a box
    is_annotated: Optional[tf.Tensor] = None  # bool [B]; images with False have no loss


class Predictions(NamedTuple):
    """Raw network output of a single-stage detector."""

    inputs: tf.Tensor  # float32 [B, H, W, C], preprocessed
    feature_maps: Tuple[tf.Tensor, ...]  # float32 [B, h, w, depth] each
    anchors: tf.Tensor  # float32 [A, 4]
    box_encodings: tf.Tensor  # float32 [B, A, code_size]
    class_logits: tf.Tensor  # float32 [B, A, K + 1], or [B, A, K] without a background column
    raw_boxes: Optional[tf.Tensor] = None  # float32 [B, A, 4], decoded; if configured
    raw_feature_map_indices: Optional[tf.Tensor] = None  # int32 [B, A], feature map of each raw box
    quantized: Tuple[QuantizedTensor, ...] = ()  # empty without simulated quantization


class Losses(NamedTuple):
    """Loss of a batch, and counts that were computed with it.

    `divisors` combine the losses of a batch's parts, e.g. of replicas, into the loss of the batch:
    a term times `max(divisor, 1)` is a sum over images, and so is the divisor. Terms that depend on
    variables only have no divisor.
    """

    terms: Dict[str, tf.Tensor]  # float32 scalars by name, e.g. "Loss/localization_loss"
    counts: Dict[str, tf.Tensor]  # float32 scalars by name, e.g. number of matched anchors
    divisors: Dict[str, tf.Tensor]  # float32 scalars by the names of terms; see above


@dataclass(frozen=True)
class WeightedLosses:
    """The two losses of anchors or regions, and the factors of their sums."""

    localization: LocalizationLoss  # box codes, or boxes if it is `on_boxes` -> [B, A]
    classification: ClassificationLoss  # class logits, targets, weights -> [B, A] or [B, A, C]
    localization_weight: float  # factor of the localization term
    classification_weight: float  # factor of the classification term


class BatchDetections(NamedTuple):
    """Final detections; rows past `num` are zero.

    They are by falling score, unless a CenterNet calibrates scores or rescores them by keypoints:
    their order stays. `boxes` and `keypoints` are normalized to the real image inside the padded
    one, or to the padded one if an SSD has `change_coordinate_frame: false`.
    """

    boxes: tf.Tensor  # float32 [B, N, 4]
    scores: tf.Tensor  # float32 [B, N]
    classes: tf.Tensor  # float32 [B, N], foreground index from 0
    num: tf.Tensor  # float32 [B]
    # Before suppression: float32 [B, A, 4], and scores of all C columns, background included if
    # there is one, [B, A, C]; None without suppression.
    raw_boxes: Optional[tf.Tensor] = None
    raw_scores: Optional[tf.Tensor] = None
    multiclass_scores: Optional[tf.Tensor] = None  # float32 [B, N, C]
    anchor_indices: Optional[tf.Tensor] = None  # float32 [B, N]
    masks: Optional[tf.Tensor] = None  # float32 [B, N, h, w]
    keypoints: Optional[tf.Tensor] = None  # float32 [B, N, P, 2], y and x
    keypoint_scores: Optional[tf.Tensor] = None  # float32 [B, N, P]
    features: Optional[tf.Tensor] = None  # float32 [B, N, depth], features of the second stage
    # float32 [B, N, h, w, depth], features of the first stage
    cropped_features: Optional[tf.Tensor] = None
    mask_output: Optional[Any] = None  # boxes and logits of masks, for their loss in evaluation

    def to_dict(self) -> Dict[str, tf.Tensor]:
        """Returns the tensors that are not None, under their names in exported models."""
        tensors = {
            "detection_boxes": self.boxes,
            "detection_scores": self.scores,
            "detection_classes": self.classes,
            "num_detections": self.num,
            "raw_detection_boxes": self.raw_boxes,
            "raw_detection_scores": self.raw_scores,
            "detection_multiclass_scores": self.multiclass_scores,
            "detection_anchor_indices": self.anchor_indices,
            "detection_masks": self.masks,
            "detection_keypoints": self.keypoints,
            "detection_keypoint_scores": self.keypoint_scores,
            "detection_features": self.features,
            "cropped_rpn_box_features": self.cropped_features,
        }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}


@dataclass(frozen=True)
class Postprocessing:
    """Conversion of raw predictions to detections."""

    convert_scores: Callable[[tf.Tensor], tf.Tensor]  # class logits -> scores
    nms: NmsOptions  # thresholds and limits of suppression
    has_background: bool = True  # True if class column 0 is background, which is never detected

    def suppress(
        self,
        boxes: Boxes,
        scores: tf.Tensor,
        raw_boxes: tf.Tensor,
        windows: tf.Tensor,
        fields: Optional[Dict[str, tf.Tensor]] = None,
        **options: Any,
    ) -> BatchDetections:
        """Suppresses boxes [B, A, q, 4] with scores [B, A, C], and cuts them to windows [B, 4].

        `fields` are fields of `BatchDetections` with a value for each of the A rows; `options` are
        arguments of `multiclass_nms`.
        """
        survivors = multiclass_nms(
            boxes,
            scores[:, :, int(self.has_background) :],
            self.nms,
            clip_windows=windows,
            fields={"multiclass_scores": scores, **(fields or {})},
            **options,
        )
        return BatchDetections(
            boxes=survivors.boxes,
            scores=survivors.scores,
            classes=survivors.classes,
            num=tf.cast(survivors.num, tf.float32),
            raw_boxes=raw_boxes,
            raw_scores=scores,
            anchor_indices=tf.cast(survivors.anchor_indices, tf.float32),
            masks=survivors.masks,
            **survivors.fields,
        )


class TrainableDetector(Protocol):
    """A whole model; has no state between calls."""

    @property
    def num_classes(self) -> int:
        """Number of foreground classes."""

    @property
    def is_class_agnostic(self) -> bool:
        """True if objects are detected regardless of class; their class is 0."""

    @property
    def is_training(self) -> bool:
        """True if it is built for training."""

    @property
    def is_tf2_line(self) -> bool:
        """True if the network is of the TF2 line, so that `object_paths` has its paths."""

    @property
    def preprocess(self) -> Preprocessor:
        """Preprocesses float32 [B, h, w, 3] in 0..255: [B, H, W, C], true_shapes int32 [B, 3]."""

    def predict(
        self,
        inputs: tf.Tensor,
        true_shapes: tf.Tensor,
        groundtruth: Optional[Groundtruth] = None,
        context: Optional[Context] = None,
    ) -> Any:
        """Builds the network on preprocessed inputs.

        In training, a two-stage detector needs the groundtruth to choose the regions of the second
        stage. A detector with a `context_config` always needs the context.
        """

    def loss(
        self,
        predictions: Any,
        groundtruth: Groundtruth,
        detections: Optional[BatchDetections] = None,
    ) -> Losses:
        """Computes the loss terms of a batch, and counts of its assignment.

        Outside of training, the loss of masks needs the detections from `postprocess`.
        """

    def postprocess(self, predictions: Any, true_shapes: tf.Tensor) -> BatchDetections:
        """Decodes boxes, converts scores and suppresses."""

    def updates(self) -> List[tf.Operation]:
        """Operations that the train op depends on (moving averages of batch norm)."""

    def regularization_losses(self) -> List[tf.Tensor]:
        """Scalar penalties of the network's variables."""

    def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        """Maps checkpoint names to variables for "classification", "detection" or "full"."""

    def object_paths(self, names: Sequence[str], checkpoint_type: str = "full") -> Dict[str, str]:
        """Paths in object-based checkpoints of the TF2 line, of the variables with these names.

        A checkpoint of the type "classification" has the backbone only. Names are in the order in
        which the variables were created. Networks of the TF1 line have none.
        """

    def with_quantization(self, quantization: Quantization) -> TrainableDetector:
        """Returns the same detector with simulated quantization."""


@dataclass(frozen=True)
class ImageFrame:
    """Position of the real images inside the padded ones."""

    inputs: tf.Tensor  # float [B, H, W, C], padded images
    # Int32 [B, 3], shapes of the real images; None: the padded images are real.
    true_shapes: Optional[tf.Tensor] = None

    @property
    def windows(self) -> tf.Tensor:
        """Windows of the real images in pixels, float32 [B, 4]."""
        if self.true_shapes is None:
            return tf.tile(padded_window(self.inputs)[tf.newaxis], [tf.shape(self.inputs)[0], 1])
        corners = tf.cast(self.true_shapes[:, :2], tf.float32)
        return tf.concat([tf.zeros_like(corners), corners], axis=1)

    def normalize_to_real_image(self, boxes: tf.Tensor) -> tf.Tensor:
        """Expresses boxes [B, …, 4] in pixels as fractions of the real images."""
        ones = [1] * (boxes.shape.rank - 2)
        return geometry.change_frame(boxes, tf.reshape(self.windows, [-1, *ones, 4]))

    def to_pixels(self, boxes: tf.Tensor) -> tf.Tensor:
        """Converts boxes [B, N, 4] to pixels; the inverse of `normalize_to_real_image`."""
        sizes = self.windows[:, tf.newaxis, 2:]
        return boxes * tf.concat([sizes, sizes], axis=2)


def padded_window(inputs: tf.Tensor) -> tf.Tensor:
    """Window of the padded images [B, H, W, C], in pixels, float32 [4]."""
    height, width = height_and_width(inputs)
    return tf.cast(tf.stack([0, 0, height, width]), tf.float32)


def normalize_boxes(boxes: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """Expresses boxes [..., 4] in pixels as fractions of the padded images [B, H, W, C]."""
    return geometry.change_frame(boxes, padded_window(inputs))


def boxes_to_pixels(boxes: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """Converts boxes [..., 4] to pixels; the inverse of `normalize_boxes`."""
    height, width = tf.unstack(padded_window(inputs)[2:], num=2)
    return boxes * tf.stack([height, width, height, width])


@rules(model_pb2.DetectionModel)
def _check_kind(config: model_pb2.DetectionModel, at: str) -> Iterator[Problem]:
    if config.WhichOneof("model") is None:
        yield error(at, "no model is chosen", "add model { ssd { … } } or another kind")


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_presence(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    if not config.HasField("model"):
        yield from _check_kind(config.model, "model")


def check_parts(model: Message, at: str, parts: Tuple[str, ...]) -> Iterator[Problem]:
    """Errors for parts without which a model cannot be built.

    If a part is a choice among several, a member of its oneof group must be set.
    """
    for part in parts:
        if not model.HasField(part):
            yield error(f"{at}.{part}", "is missing", f"--set {at}.{part}=…")
            continue
        value = getattr(model, part)
        if isinstance(value, Message) and part != "feature_extractor":  # its pyramid may be unset
            yield from missing_choice(value, f"{at}.{part}")
        elif part == "feature_extractor" and not value.type:
            remedy = "name the network, for example 'ssd_mobilenet_v1'"
            yield error(f"{at}.feature_extractor.type", "is missing", remedy)


def check_num_classes(model: Message, at: str) -> Iterator[Problem]:
    """An error for a model without a number of classes."""
    if not model.HasField("num_classes"):
        yield error(
            f"{at}.num_classes",
            "is missing",
            "set it to the number of classes in the label map, without background",
        )


def make_detector(
    model_config: model_pb2.DetectionModel,
    is_training: bool,
    graph_rewriter: Optional[graph_rewriter_pb2.GraphRewriter] = None,
) -> TrainableDetector:
    """Checks the configuration of a model, and builds its detector; see `build_detector`.

    Raises:
        ConfigError: if the model is of an unknown kind, its options conflict or a number is out of
            its range.
    """
    config = pipeline_pb2.TrainEvalPipelineConfig(model=model_config, graph_rewriter=graph_rewriter)
    require(config, "model", "graph_rewriter")
    return build_detector(model_config, is_training, graph_rewriter)


def build_detector(
    model_config: model_pb2.DetectionModel,
    is_training: bool,
    graph_rewriter: Optional[graph_rewriter_pb2.GraphRewriter] = None,
) -> TrainableDetector:
    """Builds a detector, but no graph, from a configuration without errors.

    The `GraphRewriter` message of the pipeline can turn on simulated quantization.
    """
    detector: TrainableDetector = DETECTORS.make_chosen(model_config, is_training)
    if graph_rewriter is None:
        return detector
    quantization = make_quantization(graph_rewriter)
    return detector if quantization is None else detector.with_quantization(quantization)


def make_preprocessor(model_config: model_pb2.DetectionModel) -> Preprocessor:
    """Checks the configuration of the preprocessing of a model, and builds it."""
    kind = model_config.WhichOneof("model")
    parts = (f"model.{kind}.image_resizer", f"model.{kind}.feature_extractor")
    raise_errors(  # It needs no other parts, but they must not be absurd.
        problem
        for problem in check(model_config, "model")
        if problem.message != "is missing" or problem.field.startswith(parts)
    )
    return build_preprocessor(model_config)


def build_preprocessor(model_config: model_pb2.DetectionModel) -> Preprocessor:
    """Builds only the preprocessing of a model without errors."""
    return PREPROCESSORS.make_chosen(model_config)

"""The single-shot detector (Liu et al., "SSD: Single Shot MultiBox Detector", 2016).

Variable scopes are as in the Object Detection API: backbone and extra layers are in
`FeatureExtractor`, heads are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, Iterator, List, Optional, Sequence, Tuple

import estimator_det.extractors
import estimator_det.predictors  # noqa: F401  (both imports fill the registries)
from estimator_det.boxes.anchors import (
    AnchorGenerator,
    anchors_per_map,
    check_maps,
    make_anchor_generator,
)
from estimator_det.boxes.coders import BoxCoder, code_size, make_box_coder
from estimator_det.boxes.nms.multiclass import make_nms_options
from estimator_det.boxes.score_conversion import check_class_ids, make_score_converter
from estimator_det.compat import slim, tf, tf1
from estimator_det.config.field_rules import check_equal, no_effect, non_default_fields
from estimator_det.config.rules import Tpu, rules
from estimator_det.config.text import entries
from estimator_det.detectors.base import (
    DETECTORS,
    PREPROCESSORS,
    BatchDetections,
    Context,
    Groundtruth,
    ImageFrame,
    Losses,
    Postprocessing,
    Predictions,
    check_num_classes,
    check_parts,
    normalize_boxes,
)
from estimator_det.detectors.ssd_loss import SsdLoss, make_ssd_loss
from estimator_det.detectors.variables import collection_of_replica, variables_to_restore
from estimator_det.errors import Problem, error, warning
from estimator_det.extractors.maps import MapExtractor
from estimator_det.extractors.recipe import OVERRIDE
from estimator_det.extractors.ssd.registry import (
    EXTRACTORS,
    make_extractor,
    num_maps,
    pyramid_levels,
)
from estimator_det.images.resize import Preprocessor, height_and_width, make_resizer
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.nets.object_paths import (
    classifier_paths,
    layer_scopes,
    nested,
    variable_paths,
)
from estimator_det.nets.quantization import Quantization, Quantizer, quantized_by
from estimator_det.predictors.base import BoxHead, make_box_head
from estimator_det.predictors.ssd import TF2_LINE_FIELDS
from estimator_det.protos import pipeline_pb2, ssd_pb2

EXTRACTOR_SCOPE = "FeatureExtractor"

# Parts without which a detector cannot be built.
_PARTS = (
    "image_resizer",
    "feature_extractor",
    "box_coder",
    "matcher",
    "similarity_calculator",
    "box_predictor",
    "anchor_generator",
)
_LOSSES = ("localization_loss", "classification_loss")
# Decays at which moving averages of batch norm follow within the few steps of a training on TPU.
LEAST_DECAY, MOST_DECAY = 0.97, 0.997
_ROUNDING = 1e-6  # a decay in a message is a 32-bit float


@dataclass(frozen=True)
class SsdDetector:
    """A single-shot detector; `TrainableDetector` documents its methods."""

    num_classes: int  # foreground classes
    is_training: bool  # True if the model is built for training
    norm_is_training: bool  # True if batch norm learns; False if it is frozen
    inplace_norm_update: bool  # True if batch norm updates its averages without update operations
    preprocess: Preprocessor  # pixels -> the network's input
    extractor: MapExtractor  # images -> feature maps
    predictor: BoxHead  # feature maps -> raw predictions
    anchor_generator: AnchorGenerator  # feature map sizes -> anchors
    box_coder: BoxCoder  # box encodings -> boxes
    losses: SsdLoss  # predictions and groundtruth -> loss terms
    postprocessing: Postprocessing  # predictions -> detections
    return_raw_boxes: bool = False  # True if `predict` also decodes the boxes
    # Simulated in every layer; None for a float network.
    quantization: Optional[Quantization] = None
    is_class_agnostic: ClassVar[bool] = False

    @property
    def is_tf2_line(self) -> bool:
        return self.extractor.recipe.is_tf2_line

    def predict(
        self,
        inputs: tf.Tensor,
        true_shapes: Optional[tf.Tensor] = None,
        groundtruth: Optional[Groundtruth] = None,
        context: Optional[Context] = None,
    ) -> Predictions:
        """Builds the network on inputs [B, H, W, C] from `preprocess`."""
        del true_shapes, groundtruth, context  # single-shot networks process the padding, too
        updates = None if self.inplace_norm_update else tf1.GraphKeys.UPDATE_OPS
        options = self.quantization
        quantizer = None if options is None else Quantizer(options, self.is_training)
        with (
            quantized_by(quantizer),
            slim.arg_scope(
                list(BATCH_NORMS), is_training=self.norm_is_training, updates_collections=updates
            ),
        ):
            with tf1.variable_scope(EXTRACTOR_SCOPE, reuse=tf1.AUTO_REUSE):
                feature_maps = self.extractor.extract(inputs)
            with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
                raw = self.predictor.predict(feature_maps, self.anchor_generator.num_per_location)
        sizes = [height_and_width(features) for features in feature_maps]
        anchors = self.anchor_generator.generate(sizes, height_and_width(inputs))
        predictions = Predictions(
            inputs,
            feature_maps,
            anchors,
            raw.box_encodings,
            raw.class_logits,
            quantized=tuple(quantizer.tensors) if quantizer else (),
        )
        if not self.return_raw_boxes:
            return predictions
        counts = self.anchor_generator.num_per_location
        return predictions._replace(
            raw_boxes=self.box_coder.decode(raw.box_encodings, anchors).boxes,
            raw_feature_map_indices=_map_indices(sizes, counts, tf.shape(raw.box_encodings)[0]),
        )

    def loss(
        self,
        predictions: Predictions,
        groundtruth: Groundtruth,
        detections: Optional[BatchDetections] = None,
    ) -> Losses:
        del detections  # only the loss of masks needs them
        with tf1.name_scope("Loss"):
            return self.losses(predictions, groundtruth)

    def postprocess(
        self, predictions: Predictions, true_shapes: Optional[tf.Tensor] = None
    ) -> BatchDetections:
        """Decodes boxes, cuts them to the real images, converts scores and suppresses.

        Without true shapes, int32 [B, 3], the whole padded images are real. `raw_boxes` and
        `raw_scores` have all anchors, in the frame of the padded image, with the background column
        if there is one.
        """
        with tf1.name_scope("Postprocessor"):
            # Clients of exported models read these three tensors by name.
            encodings = tf.identity(predictions.box_encodings, "raw_box_encodings")
            decoded = self.box_coder.decode(encodings, predictions.anchors)
            decoded = decoded._replace(boxes=tf.identity(decoded.boxes, "raw_box_locations"))
            all_scores = self.postprocessing.convert_scores(predictions.class_logits)
            all_scores = tf.identity(all_scores, "raw_box_scores")
            windows = normalize_boxes(
                ImageFrame(predictions.inputs, true_shapes).windows, predictions.inputs
            )
            fields = {}
            if decoded.keypoints is not None:
                # In the frame of the boxes.
                changes_frame = self.postprocessing.nms.change_frame
                sizes = windows[:, tf.newaxis, tf.newaxis, 2:] if changes_frame else 1.0
                fields["keypoints"] = decoded.keypoints / sizes
            return self.postprocessing.suppress(
                decoded.boxes[:, :, tf.newaxis, :],
                all_scores,
                decoded.boxes,
                windows,
                fields,
            )

    def updates(self) -> List[tf.Operation]:
        return collection_of_replica(tf1.GraphKeys.UPDATE_OPS)

    def regularization_losses(self) -> List[tf.Tensor]:
        return collection_of_replica(tf1.GraphKeys.REGULARIZATION_LOSSES)

    def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        """See `variables_to_restore`."""

        def classifier_name(name: str) -> str:
            return self.extractor.classifier_name(name.removeprefix(f"{EXTRACTOR_SCOPE}/"))

        return variables_to_restore(checkpoint_type, load_all, [EXTRACTOR_SCOPE], classifier_name)

    def object_paths(self, names: Sequence[str], checkpoint_type: str = "full") -> Dict[str, str]:
        if not self.is_tf2_line:
            return {}
        scopes, prefix = layer_scopes(names), f"{EXTRACTOR_SCOPE}/"
        inner = [scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)]
        extractor = self.extractor.object_paths(inner)
        owner = "model/_feature_extractor"
        paths = {prefix + scope: f"{owner}/{path}" for scope, path in extractor.items()}
        if checkpoint_type == "classification":
            return variable_paths(names, classifier_paths(paths, f"{owner}/"))
        heads = self.predictor.object_paths([scope for scope in scopes if scope not in paths])
        return variable_paths(names, {**paths, **nested("model/_box_predictor", heads)})

    def with_quantization(self, quantization: Quantization) -> SsdDetector:
        return replace(self, quantization=quantization)


def _map_indices(sizes: List[Tuple[Any, Any]], counts: List[int], batch: tf.Tensor) -> tf.Tensor:
    """Number of the feature map of each anchor, int32 [B, A]."""
    parts = [
        tf.fill([batch, height * width * count], number)
        for number, ((height, width), count) in enumerate(zip(sizes, counts))
    ]
    return tf.concat(parts, axis=1)


@rules(ssd_pb2.Ssd)
def _check_ssd(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    yield from check_num_classes(config, at)
    yield from check_parts(config, at, _PARTS)
    yield from check_parts(config.loss, f"{at}.loss", _LOSSES)
    if config.add_background_class and config.explicit_background_class:
        yield error(
            f"{at}.explicit_background_class",
            "excludes add_background_class, which is true unless set otherwise",
            f"--set {at}.add_background_class=false",
        )
    columns = config.num_classes + int(config.add_background_class)
    yield from check_class_ids(config.post_processing, columns, f"{at}.post_processing")
    sigmoid_trained = config.loss.classification_loss.WhichOneof("classification_loss") in (
        "weighted_sigmoid",
        "weighted_sigmoid_focal",
        "bootstrapped_sigmoid",
    )
    if sigmoid_trained and not config.post_processing.HasField("score_converter"):
        yield warning(
            f"{at}.post_processing.score_converter",
            "is not set: detection scores are raw logits, though the loss trains a sigmoid",
            f"--set {at}.post_processing.score_converter=SIGMOID",
        )


@rules(ssd_pb2.Ssd)
def _check_first_release(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    """Announces a field that published files of the API's first release have."""
    if not config.feature_extractor.HasField("batch_norm_trainable"):
        return
    field = f"{at}.feature_extractor.batch_norm_trainable"
    if config.feature_extractor.batch_norm_trainable:
        reason = f"batch norm trains unless {at}.freeze_batchnorm is set"
        yield warning(field, f"is true, which has no effect: {reason}", "remove it")
    else:
        yield warning(
            field,
            "is false: training keeps the batch norm of the feature extractor as it is",
            f"{at}.freeze_batchnorm=true replaces it; it also keeps the box predictor's batch norm",
        )


@rules(ssd_pb2.Ssd)
def _check_fit(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    """Anchors fit the pyramid, and the box predictor fits the coder and the network."""
    yield from _check_anchors(config, at)
    kind, size = config.box_predictor.WhichOneof("box_predictor_oneof"), code_size(config.box_coder)
    if kind and size and getattr(config.box_predictor, kind).box_code_size != size:
        predictor_size = getattr(config.box_predictor, kind).box_code_size
        yield error(
            f"{at}.box_predictor.{kind}.box_code_size",
            f"is {predictor_size}, but {config.box_coder.WhichOneof('box_coder_oneof')} has codes "
            f"of {size} numbers",
            f"set it to {size}",
        )
    kind = config.feature_extractor.type
    if kind in EXTRACTORS and not EXTRACTORS.get(kind).is_tf2_line:
        head = "weight_shared_convolutional_box_predictor"
        for name in non_default_fields(getattr(config.box_predictor, head), TF2_LINE_FIELDS):
            yield no_effect(
                f"{at}.box_predictor.{head}.{name}",
                "conv_hyperparams always apply to all layers of a network of the TF1 line",
            )


def _check_anchors(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    """Each feature map has anchors, and equally many if one head predicts for all maps."""
    extractor, generator = config.feature_extractor, config.anchor_generator
    if extractor.type in EXTRACTORS:
        maps = num_maps(extractor), pyramid_levels(extractor)
        yield from check_maps(generator, f"{at}.anchor_generator", *maps)
    shared, counts = "weight_shared_convolutional_box_predictor", anchors_per_map(generator) or []
    if config.box_predictor.HasField(shared) and len(set(counts)) > 1:
        yield error(
            f"{at}.box_predictor.{shared}",
            f"needs the same number of anchors at every map; the anchor generator has {counts}",
            "change the anchor generator, or use convolutional_box_predictor",
        )


@rules(ssd_pb2.Ssd, target="tpu")
def _check_batch_norm(config: ssd_pb2.Ssd, at: str, _: Tpu) -> Iterator[Problem]:
    """Moving averages follow within the few steps of large batches."""
    if config.freeze_batchnorm:
        return
    slowly = "slowly for the few steps of large batches"
    extractor = config.feature_extractor
    recipe = EXTRACTORS.get(extractor.type) if extractor.type in EXTRACTORS else None
    if recipe is not None and (recipe.norm_decay or 0) > MOST_DECAY:
        yield from check_equal(
            extractor,
            f"{at}.feature_extractor.{OVERRIDE}",
            True,
            f"the backbone keeps its own batch norm with decay {recipe.norm_decay}, whose averages "
            f"follow too {slowly}",
            "warning",
            safe=False,
            remedy="conv_hyperparams then apply to the backbone too: state batch_norm in them",
        )
    norms = (".conv_hyperparams.batch_norm", ".conv_hyperparams.sync_batch_norm")
    for path, norm in ((each.path, each.value) for each in entries(config, f"{at}.")):
        if not path.endswith(norms):
            continue
        nearest = min(max(norm.decay, LEAST_DECAY), MOST_DECAY)
        if not math.isclose(norm.decay, nearest, abs_tol=_ROUNDING):
            follows = slowly if norm.decay > nearest else "fast"
            yield Problem(
                "warning",
                f"{path}.decay",
                f"is {norm.decay:g}: the moving averages would follow too {follows}",
                edits=(f"{path}.decay={nearest}",),
                safe=True,
            )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_quantization(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    kind = config.model.ssd.feature_extractor.type
    if not config.graph_rewriter.HasField("quantization") or kind not in EXTRACTORS:
        return
    if not EXTRACTORS.get(kind).quantizes:
        yield error(
            "graph_rewriter.quantization",
            "is not supported yet by this type of feature_extractor",
            "use another type, or remove graph_rewriter (--set graph_rewriter=null)",
        )


@PREPROCESSORS.register("ssd")
def make_ssd_preprocessor(config: ssd_pb2.Ssd) -> Preprocessor:
    """Builds the preprocessing of an `Ssd` message."""
    normalize = EXTRACTORS.get(config.feature_extractor.type).normalize
    return Preprocessor(make_resizer(config.image_resizer), normalize)


@DETECTORS.register("ssd")
def make_ssd(config: ssd_pb2.Ssd, is_training: bool) -> SsdDetector:
    """Builds the detector of an `Ssd` message, but no graph."""
    norm_is_training = is_training and not config.freeze_batchnorm
    extractor = make_extractor(config.feature_extractor, norm_is_training)
    has_background = config.add_background_class or config.explicit_background_class
    return SsdDetector(
        num_classes=config.num_classes,
        is_training=is_training,
        norm_is_training=norm_is_training,
        inplace_norm_update=config.inplace_batchnorm_update,
        preprocess=make_ssd_preprocessor(config),
        extractor=extractor,
        predictor=make_box_head(
            config.box_predictor,
            config.num_classes,
            add_background_class=config.add_background_class,
            is_training=is_training,
            norm_is_training=norm_is_training,
            tf2_line=extractor.recipe.is_tf2_line,
        ),
        anchor_generator=make_anchor_generator(config.anchor_generator),
        box_coder=make_box_coder(config.box_coder),
        losses=make_ssd_loss(config, is_training),
        postprocessing=Postprocessing(
            convert_scores=make_score_converter(config.post_processing),
            nms=make_nms_options(config.post_processing.batch_non_max_suppression),
            has_background=has_background,
        ),
        return_raw_boxes=config.return_raw_detections_during_predict,
    )

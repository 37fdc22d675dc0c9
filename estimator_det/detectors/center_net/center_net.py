"""CenterNet (Zhou et al., "Objects as Points", 2019): objects as peaks of heatmaps.

It has no anchors, and peaks need no suppression. All its networks are of the TF2 line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.boxes import geometry
from estimator_det.boxes.heatmaps import Pixels
from estimator_det.boxes.nms.kernels import NmsOptions
from estimator_det.boxes.nms.multiclass import make_nms_options, multiclass_nms
from estimator_det.boxes.score_conversion import check_class_ids
from estimator_det.compat import slim, tf, tf1
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.config.rules import rules
from estimator_det.detectors.base import (
    DETECTORS,
    PREPROCESSORS,
    BatchDetections,
    Context,
    Groundtruth,
    ImageFrame,
    Losses,
    check_num_classes,
    check_parts,
)
from estimator_det.detectors.center_net import heads
from estimator_det.detectors.center_net.keypoints import KeypointTask, make_keypoint_tasks
from estimator_det.detectors.center_net.objects import ObjectTask, make_object_task
from estimator_det.detectors.variables import collection_of_replica, variables_to_restore
from estimator_det.errors import Problem, error, warning
from estimator_det.extractors.center_net.registry import (
    EXTRACTORS,
    STRIDE,
    make_extractor,
    make_normalization,
)
from estimator_det.extractors.maps import MapExtractor
from estimator_det.images.resize import Preprocessor, make_resizer
from estimator_det.losses.localization import compares_boxes
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.nets.object_paths import (
    layer_scopes,
    nested,
    variable_paths,
)
from estimator_det.nets.quantization import Quantization
from estimator_det.protos import center_net_pb2, pipeline_pb2

EXTRACTOR_SCOPE = "FeatureExtractor"
EXTRACTOR_PATH = "model/_feature_extractor"
# After these, a start has 5 % of the averages at the decay of published MobileNets, 0.9997.
_STEPS_OF_AVERAGES = 10_000

_PARTS = ("image_resizer", "feature_extractor", "object_detection_task", "object_center_params")


class CenterNetPredictions(NamedTuple):
    """Raw network output of a CenterNet."""

    inputs: tf.Tensor  # float32 [B, H, W, C], preprocessed
    true_shapes: tf.Tensor  # int32 [B, 3], shapes of the real images
    feature_maps: Tuple[tf.Tensor, ...]  # float32 [B, h, w, depth] each
    maps: heads.HeadMaps  # output of each head on each feature map


@dataclass(frozen=True)
class CenterNetDetector:
    """A CenterNet; `TrainableDetector` documents its methods."""

    num_classes: int  # foreground classes
    is_training: bool  # True if the model is built for training
    preprocess: Preprocessor  # pixels -> the network's input
    extractor: MapExtractor  # images -> feature maps
    objects: ObjectTask  # centers and boxes
    keypoints: Tuple[KeypointTask, ...] = ()  # keypoints of the objects of some classes
    nms: Optional[NmsOptions] = None  # suppression of boxes; None for none
    is_class_agnostic: ClassVar[bool] = False
    is_tf2_line: ClassVar[bool] = True

    def predict(
        self,
        inputs: tf.Tensor,
        true_shapes: Optional[tf.Tensor] = None,
        groundtruth: Optional[Groundtruth] = None,
        context: Optional[Context] = None,
    ) -> CenterNetPredictions:
        """Builds the network on inputs [B, H, W, C] from `preprocess`.

        Without true shapes the whole padded images are real.
        """
        del groundtruth, context  # the network processes images only
        with slim.arg_scope(list(BATCH_NORMS), is_training=self.is_training):
            with tf1.variable_scope(EXTRACTOR_SCOPE, reuse=tf1.AUTO_REUSE):
                feature_maps = self.extractor.extract(inputs)
            with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
                maps = {
                    head.name: tuple(
                        head.predict(features, number)
                        for number, features in enumerate(feature_maps)
                    )
                    for head in self._heads
                }
        if true_shapes is None:
            true_shapes = tf.tile(tf.shape(inputs)[tf.newaxis, 1:], [tf.shape(inputs)[0], 1])
        return CenterNetPredictions(inputs, true_shapes, feature_maps, maps)

    @property
    def _heads(self) -> Tuple[heads.Head, ...]:
        return (*self.objects.heads, *(head for task in self.keypoints for head in task.heads))

    def loss(
        self,
        predictions: CenterNetPredictions,
        groundtruth: Groundtruth,
        detections: Optional[BatchDetections] = None,
    ) -> Losses:
        """Computes the loss terms of a batch: means over its boxes, and over feature maps."""
        del detections  # only the loss of masks needs them
        with tf1.name_scope("Loss"):
            scene = heads.make_scene(
                predictions.inputs,
                predictions.true_shapes,
                predictions.feature_maps[-1],
                groundtruth,
            )
            losses = self.objects.loss(predictions.maps, scene)
            for task in self.keypoints:
                task_losses = task.loss(predictions.maps, scene)
                losses.terms.update(task_losses.terms)
                losses.divisors.update(task_losses.divisors)
            return losses

    def postprocess(
        self, predictions: CenterNetPredictions, true_shapes: Optional[tf.Tensor] = None
    ) -> BatchDetections:
        """Finds the peaks of the last feature map, and their boxes.

        Without true shapes, int32 [B, 3], the true shapes given to `predict` count.
        """
        if true_shapes is None:
            true_shapes = predictions.true_shapes
        with tf1.name_scope("Postprocessor"):
            frame = ImageFrame(predictions.inputs, true_shapes)
            peaks, boxes, class_scores = self.objects.detect(predictions.maps, true_shapes)
            normalized = geometry.clip_to_window(
                frame.normalize_to_real_image(boxes * STRIDE), tf.constant([0.0, 0.0, 1.0, 1.0])
            )
            is_object = peaks.values > 0.0
            detections = BatchDetections(
                boxes=tf.where(is_object[..., tf.newaxis], normalized, 0.0),
                scores=peaks.values,
                classes=tf.where(is_object, tf.cast(peaks.channels, tf.float32), 0.0),
                num=tf.reduce_sum(tf.cast(is_object, tf.float32), axis=1),
                multiclass_scores=tf.where(is_object[..., tf.newaxis], class_scores, 0.0),
            )
            if self.keypoints:
                detections = self._with_keypoints(
                    detections, predictions.maps, peaks, boxes, true_shapes
                )
            return self._rescored(self._suppressed(detections))

    def _with_keypoints(
        self,
        detections: BatchDetections,
        maps: heads.HeadMaps,
        peaks: Pixels,
        boxes: tf.Tensor,
        true_shapes: tf.Tensor,
    ) -> BatchDetections:
        """Adds the keypoints of each object; keypoints that its class does not have are 0."""
        total = sum(len(task.indices) for task in self.keypoints)
        image_sizes = tf.cast(true_shapes[:, tf.newaxis, tf.newaxis, :2], tf.float32)
        points, scores = 0.0, 0.0
        for task in self.keypoints:
            found_points, found_scores = task.detect(maps, peaks, boxes)
            fractions = found_points * STRIDE / image_sizes
            if task.clips:
                inside = tf.clip_by_value(fractions, 0.0, 1.0)
                is_moved = tf.reduce_any(tf.not_equal(inside, fractions), axis=3)
                fractions, found_scores = inside, tf.where(is_moved, 0.0, found_scores)
            is_own = tf.equal(peaks.channels, task.class_index) & (peaks.values > 0.0)
            has_points = tf.cast(is_own, tf.float32)
            # Gathered from the task's keypoints and, for the others, a last column of zeros.
            columns = dict(zip(task.indices, range(total)))
            places = [columns.get(i, len(columns)) for i in range(total)]
            pads = [[0, 0], [0, 0], [0, 1]]
            placed = tf.gather(tf.pad(fractions, [*pads, [0, 0]]), places, axis=2)
            points += placed * has_points[..., tf.newaxis, tf.newaxis]
            placed = tf.gather(tf.pad(found_scores, pads), places, axis=2)
            scores += placed * has_points[..., tf.newaxis]
        return detections._replace(keypoints=points, keypoint_scores=scores)

    def _suppressed(self, detections: BatchDetections) -> BatchDetections:
        """The detections that `post_processing` keeps; a peak may count for several classes."""
        if self.nms is None:
            return detections
        fields = ("multiclass_scores", "keypoints", "keypoint_scores")
        rows = {name: getattr(detections, name) for name in fields}
        survivors = multiclass_nms(
            detections.boxes[:, :, tf.newaxis],
            detections.multiclass_scores,
            self.nms,
            clip_windows=tf.tile([[0.0, 0.0, 1.0, 1.0]], [tf.shape(detections.boxes)[0], 1]),
            num_valid=tf.cast(detections.num, tf.int32),
            fields={name: each for name, each in rows.items() if each is not None},
        )
        return BatchDetections(
            survivors.boxes,
            survivors.scores,
            survivors.classes,
            tf.cast(survivors.num, tf.float32),
            **survivors.fields,
        )

    def _rescored(self, detections: BatchDetections) -> BatchDetections:
        scores = detections.scores
        for task in (each for each in self.keypoints if each.rescores):
            is_own = tf.equal(tf.cast(detections.classes, tf.int32), task.class_index)
            rescored = task.rescored(scores, detections.keypoint_scores)
            scores = tf.where(is_own, rescored, scores)
        return detections._replace(scores=scores)

    def updates(self) -> List[tf.Operation]:
        return collection_of_replica(tf1.GraphKeys.UPDATE_OPS)

    def regularization_losses(self) -> List[tf.Tensor]:
        return collection_of_replica(tf1.GraphKeys.REGULARIZATION_LOSSES)

    def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        """See `variables_to_restore`; classifiers have the names of the detector."""
        return variables_to_restore(checkpoint_type, load_all, [EXTRACTOR_SCOPE], str)

    def object_paths(self, names: Sequence[str], checkpoint_type: str = "full") -> Dict[str, str]:
        scopes, prefix = layer_scopes(names), f"{EXTRACTOR_SCOPE}/"
        inner = [scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)]
        extractor = nested(EXTRACTOR_PATH, self.extractor.object_paths(inner))
        paths = {prefix + scope: path for scope, path in extractor.items()}
        if checkpoint_type == "classification":
            network = f"{EXTRACTOR_PATH}/{self.extractor.recipe.classifier}/"
            classifier = {
                scope: f"feature_extractor/{path.removeprefix(network)}"
                for scope, path in paths.items()
                if path.startswith(network)
            }
            return variable_paths(names, classifier)
        return variable_paths(names, {**paths, **heads.object_paths(scopes)})

    def with_quantization(self, quantization: Quantization) -> CenterNetDetector:
        raise NotImplementedError("no CenterNet simulates quantization")


@rules(center_net_pb2.CenterNet)
def _check_center_net(config: center_net_pb2.CenterNet, at: str) -> Iterator[Problem]:
    yield from check_num_classes(config, at)
    yield from check_parts(config, at, _PARTS)
    if compares_boxes(config.object_detection_task.localization_loss):
        field = f"{at}.object_detection_task.localization_loss"
        yield error(field, "must compare sizes, not boxes", "use l1_localization_loss")
    yield from check_parts(
        config.object_center_params, f"{at}.object_center_params", ("classification_loss",)
    )
    if config.HasField("post_processing"):
        field = f"{at}.post_processing"
        if not config.post_processing.HasField("calibration_config"):
            yield from check_parts(config.post_processing, field, ("batch_non_max_suppression",))
        yield from check_class_ids(config.post_processing, config.num_classes, field)
        unused = ("score_converter", "logit_scale")
        for name in non_default_fields(config.post_processing, unused):
            yield no_effect(f"{field}.{name}", "center_net takes its scores from its heatmaps")
    yield from check_parts(
        config.object_detection_task, f"{at}.object_detection_task", ("localization_loss",)
    )


@rules(center_net_pb2.CenterNet.PredictionHeadParams)
def _check_head(
    config: center_net_pb2.CenterNet.PredictionHeadParams, at: str
) -> Iterator[Problem]:
    if len(config.num_filters) != len(config.kernel_sizes):
        yield error(
            f"{at}.kernel_sizes",
            f"has {len(config.kernel_sizes)} entries, and num_filters {len(config.num_filters)}",
            "write one of each for every layer",
        )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_pipeline(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    if not config.model.HasField("center_net"):
        return
    if config.graph_rewriter.HasField("quantization"):
        yield error(
            "graph_rewriter.quantization",
            "is not supported in center_net models, only in ssd",
            "remove graph_rewriter (--set graph_rewriter=null)",
        )
    if config.train_config.merge_multiple_label_boxes:
        yield error(
            "train_config.merge_multiple_label_boxes",
            "is not supported by center_net, whose centers have one class",
            "remove it",
        )
    kind = config.model.center_net.feature_extractor.type
    train = config.train_config
    is_short = 0 < train.num_steps < _STEPS_OF_AVERAGES and not train.fine_tune_checkpoint
    if is_short and kind.startswith("mobilenet"):
        yield warning(
            "train_config.num_steps",
            f"is {train.num_steps:,}, and the averages of batch norm of {kind} follow only after "
            f"some {_STEPS_OF_AVERAGES:,} steps: evaluations find little before",
            "train longer, start from a checkpoint, or use resnet_v1_50_fpn",
        )
    if (
        kind in EXTRACTORS
        and not EXTRACTORS.get(kind).classifier
        and train.fine_tune_checkpoint
        and train.fine_tune_checkpoint_type == "classification"
    ):
        yield error(
            "train_config.fine_tune_checkpoint_type",
            f"is 'classification', and {kind} has no classifier",
            "use detection or full",
        )


@PREPROCESSORS.register("center_net")
def make_center_net_preprocessor(config: center_net_pb2.CenterNet) -> Preprocessor:
    """Builds the preprocessing of a `CenterNet` message."""
    normalize = make_normalization(config.feature_extractor)
    return Preprocessor(make_resizer(config.image_resizer), normalize, normalizes_last=True)


@DETECTORS.register("center_net")
def make_center_net(config: center_net_pb2.CenterNet, is_training: bool) -> CenterNetDetector:
    """Builds the detector of a `CenterNet` message, but no graph."""
    return CenterNetDetector(
        num_classes=config.num_classes,
        is_training=is_training,
        preprocess=make_center_net_preprocessor(config),
        extractor=make_extractor(config.feature_extractor),
        objects=make_object_task(config),
        keypoints=make_keypoint_tasks(config),
        nms=make_nms_options(config.post_processing.batch_non_max_suppression)
        if config.post_processing.HasField("batch_non_max_suppression")
        else None,
    )

"""Metric operations of an evaluation: loss means, detection metrics and images."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.ranges import MOST_CLASSES
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Detections, Groundtruth
from inputs import schema
from inputs.label_map import LabelMap, read_label_map
from model_fn.drawing.boxes import DrawOptions, EvaluatedImage, image_ops
from model_fn.evaluation.accumulator import Accumulator, OnResults, accumulator_ops, without_nones
from model_fn.evaluation.metrics.base import EvaluatedBatch, MetricOps, Metrics
from model_fn.evaluation.metrics.run_lengths import Masks

_SAME_IN_GROUNDTRUTH = (
    "is_crowd",
    "area",
    "difficult",
    "group_of",
    "labeled_classes",
    "verified_negatives",
    "not_exhaustive",
)
# Categories of a detector that finds objects of any class.
AGNOSTIC_CATEGORIES: List[Dict[str, Any]] = [{"id": 1, "name": "object"}]


def make_categories(
    pipeline_config: Any, label_map: Optional[LabelMap] = None
) -> List[Dict[str, Any]]:
    """Categories of an evaluation: dictionaries with at least "id" (from 1) and "name".

    Without a label map, that of the first evaluation reader that has one counts; if none has one,
    categories are numbered.
    """
    paths = [reader.label_map_path for reader in pipeline_config.eval_input_reader]
    path = next(filter(None, paths), None)
    if label_map is None and path is not None:
        label_map = read_label_map(path)
    if label_map is not None:
        categories: List[Dict[str, Any]] = label_map.categories()
        return categories
    model = getattr(pipeline_config.model, pipeline_config.model.WhichOneof("model"))
    # A model that is not supported may have none; a typing error must not take all memory.
    count = min(getattr(model, "num_classes", 0), MOST_CLASSES)
    return [{"id": k, "name": f"category_{k}"} for k in range(1, count + 1)]


def without_classes(groundtruth: Groundtruth) -> Groundtruth:
    """Groundtruth of one class, to compare with detections that have none."""
    return groundtruth._replace(classes=tf.ones_like(groundtruth.classes[:, :, :1]))


def _sizes(features: Dict[str, tf.Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Heights and widths, float32 [B, 2]: of the padded input as a share of the real image inside
    it, and of the image in the record, else of the real one.
    """
    real = tf.cast(features[schema.TRUE_IMAGE_SHAPE][:, :2], tf.float32)
    padded = tf.cast(tf.shape(features[schema.IMAGE])[1:3], tf.float32)
    original = features.get(schema.ORIGINAL_SPATIAL_SHAPE)
    return padded / real, real if original is None else tf.cast(original, tf.float32)


def _scaled(coordinates: Any, sizes: tf.Tensor) -> Any:
    """Boxes [B, n, 4] or keypoints [B, n, P, 2], if any, times height and width [B, 2]."""
    if coordinates is None:
        return None
    if coordinates.shape.rank == 3:
        return coordinates * tf.tile(sizes, [1, 2])[:, tf.newaxis]
    return coordinates * sizes[:, tf.newaxis, tf.newaxis]


# Field of Detections and Groundtruth that a metrics set requires -> the models that find it, and
# the reader's field that loads it.
_REMEDIES = {
    "masks": (
        "a model with masks (faster_rcnn with number_of_stages: 3)",
        "load_instance_masks: true",
    ),
    "keypoints": ("a model with keypoints (ssd with a keypoint_box_coder)", "num_keypoints"),
}


def _check_needs(
    asked_by: str, metrics: Metrics, detections: Detections, groundtruth: Groundtruth
) -> None:
    """Refuses a set that needs what the model does not find or the reader does not load."""
    for need in sorted(metrics.needs & _REMEDIES.keys()):
        models, setting = _REMEDIES[need]
        if getattr(detections, need) is None:
            raise ConfigError(
                asked_by,
                f"needs {need}, and the model finds boxes only",
                f"remove the name, or use {models}",
            )
        if getattr(groundtruth, need) is None:
            raise ConfigError(
                asked_by,
                f"needs {need}, and the groundtruth has none",
                f"remove the name, or set {setting} in eval_input_reader",
            )
    for where, tensor in (
        ("num_keypoints of eval_input_reader", groundtruth.keypoints),
        ("num_keypoints of the keypoint_box_coder", detections.keypoints),
    ):
        count = None if tensor is None else tensor.shape[2]
        if count is not None and count < metrics.num_keypoints:
            raise ConfigError(
                asked_by,
                f"needs {metrics.num_keypoints} keypoints, as ids in the label map say; "
                f"{where} is {count}",
                "Correct one of them",
            )


def evaluated_batch(
    detections: Detections,
    groundtruth: Groundtruth,
    features: Dict[str, tf.Tensor],
    accumulator: Accumulator,
) -> EvaluatedBatch:
    """A batch as metrics take it, as tensors in pixels of the original image.

    Args:
        detections: Boxes normalized to the real image, keypoints to the padded one.
        groundtruth: Normalized to the padded image; valid boxes come first.
        accumulator: Its sets decide whether masks and keypoints are part of the batch.
    """
    for field, metrics in accumulator.named_sets:
        _check_needs(field, metrics, detections, groundtruth)
    needs = {need for _, metrics in accumulator.named_sets for need in metrics.needs}
    padding, original = _sizes(features)
    num_detections, num_boxes = _counts(detections, groundtruth)
    if groundtruth.is_annotated is not None:  # Images that nobody annotated do not count.
        num_detections = tf.where(groundtruth.is_annotated, num_detections, 0)
        num_boxes = tf.where(groundtruth.is_annotated, num_boxes, 0)
    optional = {name: getattr(groundtruth, name) for name in _SAME_IN_GROUNDTRUTH}
    if "keypoints" in needs:
        optional["keypoints"] = _scaled(_scaled(groundtruth.keypoints, padding), original)
        optional["keypoint_visibilities"] = groundtruth.keypoint_visibilities
        detected = _scaled(_scaled(detections.keypoints, padding), original)
        optional["detection_keypoints"] = detected
    if "masks" in needs:
        optional["masks"] = Masks(
            detected=detections.masks,
            masks=groundtruth.masks,
            real_sizes=features[schema.TRUE_IMAGE_SHAPE][:, :2],
            image_sizes=tf.cast(original, tf.int32),
        )
    return EvaluatedBatch(
        detection_boxes=_scaled(detections.boxes, original),
        detection_scores=detections.scores,
        detection_classes=tf.cast(detections.classes, tf.int32) + 1,
        num_detections=num_detections,
        boxes=_scaled(_scaled(groundtruth.boxes, padding), original),
        classes=tf.argmax(groundtruth.classes, axis=2, output_type=tf.int32) + 1,
        num_boxes=num_boxes,
        **optional,
    )


def _counts(detections: Detections, groundtruth: Groundtruth) -> Tuple[tf.Tensor, tf.Tensor]:
    """Detections and boxes of each image, without padding: int32 [B] each."""
    num_boxes = tf.reduce_sum(tf.cast(groundtruth.valid, tf.int32), axis=1)
    return tf.cast(detections.num, tf.int32), num_boxes


def evaluation_ops(
    detections: Detections,
    groundtruth: Groundtruth,
    features: Dict[str, tf.Tensor],
    *,
    eval_config: Any,
    categories: Sequence[Dict[str, Any]],
    handle_results: OnResults,
) -> MetricOps:
    """`eval_metric_ops` of the configured metrics, and of images if originals were retained.

    Arguments are those of `evaluated_batch`.
    """
    accumulator = Accumulator(eval_config, categories)
    batch = evaluated_batch(detections, groundtruth, features, accumulator)
    ops = accumulator_ops(accumulator, batch, handle_results)
    if schema.ORIGINAL_IMAGE in features and eval_config.num_visualizations:
        padding, _ = _sizes(features)
        evaluated = EvaluatedImage(
            image=features[schema.ORIGINAL_IMAGE],
            detection_boxes=detections.boxes,
            detection_scores=detections.scores,
            detection_classes=batch.detection_classes,
            boxes=_scaled(groundtruth.boxes, padding),
            classes=batch.classes,
            detection_keypoints=_scaled(detections.keypoints, padding),
            keypoints=_scaled(groundtruth.keypoints, padding),
            additional_channels=features.get(schema.ADDITIONAL_CHANNELS),
            detection_masks=detections.masks,
            masks=groundtruth.masks,
        )
        images = image_ops(
            evaluated,
            features[schema.TRUE_IMAGE_SHAPE],
            _counts(detections, groundtruth),  # also of images that nobody annotated
            max_images=eval_config.num_visualizations,
            names={category["id"]: category["name"] for category in categories},
            options=DrawOptions(
                min_score=eval_config.min_score_threshold,
                max_boxes=eval_config.max_num_boxes_to_visualize,
                skip_labels=eval_config.skip_labels,
                skip_scores=eval_config.skip_scores,
                keypoint_edges=tuple((edge.start, edge.end) for edge in eval_config.keypoint_edge),
            ),
        )
        ops.update(images)
    return ops


def eval_metrics(
    detections: Detections,
    groundtruth: Groundtruth,
    features: Dict[str, tf.Tensor],
    *,
    eval_config: Any,
    categories: Sequence[Dict[str, Any]],
    losses: Dict[str, tf.Tensor],
    learning_rate: tf.Tensor,
    handle_results: OnResults,
) -> Tuple[Callable[..., MetricOps], List[tf.Tensor]]:
    """`eval_metrics` of a `TPUEstimatorSpec`: a function that makes all metrics, and its tensors.

    A TPU sends these tensors to its host, which concatenates those of all cores along the first
    dimension; losses and learning rate therefore are [1].
    """
    # Boxes and scores before suppression are not compared.
    compared = detections._replace(raw_boxes=None, raw_scores=None)
    scalars = [tf.reshape(value, [1]) for value in (*losses.values(), learning_rate)]
    tensors, restored = without_nones([compared, groundtruth, features, scalars])

    def make(*received: tf.Tensor) -> MetricOps:
        *batch, (*terms, rate) = restored(received)
        ops = evaluation_ops(
            *batch, eval_config=eval_config, categories=categories, handle_results=handle_results
        )
        ops.update((name, tf1.metrics.mean(term)) for name, term in zip(losses, terms))
        ops["learning_rate"] = (rate[0], tf.no_op())
        return ops

    return make, tensors

"""Metric operations of an evaluation: loss means, detection metrics and images."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Detections, Groundtruth
from inputs import schema
from inputs.label_map import LabelMap, read_label_map
from model_fn.drawing.boxes import DrawOptions, EvaluatedImage, EvaluationImages, image_ops
from model_fn.evaluation.accumulator import Accumulator, OnResults, accumulator_ops
from model_fn.evaluation.metrics.base import EvaluatedBatch, MetricOps, Metrics
from model_fn.evaluation.metrics.run_lengths import Masks

# Categories of a detector that finds objects of any class.
AGNOSTIC_CATEGORIES: List[Dict[str, Any]] = [{"id": 1, "name": "object"}]


class _Frames(NamedTuple):
    """Sizes to convert between coordinate frames; height and width, float32 [B, 2]."""

    padded: tf.Tensor  # size of the batch that enters the network
    real: tf.Tensor  # size of the real image inside it
    original: tf.Tensor  # size of the image in the record


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
    return [{"id": k, "name": f"category_{k}"} for k in range(1, model.num_classes + 1)]


def without_classes(groundtruth: Groundtruth) -> Groundtruth:
    """Groundtruth of one class, to compare with detections that have none."""
    return groundtruth._replace(classes=tf.ones_like(groundtruth.classes[:, :, :1]))


def _frames(features: Dict[str, tf.Tensor]) -> _Frames:
    image = features[schema.IMAGE]
    real = tf.cast(features[schema.TRUE_IMAGE_SHAPE][:, :2], tf.float32)
    padded = tf.cast(tf.shape(image)[1:3], tf.float32)[tf.newaxis]
    original = features.get(schema.ORIGINAL_SPATIAL_SHAPE)
    return _Frames(
        padded=padded,
        real=real,
        original=real if original is None else tf.cast(original, tf.float32),
    )


def _scaled(boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Boxes [B, n, 4] times height and width [B, 2]."""
    return boxes * tf.concat([sizes, sizes], axis=1)[:, tf.newaxis, :]


def _in_real_frame(keypoints: Optional[tf.Tensor], frames: _Frames) -> Optional[tf.Tensor]:
    """Keypoints [B, n, P, 2] of the padded image, normalized to the real one."""
    if keypoints is None:
        return None
    return keypoints * (frames.padded / frames.real)[:, tf.newaxis, tf.newaxis, :]


def _batch(
    detections: Detections, groundtruth: Groundtruth, boxes: tf.Tensor, frames: _Frames
) -> EvaluatedBatch:
    """`boxes` is the groundtruth, normalized to the real image."""
    return EvaluatedBatch(
        detection_boxes=_scaled(detections.boxes, frames.original),
        detection_scores=detections.scores,
        detection_classes=tf.cast(detections.classes, tf.int32) + 1,
        num_detections=tf.cast(detections.num, tf.int32),
        boxes=_scaled(boxes, frames.original),
        classes=tf.argmax(groundtruth.classes, axis=2, output_type=tf.int32) + 1,
        num_boxes=tf.reduce_sum(tf.cast(groundtruth.valid, tf.int32), axis=1),
        is_crowd=groundtruth.is_crowd,
        area=groundtruth.area,
        difficult=groundtruth.difficult,
        group_of=groundtruth.group_of,
        labeled_classes=groundtruth.labeled_classes,
        verified_negatives=groundtruth.verified_negatives,
        not_exhaustive=groundtruth.not_exhaustive,
    )


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


def _with_needed(
    sets: Sequence[Metrics],
    batch: EvaluatedBatch,
    detections: Detections,
    groundtruth: Groundtruth,
    frames: _Frames,
) -> EvaluatedBatch:
    """The batch with masks and keypoints, where a set needs them."""
    needs = {need for metrics in sets for need in metrics.needs}
    if "keypoints" in needs:
        original = frames.original[:, tf.newaxis, tf.newaxis, :]
        batch = batch._replace(
            keypoints=_in_real_frame(groundtruth.keypoints, frames) * original,
            keypoint_visibilities=groundtruth.keypoint_visibilities,
            detection_keypoints=_in_real_frame(detections.keypoints, frames) * original,
        )
    if "masks" not in needs:
        return batch
    return batch._replace(
        masks=Masks(
            detected=detections.masks,
            masks=groundtruth.masks,
            real_sizes=tf.cast(frames.real, tf.int32),
            image_sizes=tf.cast(frames.original, tf.int32),
        )
    )


def _images(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> EvaluationImages:
    return EvaluationImages(
        eval_config.num_visualizations,
        {category["id"]: category["name"] for category in categories},
        DrawOptions(
            min_score=eval_config.min_score_threshold,
            max_boxes=eval_config.max_num_boxes_to_visualize,
            skip_labels=eval_config.skip_labels,
            skip_scores=eval_config.skip_scores,
            keypoint_edges=tuple((edge.start, edge.end) for edge in eval_config.keypoint_edge),
        ),
    )


def evaluated_batch(
    detections: Detections,
    groundtruth: Groundtruth,
    features: Dict[str, tf.Tensor],
    accumulator: Accumulator,
) -> EvaluatedBatch:
    """A batch as metrics take it, as tensors in pixels of the original image.

    Args:
        detections: Normalized to the real image.
        groundtruth: Normalized to the padded image; valid boxes come first.
        accumulator: Its sets decide whether masks and keypoints are part of the batch.
    """
    for field, metrics in accumulator.named_sets:
        _check_needs(field, metrics, detections, groundtruth)
    frames = _frames(features)
    boxes = _scaled(groundtruth.boxes, frames.padded / frames.real)
    batch = _batch(detections, groundtruth, boxes, frames)
    if groundtruth.is_annotated is not None:  # Images that nobody annotated do not count.
        batch = batch._replace(
            num_detections=tf.where(groundtruth.is_annotated, batch.num_detections, 0),
            num_boxes=tf.where(groundtruth.is_annotated, batch.num_boxes, 0),
        )
    sets = [metrics for _, metrics in accumulator.named_sets]
    return _with_needed(sets, batch, detections, groundtruth, frames)


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
        frames = _frames(features)
        evaluated = EvaluatedImage(
            image=features[schema.ORIGINAL_IMAGE],
            detection_boxes=detections.boxes,
            detection_scores=detections.scores,
            detection_classes=batch.detection_classes,
            boxes=_scaled(groundtruth.boxes, frames.padded / frames.real),
            classes=batch.classes,
            detection_keypoints=_in_real_frame(detections.keypoints, frames),
            keypoints=_in_real_frame(groundtruth.keypoints, frames),
            additional_channels=features.get(schema.ADDITIONAL_CHANNELS),
            detection_masks=detections.masks,
            masks=groundtruth.masks,
        )
        shown = _batch(detections, groundtruth, evaluated.boxes, frames)  # not annotated ones, too
        counts = (shown.num_detections, shown.num_boxes)
        images = _images(eval_config, categories)
        ops.update(image_ops(images, evaluated, features[schema.TRUE_IMAGE_SHAPE], counts))
    return ops


def scalar_ops(losses: Dict[str, tf.Tensor], learning_rate: tf.Tensor) -> MetricOps:
    """`eval_metric_ops` of the loss terms, averaged over batches, and of the learning rate."""
    ops: MetricOps = {name: tf1.metrics.mean(value) for name, value in losses.items()}
    ops["learning_rate"] = (learning_rate, tf.no_op())
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
    names = list(losses)
    # Boxes and scores before suppression are not compared.
    compared = detections._replace(raw_boxes=None, raw_scores=None)
    scalars = [tf.reshape(value, [1]) for value in (*losses.values(), learning_rate)]
    structure = [compared, groundtruth, features, scalars]
    leaves = tf.nest.flatten(structure)

    def make(*received: tf.Tensor) -> MetricOps:
        present = iter(received)
        filled = [None if leaf is None else next(present) for leaf in leaves]
        *batch, (*terms, rate) = tf.nest.pack_sequence_as(structure, filled)
        ops = evaluation_ops(
            *batch, eval_config=eval_config, categories=categories, handle_results=handle_results
        )
        ops.update(scalar_ops(dict(zip(names, terms)), rate[0]))
        return ops

    return make, [leaf for leaf in leaves if leaf is not None]

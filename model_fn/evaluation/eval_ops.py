"""Metric operations of an evaluation: loss means, detection metrics and images."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.config.facts import is_class_agnostic
from estimator_det.config.field_rules import most
from estimator_det.detectors.base import BatchDetections, Groundtruth
from estimator_det.errors import ConfigError
from estimator_det.protos import eval_pb2, pipeline_pb2, ssd_pb2
from inputs import schema
from inputs.label_map import LabelMap, read_label_map
from model_fn.evaluation import diagnostics
from model_fn.evaluation.accumulator import Accumulator
from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.metrics.run_lengths import ImageSizes, encode_masks
from model_fn.evaluation.pictures import IMAGES_TAG, Pictures

MetricOps = Dict[str, Tuple[tf.Tensor, tf.Operation]]

# Fields that groundtruth and an evaluated batch share; those left out change their units.
_SAME_IN_GROUNDTRUTH = {*EvaluatedBatch._fields}.intersection(Groundtruth._fields).difference(
    ["boxes", "classes", "keypoints", "masks"]
)


def make_categories(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, label_map: Optional[LabelMap] = None
) -> List[Dict[str, Any]]:
    """Categories of an evaluation: dictionaries with at least "id" (from 1) and "name".

    Without a label map, the first evaluation reader that has one decides; if none has one,
    categories are numbered.
    """
    paths = [reader.label_map_path for reader in pipeline_config.eval_input_reader]
    if label_map is None and any(paths):
        label_map = read_label_map(next(filter(None, paths)))
    if label_map is not None:
        return label_map.categories()
    model = getattr(pipeline_config.model, pipeline_config.model.WhichOneof("model"))
    # A model that is not supported may have none; a typing error must not take all memory.
    count = min(getattr(model, "num_classes", 0), most(ssd_pb2.Ssd, "num_classes"))
    return [{"id": k, "name": f"category_{k}"} for k in range(1, count + 1)]


def evaluated_categories(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, label_map: Optional[LabelMap] = None
) -> List[Dict[str, Any]]:
    """Categories of a model's evaluation: one for a detector that finds objects of any class."""
    if is_class_agnostic(pipeline_config.model):
        return [{"id": 1, "name": "object"}]
    return make_categories(pipeline_config, label_map)


def sizes_of(features: Dict[str, tf.Tensor]) -> ImageSizes:
    """Sizes under the keys of `inputs.schema`."""
    real = features[schema.TRUE_IMAGE_SHAPE][:, :2]
    original = features.get(schema.ORIGINAL_SPATIAL_SHAPE)
    padded = tf.shape(features[schema.IMAGE])[1:3]
    return ImageSizes(padded, real, real if original is None else original)


def _scaled(coordinates: Any, *sizes: Any) -> Any:
    """Boxes [B, n, 4] or keypoints [B, n, P, 2], if any, times heights and widths, [B, 2] each."""
    if coordinates is None:
        return None
    for size in sizes:
        factors = np.tile(np.float32(size), coordinates.shape[-1] // 2)
        shape = len(size), *[1] * (coordinates.ndim - 2), -1
        coordinates = coordinates * factors.reshape(shape)
    return coordinates


# Field of Detections and Groundtruth that a metrics set requires -> the models that find it, and
# the reader's field that loads it.
_REMEDIES = {
    "masks": (
        "a model with masks (faster_rcnn with number_of_stages: 3)",
        "load_instance_masks: true",
    ),
    "keypoints": (
        "a model with keypoints (center_net with a keypoint_estimation_task)",
        "num_keypoints",
    ),
}


def check_needs(
    accumulator: Accumulator, detections: BatchDetections, groundtruth: Groundtruth
) -> None:
    """Refuses a set that needs what the model does not find or the reader does not load."""
    keypoints = {
        "num_keypoints of eval_input_reader": groundtruth.keypoints,
        "the number of keypoints of the model": detections.keypoints,
    }
    for field, name, metrics in accumulator.named_sets:
        for need in sorted(metrics.needs & _REMEDIES.keys()):
            models, setting = _REMEDIES[need]
            for structure, fault, remedy in (
                (detections, "the model finds boxes only", f"use {models}"),
                (groundtruth, "the groundtruth has none", f"set {setting} in eval_input_reader"),
            ):
                if getattr(structure, need) is None:
                    message = f"{name!r} needs {need}, and {fault}"
                    raise ConfigError.at(field, message, f"remove the name, or {remedy}")
        for where, tensor in keypoints.items():
            count = None if tensor is None else tensor.shape[2]
            if count is not None and count < metrics.num_keypoints:
                raise ConfigError.at(
                    field,
                    f"{name!r} needs {metrics.num_keypoints} keypoints, as ids in the label map "
                    f"say; {where} is {count}",
                    "Correct one of them",
                )


def evaluated_batch(
    detections: BatchDetections,
    groundtruth: Groundtruth,
    sizes: ImageSizes,
    *,
    has_masks: bool = False,
) -> EvaluatedBatch:
    """A batch of arrays as metrics take it, in pixels of the original image.

    Args:
        detections: Normalized to the real image.
        groundtruth: Normalized to the padded image; valid boxes come first.
        has_masks: True if metrics compare masks.
    """
    padding = np.float32(sizes.padded) / np.float32(sizes.real)
    # Images that nobody annotated do not count.
    counts = True if groundtruth.is_annotated is None else groundtruth.is_annotated
    batch = EvaluatedBatch(
        detection_boxes=_scaled(detections.boxes, sizes.original),
        detection_scores=detections.scores,
        detection_classes=detections.classes.astype(np.int32) + 1,
        num_detections=(detections.num * counts).astype(np.int32),
        boxes=_scaled(groundtruth.boxes, padding, sizes.original),
        classes=np.argmax(groundtruth.classes, axis=2).astype(np.int32) + 1,
        num_boxes=(groundtruth.valid.sum(axis=1) * counts).astype(np.int32),
        keypoints=_scaled(groundtruth.keypoints, padding, sizes.original),
        detection_keypoints=_scaled(detections.keypoints, sizes.original),
        detection_keypoint_scores=detections.keypoint_scores,
        **{name: getattr(groundtruth, name) for name in _SAME_IN_GROUNDTRUTH},
    )
    if not has_masks:
        return batch
    masks = encode_masks(detections.masks, groundtruth.masks, batch, sizes)
    return batch._replace(masks=masks)


def without_nones(structure: Any) -> Tuple[List[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves of a structure that are not None, and its maker from other values for them."""
    leaves = tf.nest.flatten(structure)

    def restored(values: Iterable[Any]) -> Any:
        remaining = iter(values)
        filled = [None if leaf is None else next(remaining) for leaf in leaves]
        return tf.nest.pack_sequence_as(structure, filled)

    return [leaf for leaf in leaves if leaf is not None], restored


class EvaluationFeed:
    """Feeds the batches of one evaluation from a graph to an accumulator, as arrays.

    A batch waits until the network computes the next one, and is added meanwhile.
    """

    def __init__(self, eval_config: eval_pb2.EvalConfig, categories: List[Dict[str, Any]]) -> None:
        self.accumulator = Accumulator(eval_config, categories)
        self._pictures = Pictures(eval_config, categories)
        self._waiting: List[Tuple[np.ndarray, ...]] = []

    def ops(
        self, detections: BatchDetections, groundtruth: Groundtruth, features: Dict[str, tf.Tensor]
    ) -> MetricOps:
        """`eval_metric_ops`: float32 scalars by name of the metric, and pictures as Summaries.

        All share one update operation. One operation computes all metrics and their chart once.
        Pictures of images are added if originals were retained. The arguments are as in
        `evaluated_batch`.
        """
        accumulator = self.accumulator
        check_needs(accumulator, detections, groundtruth)
        keys = (schema.ORIGINAL_IMAGE, schema.ADDITIONAL_CHANNELS)
        images = [features.get(key) if self._pictures.num_missing else None for key in keys]
        tensors, restored = without_nones([detections, groundtruth, sizes_of(features), images])
        names = [name for each in accumulator.named_sets for name in each.metrics.names]

        def add_waiting() -> None:
            while self._waiting:
                self._add(*restored(self._waiting.pop(0)))

        def values() -> Tuple[np.ndarray, bytes, bytes]:
            add_waiting()
            metrics, _, chart, *_ = accumulator.results
            scalars = np.array([metrics[name] for name in names], np.float32)
            return scalars, diagnostics.chart_summary(chart), self._pictures.summary()

        received = tf.numpy_function(lambda *arrays: self._waiting.append(arrays), tensors, [])
        update = tf.group(received, tf.numpy_function(add_waiting, [], []))
        scalars, *summaries = tf.numpy_function(values, [], [tf.float32, tf.string, tf.string])
        scalars = tf.unstack(tf.ensure_shape(scalars, [len(names)]))
        ops = {name: (scalar, update) for name, scalar in zip(names, scalars)}
        chart, shown = (tf.ensure_shape(summary, []) for summary in summaries)
        ops[diagnostics.EVAL_DIAGNOSTICS] = (chart, update)
        if images[0] is not None:
            ops[IMAGES_TAG] = (shown, update)
        return ops

    def _add(
        self,
        detections: BatchDetections,
        groundtruth: Groundtruth,
        sizes: ImageSizes,
        images: Sequence[Optional[np.ndarray]],
    ) -> None:
        has_masks = "masks" in self.accumulator.needs
        self.accumulator.add(evaluated_batch(detections, groundtruth, sizes, has_masks=has_masks))
        pixels, channels = images
        if pixels is not None and self._pictures.num_missing:
            every = groundtruth._replace(is_annotated=None)  # images that nobody annotated, too
            batch = evaluated_batch(detections, every, sizes)
            masks = detections.masks, groundtruth.masks
            self._pictures.add(batch, sizes, pixels, channels, masks)

    def eval_metrics(
        self,
        detections: BatchDetections,
        groundtruth: Groundtruth,
        features: Dict[str, tf.Tensor],
        losses: Dict[str, tf.Tensor],
        learning_rate: tf.Tensor,
    ) -> Tuple[Callable[..., MetricOps], List[tf.Tensor]]:
        """`eval_metrics` of a `TPUEstimatorSpec`: the maker of all metrics, and its tensors.

        A TPU sends these tensors to its host, which concatenates the tensors of all cores along the
        first dimension; losses and learning rate therefore are [1].
        """
        # Boxes and scores before suppression are not compared, nor are features.
        compared = BatchDetections(
            *detections[:4],
            raw_boxes=None,
            raw_scores=None,
            masks=detections.masks,
            keypoints=detections.keypoints,
            keypoint_scores=detections.keypoint_scores,
        )
        scalars = [tf.reshape(value, [1]) for value in (*losses.values(), learning_rate)]
        tensors, restored = without_nones([compared, groundtruth, features, scalars])

        def make(*received: tf.Tensor) -> MetricOps:
            *batch, (*terms, rate) = restored(received)
            ops = self.ops(*batch)
            ops.update((name, tf1.metrics.mean(term)) for name, term in zip(losses, terms))
            ops["learning_rate"] = (rate[0], tf.no_op())
            return ops

        return make, tensors

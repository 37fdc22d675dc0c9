"""Inputs and results of detection metrics.

Each evaluation graph has its own metric objects. An update operation passes each batch to them as
arrays; they compute their results once, when the values are read.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.config.registry import Registry

MetricOps = Dict[str, Tuple[tf.Tensor, tf.Operation]]


class Masks(NamedTuple):
    """Masks of detections and groundtruth, each in the frame that it was made in."""

    detected: Any  # float32 [B, N, h, w], each fills its box
    masks: Any  # float32 [B, G, H, W], of the network's input
    real_sizes: Any  # int32 [B, 2], height and width of the real image in H x W
    image_sizes: Any  # int32 [B, 2], of the original image


class EvaluatedBatch(NamedTuple):
    """Detections beside groundtruth, boxes in pixels of the original image, classes from 1."""

    detection_boxes: Any  # float32 [B, N, 4]
    detection_scores: Any  # float32 [B, N]
    detection_classes: Any  # int32 [B, N]
    num_detections: Any  # int32 [B]
    boxes: Any  # float32 [B, G, 4]
    classes: Any  # int32 [B, G]
    num_boxes: Any  # int32 [B]
    is_crowd: Optional[Any] = None  # bool [B, G]
    area: Optional[Any] = None  # float32 [B, G], pixels squared; 0 means the area of the box
    difficult: Optional[Any] = None  # bool [B, G]
    group_of: Optional[Any] = None  # bool [B, G]
    labeled_classes: Optional[Any] = None  # float32 [B, K], 1: all boxes of the class are given
    masks: Optional[Masks] = None  # only for metrics of `MASK_METRICS`


def detections_of(batch: EvaluatedBatch, row: int, *, skip_unlabeled: bool = False) -> np.ndarray:
    """Indices of an image's detections, [n] by falling score as they come.

    Args:
        batch: As arrays.
        row: The image.
        skip_unlabeled: Leaves out detections of classes that `labeled_classes` does not have, if
            there are labeled classes.
    """
    indices = np.arange(int(batch.num_detections[row]))
    if not skip_unlabeled or batch.labeled_classes is None:
        return indices
    labeled = np.asarray(batch.labeled_classes[row]) == 1
    return indices[labeled[batch.detection_classes[row, indices] - 1]]


class Metrics(Protocol):
    """A set of metrics, accumulated over one evaluation."""

    names: List[str]

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds one batch, as arrays."""

    def results(self) -> Dict[str, float]:
        """The value of every name in `names`; starts a new evaluation."""


METRICS: Registry[Callable[[Any, Sequence[Dict[str, Any]]], Metrics]] = Registry(
    "metrics set",
    reserved=(
        "coco_detection_metrics",
        "coco_keypoint_metrics",
        "coco_mask_metrics",
        "coco_panoptic_metrics",
        "lvis_box_metrics",
        "lvis_detection_metrics",
        "lvis_mask_metrics",
        "oid_V2_detection_metrics",
        "oid_challenge_detection_metrics",
        "oid_challenge_object_detection_metrics",
        "oid_challenge_segmentation_metrics",
        "open_images_V2_detection_metrics",
        "open_images_detection_metrics",
        "open_images_metrics",
        "pascal_voc_detection_metrics",
        "pascal_voc_instance_segmentation_metrics",
        "pascal_voc_metrics",
        "precision_at_recall_detection_metrics",
        "weighted_pascal_voc_detection_metrics",
        "weighted_pascal_voc_instance_segmentation_metrics",
    ),
)

# Name of a metrics set -> the fields of `eval_config` that it uses.
EVAL_FIELDS: Dict[str, Tuple[str, ...]] = {}
# Metrics sets that compare masks; all others get batches without.
MASK_METRICS: Set[str] = set()
DEFAULT_METRICS = "coco_detection_metrics"


def chosen_metrics(eval_config: Any) -> List[str]:
    """The names of the metrics sets that an `EvalConfig` asks for, each once."""
    return list(dict.fromkeys(eval_config.metrics_set)) or [DEFAULT_METRICS]


def make_metrics(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> List[Metrics]:
    """The metrics that `eval_config.metrics_set` names; COCO box metrics if it names none.

    Args:
        eval_config: `EvalConfig` proto.
        categories: Dictionaries with "id" (from 1) and "name".

    Raises:
        ConfigError: if a name is not known.
    """
    return [METRICS.get(name)(eval_config, categories) for name in chosen_metrics(eval_config)]


def metric_ops(metrics: Metrics, batch: EvaluatedBatch) -> MetricOps:
    """`eval_metric_ops` of a metric: name -> (float32 scalar value, update operation)."""
    tensors = tf.nest.flatten(batch)

    def add(*arrays: np.ndarray) -> None:
        present = iter(arrays)
        filled = [None if tensor is None else next(present) for tensor in tensors]
        metrics.add(tf.nest.pack_sequence_as(batch, filled))

    def values() -> np.ndarray:
        results = metrics.results()
        return np.array([results[name] for name in metrics.names], np.float32)

    update = tf.numpy_function(add, [tensor for tensor in tensors if tensor is not None], [])
    # One function gives all values, so they are computed once.
    value = tf.ensure_shape(tf.numpy_function(values, [], tf.float32), [len(metrics.names)])
    return {name: (scalar, update) for name, scalar in zip(metrics.names, tf.unstack(value))}

"""Inputs and results of detection metrics.

Metrics are plain Python objects: they take batches as arrays, and return their values once.
"""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    FrozenSet,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError
from model_fn.evaluation.metrics.run_lengths import Masks, RunLengths, encode_masks

MetricOps = Dict[str, Tuple[tf.Tensor, tf.Operation]]


class EvaluatedBatch(NamedTuple):
    """Detections beside groundtruth in pixels of the original image; classes from 1.

    Rows past the count of an image are padding of any content. `masks` of a graph are `Masks`,
    those that metrics get are `RunLengths`.
    """

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
    masks: Optional[Union[Masks, RunLengths]] = None
    keypoints: Optional[Any] = None  # float32 [B, G, P, 2], y and x; NaN where absent
    keypoint_visibilities: Optional[Any] = None  # bool [B, G, P]
    detection_keypoints: Optional[Any] = None  # float32 [B, N, P, 2]
    verified_negatives: Optional[Any] = None  # float32 [B, K], 1: the class is certainly absent
    not_exhaustive: Optional[Any] = None  # float32 [B, K], 1: some of the class may lack a box


def detections_of(batch: EvaluatedBatch, row: int, *, skip_unlabeled: bool = False) -> np.ndarray:
    """Indices of an image's detections, [n] by falling score as they come.

    `skip_unlabeled` leaves out those of classes that are not in `labeled_classes`, if it is there.
    """
    indices = np.arange(int(batch.num_detections[row]))
    if not skip_unlabeled or batch.labeled_classes is None:
        return indices
    return indices[has_class(batch.labeled_classes[row], batch.detection_classes[row, indices])]


def has_class(k_hot: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Whether a k-hot vector [K] has each class, ids from 1; ids above K are not in it."""
    is_in_range = (classes >= 1) & (classes <= len(k_hot))
    is_set: np.ndarray = is_in_range & (
        np.asarray(k_hot)[np.where(is_in_range, classes - 1, 0)] == 1
    )
    return is_set


class Metrics(Protocol):
    """A set of metrics, accumulated over one evaluation."""

    names: List[str]
    needs: FrozenSet[str]  # fields of `EvaluatedBatch` without which it cannot be computed
    num_keypoints: int  # that a box must have; 0 for sets that use none

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds one batch, as arrays."""

    def results(self) -> Dict[str, float]:
        """The value of every name in `names`; starts a new evaluation."""


# A maker gets `EvalConfig` and the categories: dictionaries with "id" (from 1), "name",
# "keypoints" where the label map lists them, and "frequency" where it says that.
MetricsMaker = Callable[[Any, Sequence[Dict[str, Any]]], Metrics]

METRICS: Registry[MetricsMaker] = Registry("metrics set")
# Makers of the member that is set in an entry of `eval_config.parameterized_metric`, from that
# member, the field of the entry and the categories.
PARAMETERIZED: Registry[Callable[[Any, str, Sequence[Dict[str, Any]]], Metrics]] = Registry(
    "parameterized metric"
)
# Name of a metrics set -> the fields of `eval_config` that it uses.
EVAL_FIELDS: Dict[str, Tuple[str, ...]] = {}
# Names of metrics sets that need more of a label map than names.
NEED_LABEL_MAP: Set[str] = set()
DEFAULT_METRICS = "coco_detection_metrics"
NO_NEEDS: FrozenSet[str] = frozenset()


def register(
    *names: str, eval_fields: Collection[str] = (), needs_label_map: bool = False
) -> Callable[[MetricsMaker], MetricsMaker]:
    """Decorator that enters the maker of a set under its name and its other names.

    Args:
        eval_fields: The fields of `eval_config` that the set uses.
        needs_label_map: True if it needs the keypoints or frequencies in a label map.
    """
    if needs_label_map:
        NEED_LABEL_MAP.update(names)
    EVAL_FIELDS.update(dict.fromkeys(names, tuple(eval_fields)))

    def enter(maker: MetricsMaker) -> MetricsMaker:
        for name in names:  # for `parameterized_metric { custom { … } }`
            PARAMETERIZED.custom(name)(maker)
        return METRICS.register(*names)(maker)

    return enter


def chosen_metrics(eval_config: Any) -> List[str]:
    """Names of the metrics sets that an `EvalConfig` asks for, each set once under its first name.

    Names that are not known are among them.
    """
    chosen: Dict[Any, str] = {}
    for name in eval_config.metrics_set:
        chosen.setdefault(METRICS.get(name) if name in METRICS else name, name)
    return list(chosen.values()) or [DEFAULT_METRICS]


def make_named_metrics(
    eval_config: Any, categories: Sequence[Dict[str, Any]]
) -> List[Tuple[str, Metrics]]:
    """Like `make_metrics`, each with the field of the configuration that asks for it.

    The text can begin an error, e.g. "eval_config.metrics_set: 'coco_mask_metrics'".
    """
    named = [
        (f"eval_config.metrics_set: {name!r}", METRICS.get(name)(eval_config, categories))
        for name in chosen_metrics(eval_config)
    ]
    for index, entry in enumerate(eval_config.parameterized_metric):
        field = f"eval_config.parameterized_metric[{index}]"
        if entry.HasField("custom"):
            metrics = PARAMETERIZED.custom_function(entry.custom)(eval_config, categories)
        else:
            metrics = PARAMETERIZED.make_chosen(
                entry, "parameterized_metric", field, field, categories
            )
        for earlier_name, before in named:
            if set(metrics.names) & set(before.names):
                raise ConfigError(
                    field,
                    f"{metrics.names[0]!r} is given twice, here and by {earlier_name}",
                    "remove one",
                )
        named.append((f"{field}: {entry.WhichOneof('parameterized_metric')!r}", metrics))
    return named


def make_metrics(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> List[Metrics]:
    """The metrics that an `EvalConfig` asks for; COCO box metrics if it names no set."""
    return [metrics for _, metrics in make_named_metrics(eval_config, categories)]


def add_to_all(sets: Sequence[Metrics], batch: EvaluatedBatch) -> None:
    """Adds one batch of arrays to several sets; its masks are encoded once for all of them."""
    if isinstance(batch.masks, Masks):
        boxes = batch.detection_boxes
        counts = (batch.num_detections, batch.num_boxes)
        batch = batch._replace(masks=encode_masks(batch.masks, boxes, *counts))
    for metrics in sets:
        metrics.add(batch)

"""Inputs and results of detection metrics.

Metrics are plain Python objects: they take batches as arrays, and return their values once.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
)

import numpy as np

from estimator_det.config import plugins
from estimator_det.config.facts import is_class_agnostic, predicts_keypoints, predicts_masks
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.config.registry import Registry
from estimator_det.config.rules import missing_choice, rules
from estimator_det.errors import ConfigError, Problem, UsageError, error
from estimator_det.protos import eval_pb2, pipeline_pb2
from model_fn.evaluation.metrics.run_lengths import RunLengths

# Fields of `EvaluatedBatch`
_OF_CLASSES = ("labeled_classes", "verified_negatives", "not_exhaustive")
_OF_BOXES = {"is_crowd": bool, "area": np.float64, "difficult": bool, "group_of": bool}


class EvaluatedBatch(NamedTuple):
    """Detections beside groundtruth in pixels of the original image; classes from 1.

    Rows past the count of an image are padding of any content. Fields that a batch lacks are None.
    """

    detection_boxes: Any  # float32 [B, N, 4]
    detection_scores: Any  # float32 [B, N]
    detection_classes: Any  # int32 [B, N]
    num_detections: Any  # int32 [B]
    boxes: Any  # float32 [B, G, 4]
    classes: Any  # int32 [B, G]
    num_boxes: Any  # int32 [B]
    is_crowd: Any = None  # bool [B, G]
    area: Any = None  # float32 [B, G], pixels squared; 0 means the area of the box
    difficult: Any = None  # bool [B, G]
    group_of: Any = None  # bool [B, G]
    labeled_classes: Any = None  # float32 [B, K], 1: all boxes of the class are given
    masks: Any = None  # `RunLengths`
    keypoints: Any = None  # float32 [B, G, P, 2], y and x; NaN where absent
    keypoint_visibilities: Any = None  # bool [B, G, P]
    detection_keypoints: Any = None  # float32 [B, N, P, 2]
    detection_keypoint_scores: Any = None  # float32 [B, N, P]
    verified_negatives: Any = None  # float32 [B, K], 1: the class is certainly absent
    not_exhaustive: Any = None  # float32 [B, K], 1: some of the class may lack a box

    def images(self) -> Iterator[EvaluatedBatch]:
        """Each image of a batch of arrays: its fields without the first dimension and padding.

        Flags and areas of boxes are zeros if the batch has none.
        """
        batch = self._replace(masks=None)
        for name, dtype in _OF_BOXES.items():
            values = getattr(self, name)
            zeros = np.zeros(np.shape(self.classes), dtype)
            batch = batch._replace(**{name: zeros if values is None else values.astype(dtype)})
        for row in range(len(self.num_boxes)):
            fields = {k: values[row] for k, values in batch._asdict().items() if values is not None}
            for name in fields:
                if name.startswith("detection_"):
                    fields[name] = fields[name][: fields["num_detections"]]
                elif not name.startswith("num_") and name not in _OF_CLASSES:
                    fields[name] = fields[name][: fields["num_boxes"]]
            if self.masks is not None:
                fields["masks"] = RunLengths(*(masks[row] for masks in self.masks))
            yield EvaluatedBatch(**fields)

    def with_detections(self, chosen: np.ndarray) -> EvaluatedBatch:
        """An image of `images` with some of its detections: bool [N], or indices in a new order."""
        indices = np.arange(len(self.detection_scores))[chosen]
        fields = {
            name: values[indices]
            for name, values in self._asdict().items()
            if name.startswith("detection_") and values is not None
        }
        if self.masks is not None:
            detected = [self.masks.detections[i] for i in indices]
            fields["masks"] = self.masks._replace(detections=detected)
        return self._replace(num_detections=len(indices), **fields)


def has_class(k_hot: Optional[np.ndarray], classes: np.ndarray) -> np.ndarray:
    """True for the classes, ids from 1, in a k-hot vector [K]; False for all without a vector."""
    if k_hot is None:
        return np.zeros(len(classes), bool)
    return np.isin(classes, np.flatnonzero(np.asarray(k_hot) == 1) + 1)


class Scope(NamedTuple):
    """The objects that a metric counts; they explain a value that is -1, 0 or NaN."""

    category: Optional[str] = None  # the only class that counts
    area: str = ""  # "small", "medium" or "large" where only objects of this area count
    absent: str = "no groundtruth box counts for it"  # reason for no value in spite of boxes
    verb: str = "overlaps"  # relation of a detection and the box that it finds


EVERY_OBJECT = Scope()


class Metrics(Protocol):
    """A set of metrics, accumulated over one evaluation.

    An attribute `scopes` has the `Scope` of names for which not all objects count.
    """

    needs: FrozenSet[str]  # fields of `EvaluatedBatch` without which it cannot be computed
    num_keypoints: int  # that a box must have; 0 for sets that use none

    @property
    def names(self) -> List[str]:
        """Names of the results."""

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds one batch, as arrays."""

    def results(self) -> Dict[str, float]:
        """The value of every name in `names`; nothing is added after it."""


# A maker gets `EvalConfig` and the categories: dictionaries with "id" (from 1), "name",
# "keypoints" where the label map lists them, and "frequency" where it says that.
MetricsMaker = Callable[[Any, Sequence[Dict[str, Any]]], Metrics]


@dataclasses.dataclass(frozen=True)
class MetricsSet:
    """Entry of a metrics set: its maker, what it uses, and how its values compare."""

    make: MetricsMaker
    eval_fields: FrozenSet[str]  # fields of `eval_config`
    needs_label_map: bool  # true if it needs the keypoints or frequencies in a label map
    lower_is_better: FrozenSet[str]  # metrics whose lowest value is the best; highest of others

    def __call__(
        self, eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
    ) -> Metrics:
        return self.make(eval_config, categories)


METRICS: Registry[MetricsSet] = Registry("metrics set", chosen_by="EvalConfig.metrics_set")
# Makers of the member that is set in an entry of `eval_config.parameterized_metric`, from that
# member, the field of the entry and the categories.
PARAMETERIZED: Registry[Callable[[Any, str, Sequence[Dict[str, Any]]], Metrics]] = Registry(
    "parameterized metric",
    chosen_by="ParameterizedMetric.parameterized_metric",
    arguments=("eval_config", "categories"),
)
NO_NEEDS: FrozenSet[str] = frozenset()
_MEMBERS = ("names", "needs", "num_keypoints", "add", "results")


def register(
    *names: str,
    eval_fields: Collection[str] = (),
    needs_label_map: bool = False,
    lower_is_better: Collection[str] = (),
) -> Callable[[MetricsMaker], MetricsMaker]:
    """Decorator that enters the maker of a `MetricsSet` under its name and its other names."""
    plugins.require_names("lower_is_better", lower_is_better)
    plugins.require_names("eval_fields", eval_fields, eval_pb2.EvalConfig.DESCRIPTOR.fields_by_name)

    def enter(maker: MetricsMaker) -> MetricsMaker:
        # The two registries below are called from this module, not from the maker's.
        plugins.note_registration(sys._getframe(1).f_globals["__name__"])
        for name in names:  # for `parameterized_metric { custom { … } }`
            PARAMETERIZED.custom(name)(maker)
        fields, lower = frozenset(eval_fields), frozenset(lower_is_better)
        METRICS.register(*names)(MetricsSet(maker, fields, needs_label_map, lower))
        return maker

    return enter


def chosen_metrics(eval_config: eval_pb2.EvalConfig) -> List[str]:
    """Names of the metrics sets that an `EvalConfig` asks for, each set once under its first name.

    Names that are not known are among them.
    """
    chosen: Dict[Any, str] = {}
    for name in eval_config.metrics_set:
        chosen.setdefault(METRICS.get(name) if name in METRICS else name, name)
    return list(chosen.values()) or ["coco_detection_metrics"]


def lowest_is_best(eval_config: eval_pb2.EvalConfig) -> FrozenSet[str]:
    """The metrics whose sets say that their lowest value is the best."""
    customs = [entry.custom.name for entry in eval_config.parameterized_metric]
    chosen = [*chosen_metrics(eval_config), *filter(None, customs)]
    return frozenset().union(*(METRICS.get(name).lower_is_better for name in chosen))


class NamedMetrics(NamedTuple):
    """A metrics set, and the field of the configuration that asks for it."""

    field: str
    name: str
    metrics: Metrics


def _make(
    maker: MetricsMaker,
    eval_config: eval_pb2.EvalConfig,
    categories: Sequence[Dict[str, Any]],
    what: str,
) -> Metrics:
    """The metrics of a maker; UsageError if it, or what it makes, is not as a plug-in must be."""
    message, remedy = plugins.wrong_arguments(maker, PARAMETERIZED.arguments)
    if message:
        raise UsageError(f"{what}: {message}. Remedy: {remedy}")
    metrics = maker(eval_config, categories)
    missing = [name for name in _MEMBERS if not hasattr(metrics, name)]
    if missing:
        raise UsageError(
            f"{what}: its function returns {type(metrics).__name__}, which has no "
            f"{' and no '.join(missing)}. Remedy: return an object with {', '.join(_MEMBERS)}"
        )
    plugins.require_names(f"{what}: needs", metrics.needs, EvaluatedBatch._fields)
    return metrics


def make_named_metrics(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> List[NamedMetrics]:
    """Like `make_metrics`, each with its field."""
    named, sets = [], list(eval_config.metrics_set)
    for name in chosen_metrics(eval_config):
        place = f"[{sets.index(name)}]" if sets else ""
        field = f"eval_config.metrics_set{place}"
        metrics = _make(METRICS.get(name).make, eval_config, categories, f"{field}: {name!r}")
        named.append(NamedMetrics(field, name, metrics))
    for index, entry in enumerate(eval_config.parameterized_metric):
        field = f"eval_config.parameterized_metric[{index}]"
        if entry.HasField("custom"):
            maker = PARAMETERIZED.custom_function(entry.custom)
            metrics = _make(maker, eval_config, categories, f"{field}: {entry.custom.name!r}")
        else:
            metrics = PARAMETERIZED.make_chosen(entry, field, categories)
        name = str(entry.WhichOneof("parameterized_metric"))
        named.append(NamedMetrics(field, name, metrics))
    places: Dict[str, str] = {}
    for each in named:
        for name in each.metrics.names:
            if places.setdefault(name, each.field) != each.field:
                what = f"{name!r} is given twice, here and by {places[name]}"
                raise ConfigError.at(each.field, what, "remove one, or rename the metric if yours")
    return named


def make_metrics(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> List[Metrics]:
    """The metrics that an `EvalConfig` asks for; COCO box metrics if it names no set."""
    return [each.metrics for each in make_named_metrics(eval_config, categories)]


@rules(eval_pb2.EvalConfig)
def _check_fields(config: eval_pb2.EvalConfig, at: str) -> Iterator[Problem]:
    """A warning for each field that none of the chosen sets uses."""
    chosen = chosen_metrics(config)
    sets = {name: METRICS.get(name) for name in METRICS}
    names = sorted({field for each in sets.values() for field in each.eval_fields})
    for field in non_default_fields(config, names):
        users = sorted(name for name, each in sets.items() if field in each.eval_fields)
        if not any(name in users for name in chosen):
            yield no_effect(f"{at}.{field}", f"only {', '.join(users)} use it")
    if (
        not config.image_classes_field_map_empty_to_ones
        and not config.skip_predictions_for_unlabeled_class
        and not any(name.startswith("oid_challenge") for name in config.metrics_set)
    ):
        yield no_effect(
            f"{at}.image_classes_field_map_empty_to_ones",
            "skip_predictions_for_unlabeled_class is not set, and no oid_challenge_… metrics are "
            "chosen",
        )


rules(eval_pb2.ParameterizedMetric)(missing_choice)


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_mask_metrics(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    asks_for_masks = any(
        part in name
        for name in config.eval_config.metrics_set
        for part in ("mask", "segm", "panoptic")
    )
    if asks_for_masks and not predicts_masks(config.model):
        yield error(
            "eval_config.metrics_set",
            f"asks for mask metrics, and model.{config.model.WhichOneof('model')} finds boxes only",
            "remove the mask metrics, or use faster_rcnn with number_of_stages: 3, and "
            "load_instance_masks in the readers",
        )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_labels(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    if config.eval_config.skip_predictions_for_unlabeled_class and is_class_agnostic(config.model):
        what = "needs classes of detections, and a first stage alone finds none"
        yield error("eval_config.skip_predictions_for_unlabeled_class", what, "set it to false")


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_keypoint_metrics(
    config: pipeline_pb2.TrainEvalPipelineConfig, _: str
) -> Iterator[Problem]:
    """Metrics of keypoints need a model that finds them and readers that load them."""
    evaluation = config.eval_config
    field = "eval_config.parameterized_metric"
    if not any(
        entry.HasField("coco_keypoint_metrics") for entry in evaluation.parameterized_metric
    ):
        field = "eval_config.metrics_set"
        if not any("keypoint" in name for name in evaluation.metrics_set):
            return
    if not predicts_keypoints(config.model):
        yield error(
            field,
            f"asks for metrics of keypoints, and model.{config.model.WhichOneof('model')} finds "
            "boxes only",
            "remove it, or use center_net with a keypoint_estimation_task",
        )
    for index, reader in enumerate(config.eval_input_reader):
        if not reader.num_keypoints:
            path = f"eval_input_reader[{index}].num_keypoints"
            yield error(path, f"is 0, but {field} asks for metrics of keypoints", "set it")

"""COCO keypoint metrics of classes (https://cocodataset.org/#keypoints-eval)."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from estimator_det.errors import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics.base import PARAMETERIZED, EvaluatedBatch, Scope, register
from model_fn.evaluation.metrics.coco import ALL, AT_50, AT_75, Summary, area_name
from model_fn.evaluation.metrics.coco_matching import CocoMatches, ImageObjects
from model_fn.evaluation.metrics.overlaps import box_objects, keypoint_similarity

NAME = "coco_keypoint_metrics"
DEFAULT_SIGMA = 0.05
MAX_DETECTIONS = 20  # detections of an image
_AREAS = ("all", "medium", "large")
# The recall names are the Object Detection API's, which says detections where it has thresholds:
# AR@1 is the mean over all thresholds, AR@10 that at 0.5 and AR@100 that at 0.75, of 20 detections
# each.
SUMMARIES: Dict[str, Summary] = {
    "Precision/mAP": Summary("precision", ALL, 0),
    "Precision/mAP@.50IOU": Summary("precision", AT_50, 0),
    "Precision/mAP@.75IOU": Summary("precision", AT_75, 0),
    "Precision/mAP (medium)": Summary("precision", ALL, 1),
    "Precision/mAP (large)": Summary("precision", ALL, 2),
    "Recall/AR@1": Summary("recall", ALL, 0),
    "Recall/AR@10": Summary("recall", AT_50, 0),
    "Recall/AR@100": Summary("recall", AT_75, 0),
    "Recall/AR@100 (medium)": Summary("recall", ALL, 1),
    "Recall/AR@100 (large)": Summary("recall", ALL, 2),
}


class _Class(NamedTuple):
    """A class with keypoints."""

    class_id: int
    points: List[int]  # ids of its P keypoints, ascending
    sigmas: np.ndarray  # [P], of its keypoints
    matches: CocoMatches


class CocoKeypointMetrics:
    """Average precision and recall of classes, with object keypoint similarity as the overlap.

    Objects without a labeled keypoint and crowds are ignored. A keypoint is labeled if its
    visibility is not 0 and its coordinates are numbers.

    Args:
        categories: With "id", "name", and "keypoints": dictionaries with "id" and "name".
        sigmas: Standard deviation of keypoints by name, as a share of the object's size; of
            others, `DEFAULT_SIGMA`.
    """

    prefix = "Keypoints_"
    needs = frozenset({"keypoints", "detection_keypoints"})

    def __init__(
        self, categories: Sequence[Mapping[str, Any]], sigmas: Optional[Mapping[str, float]] = None
    ) -> None:
        self._classes: List[_Class] = []
        self.scopes: Dict[str, Scope] = {}
        for category in categories:
            points = {int(point["id"]): str(point["name"]) for point in category["keypoints"]}
            point_sigmas = np.array(
                [(sigmas or {}).get(points[k], DEFAULT_SIGMA) for k in sorted(points)]
            )
            class_id, name = int(category["id"]), str(category["name"])
            matches = CocoMatches([class_id], _AREAS, [MAX_DETECTIONS])
            self._classes.append(_Class(class_id, sorted(points), point_sigmas, matches))
            for kind, summary in SUMMARIES.items():
                self.scopes[f"{self.prefix}{kind} ByCategory/{name}"] = Scope(
                    name,
                    area_name(_AREAS, summary.area),
                    absent="no object of this class has a labeled keypoint",
                    verb="resembles",
                )
        self.names = list(self.scopes)
        self.num_keypoints = max((each.points[-1] + 1 for each in self._classes), default=0)

    def add(self, batch: EvaluatedBatch) -> None:
        for image in batch.images():
            for each in self._classes:
                is_of_class = image.detection_classes == each.class_id
                each.matches.add(_objects(image.with_detections(is_of_class), each))

    def results(self) -> Dict[str, float]:
        tables = [each.matches.finish() for each in self._classes]
        values = [summary.of(table) for table in tables for summary in SUMMARIES.values()]
        return dict(zip(self.names, values))


def _objects(image: EvaluatedBatch, each: _Class) -> ImageObjects:
    true = image.keypoints[:, each.points]
    labeled = np.isfinite(true).all(axis=2)
    if image.keypoint_visibilities is not None:
        labeled &= image.keypoint_visibilities[:, each.points] > 0
    detected, boxes = image.detection_keypoints[:, each.points], box_objects(image)
    return boxes._replace(
        is_ignored=boxes.is_crowd | ~labeled.any(axis=1),
        overlaps=keypoint_similarity(
            detected, true, labeled, image.boxes, boxes.true_areas, each.sigmas
        ),
    )


def _check_sigmas(field: str, category: Mapping[str, Any], sigmas: Mapping[str, float]) -> None:
    known: List[str] = sorted(str(point["name"]) for point in category["keypoints"])
    for name, sigma in sigmas.items():
        if name not in known:
            raise ConfigError.at(
                f"{field}.keypoint_label_to_sigmas[{name}]",
                f"class {category['name']!r} has no such keypoint in the label map",
                f"name one of {known}",
            )
        if not 0 < sigma < np.inf:
            raise ConfigError.at(
                f"{field}.keypoint_label_to_sigmas[{name}]",
                f"is {sigma:g}",
                "give a number above 0",
            )


@PARAMETERIZED.register(NAME)
def _make_for_class(
    config: eval_pb2.CocoKeypointMetrics, field: str, categories: Sequence[Dict[str, Any]]
) -> CocoKeypointMetrics:
    field = f"{field}.{NAME}"
    categories_by_name = {str(category["name"]): category for category in categories}
    name = config.class_label
    if name not in categories_by_name:
        known = sorted(categories_by_name)
        raise ConfigError.at(
            f"{field}.class_label",
            f"{name!r} is no class of the label map",
            f"name one of {known}",
        )
    if not categories_by_name[name].get("keypoints"):
        raise ConfigError.at(
            f"{field}.class_label",
            f"class {name!r} has no keypoints in the label map",
            'list them there: keypoints { id: 0 label: "nose" }',
        )
    sigmas = dict(config.keypoint_label_to_sigmas)
    _check_sigmas(field, categories_by_name[name], sigmas)
    return CocoKeypointMetrics([categories_by_name[name]], sigmas)


@register(NAME, needs_label_map=True)
def _make_for_all(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> CocoKeypointMetrics:
    entries = eval_config.parameterized_metric
    chosen = {
        entry.coco_keypoint_metrics.class_label
        for entry in entries
        if entry.HasField("coco_keypoint_metrics")
    }
    having = [c for c in categories if c.get("keypoints") and c["name"] not in chosen]
    if not having and not chosen:
        raise ConfigError.at(
            "eval_config.metrics_set",
            f"{NAME!r} needs a label map whose classes have keypoints",
            'list them there: keypoints { id: 0 label: "nose" }',
        )
    return CocoKeypointMetrics(having)

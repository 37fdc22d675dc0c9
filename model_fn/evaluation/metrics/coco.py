"""COCO metrics of boxes and masks (https://cocodataset.org/#detection-eval)."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from estimator_det.errors import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics.base import (
    EVERY_OBJECT,
    NO_NEEDS,
    EvaluatedBatch,
    Scope,
    has_class,
    register,
)
from model_fn.evaluation.metrics.coco_matching import AREAS, CocoMatches, Tables, mean_known
from model_fn.evaluation.metrics.overlaps import box_objects, mask_objects

# Thresholds of `coco_matching.THRESHOLDS`.
ALL, AT_50, AT_75 = slice(None), slice(0, 1), slice(5, 6)


class Summary(NamedTuple):
    """One number of an evaluation: where it is in `Tables`."""

    table: str
    thresholds: slice
    area: int  # index in `areas` of the matches
    limit: int = -1  # index in `limits`, for recall

    def of(self, tables: Tables, categories: Any = ALL) -> float:
        """The mean over the thresholds, recalls and categories that have groundtruth."""
        if self.table == "recall":
            return mean_known(tables.recall[self.thresholds, categories, self.area, self.limit])
        return mean_known(tables.precision[self.thresholds, :, categories, self.area])


# In the order of pycocotools; areas are all, small, medium, large, limits 1, 10, 100.
SUMMARIES: Dict[str, Summary] = {
    "Precision/mAP": Summary("precision", ALL, 0),
    "Precision/mAP@.50IOU": Summary("precision", AT_50, 0),
    "Precision/mAP@.75IOU": Summary("precision", AT_75, 0),
    "Precision/mAP (small)": Summary("precision", ALL, 1),
    "Precision/mAP (medium)": Summary("precision", ALL, 2),
    "Precision/mAP (large)": Summary("precision", ALL, 3),
    "Recall/AR@1": Summary("recall", ALL, 0, 0),
    "Recall/AR@10": Summary("recall", ALL, 0, 1),
    "Recall/AR@100": Summary("recall", ALL, 0, 2),
    "Recall/AR@100 (small)": Summary("recall", ALL, 1, 2),
    "Recall/AR@100 (medium)": Summary("recall", ALL, 2, 2),
    "Recall/AR@100 (large)": Summary("recall", ALL, 3, 2),
}
MEAN = SUMMARIES["Precision/mAP"]


def area_name(areas: Sequence[str], index: int) -> str:
    """Area of a `Scope`; the first of `areas` is "all"."""
    return areas[index] if index else ""


class CocoBoxMetrics:
    """Average precision and recall of boxes; crowds and boxes of other categories are ignored.

    Args:
        per_category: Adds the mAP of every category.
        all_per_category: Adds every other summary of every category and super-category.
        super_categories: Super-category -> names of its categories; adds their mean mAP.
        skip_unlabeled: Drops detections of classes that are not annotated in the image.
    """

    prefix = "DetectionBoxes_"
    needs = NO_NEEDS
    objects = staticmethod(box_objects)
    num_keypoints = 0
    summaries = SUMMARIES
    limits: Sequence[int] = (1, 10, 100)  # detections of an image and category that count

    def __init__(
        self,
        categories: Sequence[Mapping[str, Any]],
        *,
        per_category: bool = False,
        all_per_category: bool = False,
        super_categories: Dict[str, List[str]] | None = None,
        skip_unlabeled: bool = False,
    ) -> None:
        self._skip_unlabeled = skip_unlabeled
        names = {int(c["id"]): str(c["name"]) for c in categories}
        self._matches = CocoMatches(list(names), limits=self.limits)
        # Name of a metric -> its summary, and the categories in the tables.
        self._summaries: Dict[str, Tuple[Summary, Any]] = {}
        self.scopes: Dict[str, Scope] = {}
        self._add_all(self.summaries, "", ALL)
        positions = {names[number]: k for k, number in enumerate(sorted(names))}
        details = SUMMARIES if all_per_category else {}
        for name, position in positions.items() if per_category else ():
            scope = Scope(category=name)
            self._add_all({f"PerformanceByCategory/mAP/{name}": MEAN}, "", [position], scope)
            self._add_all(details, f" ByCategory/{name}", [position], scope)
        for name, members in (super_categories or {}).items() if per_category else ():
            unknown = sorted(set(members) - positions.keys())
            if unknown:
                raise ConfigError.at(
                    f"eval_config.super_categories[{name}]",
                    f"{unknown} are not in the label map",
                    f"give some of {sorted(positions)}",
                )
            chosen = [positions[member] for member in members]
            self._add_all({f"PerformanceBySuperCategory/{name}": MEAN}, "", chosen)
            self._add_all(details, f" BySuperCategory/{name}", chosen)

    def _add_all(
        self,
        summaries: Mapping[str, Summary],
        suffix: str,
        categories: Any,
        scope: Scope = EVERY_OBJECT,
    ) -> None:
        for end, summary in summaries.items():
            name = f"{self.prefix}{end}{suffix}"
            self._summaries[name] = (summary, categories)
            self.scopes[name] = scope._replace(area=area_name(tuple(AREAS), summary.area))

    @property
    def names(self) -> List[str]:
        return list(self._summaries)

    def add(self, batch: EvaluatedBatch) -> None:
        for image in batch.images():
            if self._skip_unlabeled and image.labeled_classes is not None:
                is_labeled = has_class(image.labeled_classes, image.detection_classes)
                image = image.with_detections(is_labeled)
            self._matches.add(self.objects(image))

    def results(self) -> Dict[str, float]:
        tables = self._matches.finish()
        return {name: each.of(tables, columns) for name, (each, columns) in self._summaries.items()}


class CocoMaskMetrics(CocoBoxMetrics):
    """COCO metrics of masks at the size of the original image."""

    prefix = "DetectionMasks_"
    needs = frozenset({"masks"})
    objects = staticmethod(mask_objects)


_PER_CATEGORY_FIELDS = (
    "include_metrics_per_category",
    "all_metrics_per_category",
    "super_categories",
)


def _per_category_options(eval_config: eval_pb2.EvalConfig) -> Dict[str, Any]:
    """Arguments of the class from `_PER_CATEGORY_FIELDS` of an `EvalConfig`."""
    return {
        "per_category": eval_config.include_metrics_per_category,
        "all_per_category": eval_config.all_metrics_per_category,
        "super_categories": {
            name: [member.strip() for member in members.split(",")]
            for name, members in eval_config.super_categories.items()
        },
    }


@register(
    "coco_detection_metrics",
    eval_fields=(*_PER_CATEGORY_FIELDS, "skip_predictions_for_unlabeled_class"),
)
def _make_boxes(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> CocoBoxMetrics:
    return CocoBoxMetrics(
        categories,
        skip_unlabeled=eval_config.skip_predictions_for_unlabeled_class,
        **_per_category_options(eval_config),
    )


@register("coco_mask_metrics", eval_fields=_PER_CATEGORY_FIELDS)
def _make_masks(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> CocoMaskMetrics:
    return CocoMaskMetrics(categories, **_per_category_options(eval_config))

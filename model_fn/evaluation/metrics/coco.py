"""COCO metrics of boxes and masks (https://cocodataset.org/#detection-eval), by pycocotools."""

from __future__ import annotations

import contextlib
import io
import logging
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from estimator_det.config.text import ConfigError
from model_fn.evaluation.metrics.base import EVAL_FIELDS, METRICS, EvaluatedBatch, detections_of

_LOG = logging.getLogger(__name__)

# In the order of pycocotools' summary.
SUMMARY_NAMES = (
    "Precision/mAP",
    "Precision/mAP@.50IOU",
    "Precision/mAP@.75IOU",
    "Precision/mAP (small)",
    "Precision/mAP (medium)",
    "Precision/mAP (large)",
    "Recall/AR@1",
    "Recall/AR@10",
    "Recall/AR@100",
    "Recall/AR@100 (small)",
    "Recall/AR@100 (medium)",
    "Recall/AR@100 (large)",
)

# Index of each summary in pycocotools' tables: IoU thresholds, areas (all, small, medium, large),
# detections per image (1, 10, 100).
_ALL, _AT_50, _AT_75 = slice(None), slice(0, 1), slice(5, 6)
_TABLE_INDICES: Tuple[Tuple[str, slice, int, int], ...] = (
    ("precision", _ALL, 0, 2),
    ("precision", _AT_50, 0, 2),
    ("precision", _AT_75, 0, 2),
    ("precision", _ALL, 1, 2),
    ("precision", _ALL, 2, 2),
    ("precision", _ALL, 3, 2),
    ("recall", _ALL, 0, 0),
    ("recall", _ALL, 0, 1),
    ("recall", _ALL, 0, 2),
    ("recall", _ALL, 1, 2),
    ("recall", _ALL, 2, 2),
    ("recall", _ALL, 3, 2),
)


def _by_category(summary_name: str, category: str) -> str:
    return f"{summary_name} ByCategory/{category}"


def _mean_known(values: Sequence[float]) -> float:
    """Mean of the values that are not -1, pycocotools' mark for no groundtruth; else -1."""
    known = [value for value in values if value > -1]
    return float(np.mean(known)) if known else -1.0


class CocoBoxMetrics:
    """Average precision and recall of boxes; crowd regions are ignored.

    Args:
        categories: Dictionaries with "id" (from 1) and "name"; boxes of other ids are ignored.
        per_category: Adds the mAP of every category.
        all_per_category: Adds every other summary of every category.
        super_categories: Super-category -> names of its categories; adds their mean mAP.
        skip_unlabeled: Drops detections of classes that are not annotated in the image.
    """

    prefix = "DetectionBoxes_"
    iou_type = "bbox"  # of pycocotools

    def __init__(
        self,
        categories: Sequence[Dict[str, Any]],
        *,
        per_category: bool = False,
        all_per_category: bool = False,
        super_categories: Dict[str, List[str]] | None = None,
        skip_unlabeled: bool = False,
    ) -> None:
        self._skip_unlabeled = skip_unlabeled
        self._categories: List[Dict[str, Any]] = [
            {"id": int(c["id"]), "name": str(c["name"])} for c in categories
        ]
        self._per_category = per_category
        self._all_per_category = per_category and all_per_category
        self._super_categories = dict(super_categories or {}) if per_category else {}
        self._check_super_categories()
        self.names = [self.prefix + name for name in SUMMARY_NAMES]
        if per_category:
            named = [category["name"] for category in self._categories]
            suffixes = [f"PerformanceByCategory/mAP/{name}" for name in named]
            if self._all_per_category:
                suffixes += [_by_category(s, name) for name in named for s in SUMMARY_NAMES]
            suffixes += [f"PerformanceBySuperCategory/{name}" for name in self._super_categories]
            # Categories of the same name share an entry.
            self.names += [self.prefix + suffix for suffix in dict.fromkeys(suffixes)]
        self._reset()

    def _check_super_categories(self) -> None:
        known = {category["name"] for category in self._categories}
        for name, members in self._super_categories.items():
            unknown = sorted(set(members) - known)
            if unknown:
                raise ConfigError(
                    f"eval_config.super_categories[{name!r}]: {unknown} are not in the label map; "
                    f"known: {sorted(known)}"
                )

    def _reset(self) -> None:
        self._images: List[Dict[str, Any]] = []
        self._groundtruth: List[Dict[str, Any]] = []
        self._detections: List[Dict[str, Any]] = []

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds one batch of arrays; every image counts as a new one."""
        for row in range(len(batch.num_boxes)):
            self._images.append({"id": len(self._images) + 1, **self.image_entry(batch, row)})
            shared = {"image_id": len(self._images), "iscrowd": 0}
            found = detections_of(batch, row, skip_unlabeled=self._skip_unlabeled)
            for i, entry in enumerate(self.groundtruth_entries(batch, row)):
                self._groundtruth.append({**shared, **entry, "id": len(self._groundtruth) + 1})
                if batch.is_crowd is not None:
                    self._groundtruth[-1]["iscrowd"] = int(batch.is_crowd[row, i])
                if batch.area is not None and batch.area[row, i] > 0:
                    self._groundtruth[-1]["area"] = float(batch.area[row, i])
            for i, entry in zip(found, self.detection_entries(batch, row, found)):
                entry["score"] = float(batch.detection_scores[row, i])
                self._detections.append({**shared, **entry, "id": len(self._detections) + 1})

    def image_entry(self, batch: EvaluatedBatch, row: int) -> Dict[str, Any]:
        """What pycocotools needs to know of an image besides its id."""
        del batch, row
        return {}

    def groundtruth_entries(self, batch: EvaluatedBatch, row: int) -> List[Dict[str, Any]]:
        """An image's annotations, without `is_crowd` and a given area."""
        count = int(batch.num_boxes[row])
        return _entries(batch.boxes[row, :count], batch.classes[row, :count])

    def detection_entries(
        self, batch: EvaluatedBatch, row: int, found: np.ndarray
    ) -> List[Dict[str, Any]]:
        """Annotations of an image's detections `found`, int [n], without scores."""
        return _entries(batch.detection_boxes[row, found], batch.detection_classes[row, found])

    def results(self) -> Dict[str, float]:
        """Value by name, -1 for a metric without groundtruth; starts a new evaluation."""
        self._warn_without_groundtruth()
        evaluation = self._evaluate()
        self._reset()
        results = {
            self.prefix + name: float(value) for name, value in zip(SUMMARY_NAMES, evaluation.stats)
        }
        if self._per_category:
            results.update(self._category_results(evaluation.eval))
        return results

    def _warn_without_groundtruth(self) -> None:
        ids = {category["id"] for category in self._categories}
        if not any(entry["category_id"] in ids for entry in self._groundtruth):
            _LOG.warning(
                "COCO metrics are -1: none of the %d groundtruth boxes of the %d images has a "
                "class of the label map (ids %s). Check eval_input_reader's records and label map",
                len(self._groundtruth),
                len(self._images),
                sorted(ids)[:10],
            )

    def _evaluate(self) -> Any:
        # Imported here, because training does not need it.
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        def index(annotations: List[Dict[str, Any]]) -> Any:
            data = COCO()
            data.dataset = {
                "images": self._images,
                "categories": self._categories,
                "annotations": annotations,
            }
            data.createIndex()
            return data

        with contextlib.redirect_stdout(io.StringIO()):
            groundtruth, detections = index(self._groundtruth), index(self._detections)
            evaluation = COCOeval(groundtruth, detections, self.iou_type)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        return evaluation

    def _category_results(self, tables: Dict[str, np.ndarray]) -> Dict[str, float]:
        results: Dict[str, float] = {}
        # pycocotools orders categories by id.
        ordered = sorted(self._categories, key=lambda category: category["id"])
        for k, category in enumerate(ordered):
            values = [
                _mean_known(np.ravel(tables[table][iou, ..., k, area, count]).tolist())
                for table, iou, area, count in _TABLE_INDICES
            ]
            name = category["name"]
            results[f"{self.prefix}PerformanceByCategory/mAP/{name}"] = values[0]
            if self._all_per_category:
                for summary, value in zip(SUMMARY_NAMES, values):
                    results[self.prefix + _by_category(summary, name)] = value
        for name, members in self._super_categories.items():
            results[f"{self.prefix}PerformanceBySuperCategory/{name}"] = _mean_known(
                [results[f"{self.prefix}PerformanceByCategory/mAP/{m}"] for m in members]
            )
        return results


def _entries(boxes: np.ndarray, classes: np.ndarray) -> List[Dict[str, Any]]:
    """COCO annotations of boxes in pixels: [x, y, width, height], with class and area."""
    sizes = boxes[:, 2:] - boxes[:, :2]
    return [
        {
            "category_id": int(category),
            "bbox": [float(x), float(y), float(width), float(height)],
            "area": float(width * height),
        }
        for (y, x), (height, width), category in zip(boxes[:, :2], sizes, classes)
    ]


PER_CATEGORY_FIELDS = (
    "include_metrics_per_category",
    "all_metrics_per_category",
    "super_categories",
)
EVAL_FIELDS["coco_detection_metrics"] = (
    *PER_CATEGORY_FIELDS,
    "skip_predictions_for_unlabeled_class",
)


def per_category_options(eval_config: Any) -> Dict[str, Any]:
    """Arguments of the class from `PER_CATEGORY_FIELDS` of an `EvalConfig`."""
    return {
        "per_category": eval_config.include_metrics_per_category,
        "all_per_category": eval_config.all_metrics_per_category,
        "super_categories": {
            name: [member.strip() for member in members.split(",")]
            for name, members in eval_config.super_categories.items()
        },
    }


@METRICS.register("coco_detection_metrics")
def _make(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> CocoBoxMetrics:
    return CocoBoxMetrics(
        categories,
        skip_unlabeled=eval_config.skip_predictions_for_unlabeled_class,
        **per_category_options(eval_config),
    )

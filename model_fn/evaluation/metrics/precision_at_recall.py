"""Average precision at IoU 0.5 within a range of recall, as the reference computes it.

It is the PASCAL VOC metric (Everingham et al., "The PASCAL Visual Object Classes Challenge: A
Retrospective", 2015) on the part of each precision/recall curve that lies in the range.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from estimator_det.config.text import ConfigError
from model_fn.evaluation.metrics.base import (
    EVAL_FIELDS,
    METRICS,
    EvaluatedBatch,
    detections_of,
)

MATCH_IOU = 0.5


class PrecisionAtRecall:
    """AP of each category, and their mean over the categories with groundtruth.

    Difficult boxes and detections that match them do not count. A category without groundtruth
    has NaN.

    Args:
        categories: Dictionaries with "id" (from 1) and "name"; boxes of other ids are ignored.
        recall_range: Least and greatest recall of the curve's points that count.
        skip_unlabeled: Drops detections of classes that are not annotated in the image.

    Raises:
        ConfigError: if the range is not within 0 to 1, or its ends are in the wrong order.
    """

    prefix = "PrecisionAtRecallBoxes_"

    def __init__(
        self,
        categories: Sequence[Dict[str, Any]],
        recall_range: Tuple[float, float] = (0.0, 1.0),
        *,
        skip_unlabeled: bool = False,
    ) -> None:
        low, high = recall_range
        if not 0.0 <= low <= high <= 1.0:
            raise ConfigError(
                f"eval_config.recall_lower_bound: is {low:g}, and recall_upper_bound is {high:g}; "
                "both must be within 0 and 1, and the upper one not below the lower one"
            )
        self._names = {int(c["id"]): str(c["name"]) for c in categories}
        self._range = recall_range
        self._skip_unlabeled = skip_unlabeled
        bounds = "" if recall_range == (0.0, 1.0) else f"@[{low:.1f},{high:.1f}]Recall"
        self._mean_name = f"{self.prefix}Precision/mAP@{MATCH_IOU}IOU{bounds}"
        self.names = [self._mean_name, *map(self._name_of, self._names)]
        self._reset()

    def _name_of(self, class_id: int) -> str:
        name = self._names[class_id]
        return f"{self.prefix}PerformanceByCategory/AP@{MATCH_IOU}IOU/{name}"

    def _reset(self) -> None:
        # Score and hit of each detection that counts, by class.
        self._scores: Dict[int, List[float]] = {k: [] for k in self._names}
        self._hits: Dict[int, List[bool]] = {k: [] for k in self._names}
        self._num_boxes: Dict[int, int] = dict.fromkeys(self._names, 0)

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds one batch of arrays."""
        for row, num_boxes in enumerate(batch.num_boxes):
            found = detections_of(batch, row, skip_unlabeled=self._skip_unlabeled)
            difficult = np.zeros(num_boxes, bool)
            if batch.difficult is not None:
                difficult = np.asarray(batch.difficult[row, :num_boxes], bool)
            for class_id in self._names:
                of_class = batch.classes[row, :num_boxes] == class_id
                mine = found[batch.detection_classes[row, found] == class_id]
                self._num_boxes[class_id] += int(np.sum(of_class & ~difficult))
                self._add_image(
                    class_id,
                    batch.detection_boxes[row, mine],
                    batch.detection_scores[row, mine],
                    batch.boxes[row, :num_boxes][of_class],
                    difficult[of_class],
                )

    def _add_image(
        self,
        class_id: int,
        detections: np.ndarray,
        scores: np.ndarray,
        boxes: np.ndarray,
        difficult: np.ndarray,
    ) -> None:
        """Matches each detection, best score first, to the box that it overlaps most."""
        taken = np.zeros(len(boxes), bool)
        overlaps = _iou(detections, boxes)
        proper = np.all(detections[:, :2] < detections[:, 2:], axis=1)
        for i in np.argsort(-scores, kind="stable"):
            if not proper[i]:
                continue
            best = int(np.argmax(overlaps[i])) if len(boxes) else -1
            matches = best >= 0 and overlaps[i, best] >= MATCH_IOU
            if matches and difficult[best]:
                continue
            self._scores[class_id].append(float(scores[i]))
            self._hits[class_id].append(bool(matches and not taken[best]))
            if matches:
                taken[best] = True

    def results(self) -> Dict[str, float]:
        """Value by name; starts a new evaluation."""
        results = {self._name_of(k): self._average_precision(k) for k in self._names}
        known = [value for value in results.values() if not np.isnan(value)]
        results[self._mean_name] = float(np.mean(known)) if known else float("nan")
        self._reset()
        return results

    def _average_precision(self, class_id: int) -> float:
        total = self._num_boxes[class_id]
        if total == 0:
            return float("nan")
        order = np.argsort(-np.array(self._scores[class_id]), kind="stable")
        hits = np.cumsum(np.array(self._hits[class_id], float)[order])
        recall, precision = hits / total, hits / np.arange(1, len(hits) + 1)
        low, high = self._range
        inside = (recall >= low) & (recall <= high)
        return _area(recall[inside], precision[inside])


def _area(recall: np.ndarray, precision: np.ndarray) -> float:
    """Area below the curve from recall 0, with precision the best one at this recall or above."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def _iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[n, 4], [m, 4] -> [n, m]."""
    low = np.maximum(first[:, np.newaxis, :2], second[np.newaxis, :, :2])
    high = np.minimum(first[:, np.newaxis, 2:], second[np.newaxis, :, 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (first, second)]
    union = areas[0][:, np.newaxis] + areas[1][np.newaxis] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


NAME = "precision_at_recall_detection_metrics"
EVAL_FIELDS[NAME] = (
    "recall_lower_bound",
    "recall_upper_bound",
    "skip_predictions_for_unlabeled_class",
)


@METRICS.register(NAME)
def _make(eval_config: Any, categories: Sequence[Dict[str, Any]]) -> PrecisionAtRecall:
    bounds = (eval_config.recall_lower_bound, eval_config.recall_upper_bound)
    return PrecisionAtRecall(
        categories, bounds, skip_unlabeled=eval_config.skip_predictions_for_unlabeled_class
    )

"""Average precision at one IoU, as PASCAL VOC and Open Images define it, and its variants.

(Everingham et al., "The PASCAL Visual Object Classes Challenge: A Retrospective", 2015; rules of
Open Images: https://storage.googleapis.com/openimages/web/evaluation.html.) A detection is compared
with the box that it overlaps most, and with no other. Open Images knows boxes of groups; its
challenges evaluate an image on its classes only: the classes of its boxes, and the classes that a
label of the image declares present or absent.

Letters: N detections of an image, G groundtruth boxes of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, FrozenSet, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np

from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics.base import NO_NEEDS, EvaluatedBatch, Scope, has_class, register
from model_fn.evaluation.metrics.coco_matching import rows_of_classes
from model_fn.evaluation.metrics.overlaps import box_ioa, box_iou, mask_areas, mask_iou

_FALSE, _TRUE, _LEFT_OUT = range(3)  # verdicts on a detection


@dataclasses.dataclass(frozen=True)
class ApOptions:
    """Objects that a metrics set counts, and how."""

    prefix: str
    uses_masks: bool = False  # compares masks; a box without one, all zero, does not count
    is_weighted: bool = False  # the mean has one curve of all classes together
    ignores_difficult: bool = False  # difficult boxes and what matches them do not count
    # None: boxes of groups are like others. Else detections inside the box of a group count as
    # one correct detection of this weight; with 0 they do not count.
    group_of_weight: Optional[float] = None
    # Only detections of classes that the image has boxes of, or a label for.
    of_labeled_classes: bool = False
    # Leaves out detections of classes that are not annotated in the image, where annotated
    # classes are given.
    skip_unlabeled: bool = False
    # Least and greatest recall of the curve's points that count.
    recall_range: Tuple[float, float] = (0.0, 1.0)
    threshold: float = 0.5  # IoU from which a detection matches


class AveragePrecision:
    """AP of each category, and their mean over the categories with groundtruth.

    A category without groundtruth that counts has NaN. Boxes of other categories are ignored.
    """

    num_keypoints = 0

    def __init__(self, categories: Sequence[Mapping[str, Any]], options: ApOptions) -> None:
        names_by_id = {int(c["id"]): str(c["name"]) for c in categories}
        self._ids = np.array(sorted(names_by_id))
        self._options = options
        low, high = options.recall_range
        bounds = "" if (low, high) == (0.0, 1.0) else f"@[{low:.1f},{high:.1f}]Recall"
        self._mean_name = f"{options.prefix}Precision/mAP@{options.threshold}IOU{bounds}"
        start = f"{options.prefix}PerformanceByCategory/AP@{options.threshold}IOU"
        category_names = [names_by_id[k] for k in self._ids.tolist()]
        self._category_names = [f"{start}/{name}" for name in category_names]
        self.scopes = dict(zip(self._category_names, map(Scope, category_names)))
        self.names = list(dict.fromkeys([self._mean_name, *self._category_names]))
        self.needs: FrozenSet[str] = frozenset({"masks"}) if options.uses_masks else NO_NEEDS
        self._num_boxes = np.zeros(len(self._ids))
        # Class index and score of detections that count, and 0 or the weight of a correct one.
        self._counted = [(np.zeros(0, np.int32), np.zeros(0, np.float64), np.zeros(0, np.float32))]

    def add(self, batch: EvaluatedBatch) -> None:
        for image in batch.images():
            self._add_image(image.with_detections(self._is_evaluated(image)))

    def _is_evaluated(self, image: EvaluatedBatch) -> np.ndarray:
        """Bool [N]: the detections that are not ignored."""
        classes, corners = image.detection_classes, image.detection_boxes
        exists: np.ndarray = np.isin(classes, self._ids)
        exists &= (corners[:, :2] < corners[:, 2:]).all(axis=1)
        is_labeled = has_class(image.labeled_classes, classes)
        if self._options.of_labeled_classes:
            exists &= is_labeled | np.isin(classes, image.classes)
        if self._options.skip_unlabeled and image.labeled_classes is not None:
            exists &= is_labeled
        return exists

    def _add_image(self, image: EvaluatedBatch) -> None:
        options, scores = self._options, image.detection_scores
        weight = options.group_of_weight or 0.0
        none = np.zeros(len(image.classes), bool)
        is_difficult = image.difficult if options.ignores_difficult else none
        is_group = none if options.group_of_weight is None else image.group_of
        has_mask, comparisons = ~none, [(_box_overlaps(image), ~none, _TRUE)]
        if options.uses_masks:
            has_mask = mask_areas(image.masks.groundtruth) > 0
            # A detected box without mask, in place of a mask, is neither right nor wrong.
            comparisons = [
                (_mask_overlaps(image), has_mask, _TRUE),
                (_box_overlaps(image), ~has_mask, _LEFT_OUT),
            ]
        counted = np.isin(image.classes, self._ids) & has_mask & ~is_difficult
        box_weights = np.where(is_group, weight, 1.0)[counted]
        rows = np.searchsorted(self._ids, image.classes[counted])
        np.add.at(self._num_boxes, rows, box_weights)

        same = image.detection_classes[:, np.newaxis] == image.classes
        verdicts = np.full(len(scores), _FALSE)
        group_scores = np.zeros(len(image.classes))
        for (iou, cover), is_compared, verdict in comparisons:
            possible = same & is_compared
            detections, boxes = self._matches(iou, possible & ~is_group, verdicts)
            difficult = is_difficult[boxes]
            verdicts[detections[difficult]] = _LEFT_OUT
            detections, boxes = detections[~difficult], boxes[~difficult]
            # The best of several detections finds a box; the others are wrong.
            order = np.argsort(-scores[detections], kind="stable")
            _, first = np.unique(boxes[order], return_index=True)
            verdicts[detections[order[first]]] = verdict
            detections, groups = self._matches(cover, possible & is_group, verdicts)
            verdicts[detections] = _LEFT_OUT
            np.maximum.at(group_scores, groups, scores[detections])
        kept = verdicts != _LEFT_OUT
        self._keep(image.detection_classes[kept], scores[kept], verdicts[kept])
        if weight > 0:
            is_found = has_mask & (group_scores > 0)
            found_scores = group_scores[is_found]
            self._keep(image.classes[is_found], found_scores, np.full(len(found_scores), weight))

    def _matches(
        self, overlaps: np.ndarray, possible: np.ndarray, verdicts: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Detections [n] that match and have no verdict yet, and the box [n] of each.

        `overlaps` and `possible`, the pairs that may match, are [N, G].
        """
        if not overlaps.size:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        overlaps = np.where(possible, overlaps, -1.0)
        reaches = overlaps.max(axis=1) >= self._options.threshold
        detections = np.flatnonzero(reaches & (verdicts == _FALSE))
        return detections, overlaps.argmax(axis=1)[detections]

    def _keep(self, classes: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        rows = np.searchsorted(self._ids, classes).astype(np.int32)
        self._counted.append((rows, scores.astype(np.float64), weights.astype(np.float32)))

    def results(self) -> Dict[str, float]:
        classes, scores, weights = map(np.concatenate, zip(*self._counted))
        rows = rows_of_classes(classes, len(self._ids))
        recalls = self._options.recall_range
        values = {}
        for name, total, mine in zip(self._category_names, self._num_boxes, rows):
            values[name] = _area(scores[mine], weights[mine], total, recalls)
        known = [value for value in values.values() if not np.isnan(value)]
        mean = float(np.mean(known)) if known else float("nan")
        if self._options.is_weighted:
            order = np.argsort(classes, kind="stable")
            pooled = order[self._num_boxes[classes[order]] > 0]
            mean = _area(scores[pooled], weights[pooled], self._num_boxes.sum(), recalls)
        return {self._mean_name: mean, **values}


def _box_overlaps(image: EvaluatedBatch) -> Tuple[np.ndarray, np.ndarray]:
    """IoU, and the part of a detection inside a box; [N, G] each."""
    boxes = image.detection_boxes, image.boxes
    return box_iou(*boxes), box_ioa(*boxes)


def _mask_overlaps(image: EvaluatedBatch) -> Tuple[np.ndarray, np.ndarray]:
    detected, true = image.masks
    return mask_iou(detected, true), mask_iou(detected, true, np.ones(len(true), bool))


def _area(
    scores: np.ndarray, weights: np.ndarray, total: float, recall_range: Tuple[float, float]
) -> float:
    """Area below the curve from recall 0 within the range; NaN without groundtruth.

    The precision of a recall is the best one at this recall or above.
    """
    if total == 0:
        return float("nan")
    # Equal scores: the last one first, like the Object Detection API.
    right = weights[np.argsort(scores, kind="stable")[::-1]].astype(np.float64)
    hits, misses = np.cumsum(right), np.cumsum(right == 0)
    recall, precision = hits / total, hits / (hits + misses)
    low, high = recall_range
    inside = (recall >= low) & (recall <= high)
    best = np.maximum.accumulate(precision[inside][::-1])[::-1]
    return float(np.sum(np.diff(recall[inside], prepend=0.0) * best))


# Names of a set, the set's own first -> what it counts.
SETS = {
    ("pascal_voc_detection_metrics", "pascal_voc_metrics"): ApOptions(
        "PascalBoxes_", ignores_difficult=True
    ),
    ("weighted_pascal_voc_detection_metrics",): ApOptions(
        "WeightedPascalBoxes_", ignores_difficult=True, is_weighted=True
    ),
    ("pascal_voc_instance_segmentation_metrics",): ApOptions(
        "PascalMasks_", ignores_difficult=True, uses_masks=True
    ),
    ("weighted_pascal_voc_instance_segmentation_metrics",): ApOptions(
        "WeightedPascalMasks_", ignores_difficult=True, uses_masks=True, is_weighted=True
    ),
    (
        "oid_V2_detection_metrics",
        "open_images_V2_detection_metrics",
        "open_images_detection_metrics",
        "open_images_metrics",
    ): ApOptions("OpenImagesV2_", group_of_weight=0.0),
    ("oid_challenge_detection_metrics", "oid_challenge_object_detection_metrics"): ApOptions(
        "OpenImagesDetectionChallenge_", group_of_weight=1.0, of_labeled_classes=True
    ),
    ("oid_challenge_segmentation_metrics",): ApOptions(
        "OpenImagesInstanceSegmentationChallenge_",
        uses_masks=True,
        group_of_weight=0.0,
        of_labeled_classes=True,
    ),
}


def _register(names: Sequence[str], options: ApOptions) -> None:
    @register(*names)
    def make(
        eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
    ) -> AveragePrecision:
        del eval_config
        return AveragePrecision(categories, options)


for _names, _options in SETS.items():
    _register(_names, _options)


@rules(eval_pb2.EvalConfig)
def _check_recalls(config: eval_pb2.EvalConfig, at: str) -> Iterator[Problem]:
    low, high = config.recall_lower_bound, config.recall_upper_bound
    if not 0.0 <= low <= high <= 1.0:
        yield error(
            f"{at}.recall_lower_bound",
            f"is {low:g}, and recall_upper_bound is {high:g}",
            "set both within 0 and 1, the upper one not below the lower one",
        )


@register(
    "precision_at_recall_detection_metrics",
    eval_fields=(
        "recall_lower_bound",
        "recall_upper_bound",
        "skip_predictions_for_unlabeled_class",
    ),
)
def _make_within_recalls(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> AveragePrecision:
    """PASCAL VOC's metric on the part of each precision/recall curve within a range of recall."""
    low, high = eval_config.recall_lower_bound, eval_config.recall_upper_bound
    options = ApOptions(
        "PrecisionAtRecallBoxes_",
        ignores_difficult=True,
        skip_unlabeled=eval_config.skip_predictions_for_unlabeled_class,
        recall_range=(low, high),
    )
    return AveragePrecision(categories, options)

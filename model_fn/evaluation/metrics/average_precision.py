"""Average precision at one IoU, as PASCAL VOC and Open Images define it, and its variants.

(Everingham et al., "The PASCAL Visual Object Classes Challenge: A Retrospective", 2015; rules of
groups: https://storage.googleapis.com/openimages/web/evaluation.html.) A detection is compared with
the box that it overlaps most, and with no other.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from model_fn.evaluation.metrics.base import NO_NEEDS, EvaluatedBatch, has_class
from model_fn.evaluation.metrics.coco_matching import joined
from model_fn.evaluation.metrics.overlaps import (
    box_ioa,
    box_iou,
    mask_areas,
    mask_iou,
    masks_of,
)

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
    threshold: float = 0.5  # ioU from which a detection matches


class _Objects(NamedTuple):
    """A batch to match; letters: B images, N detections, G groundtruth boxes."""

    exists: np.ndarray  # bool [B, N], the detections that count
    same_class: np.ndarray  # bool [B, N, G]
    is_true: np.ndarray  # bool [B, G], no padding
    has_mask: np.ndarray  # bool [B, G]
    is_difficult: np.ndarray  # bool [B, G]
    is_group: np.ndarray  # bool [B, G]


class AveragePrecision:
    """AP of each category, and their mean over the categories with groundtruth.

    A category without groundtruth that counts has NaN. Boxes of other categories are ignored.
    """

    num_keypoints = 0

    def __init__(self, categories: Sequence[Mapping[str, Any]], options: ApOptions) -> None:
        self._categories = {int(c["id"]): str(c["name"]) for c in categories}
        self._ids = np.array(sorted(self._categories))
        self._options = options
        low, high = options.recall_range
        bounds = "" if (low, high) == (0.0, 1.0) else f"@[{low:.1f},{high:.1f}]Recall"
        self._mean_name = f"{options.prefix}Precision/mAP@{options.threshold}IOU{bounds}"
        named = list(dict.fromkeys(map(self._name_of, self._categories)))
        self.names = [self._mean_name, *named]
        self.needs: FrozenSet[str] = frozenset({"masks"}) if options.uses_masks else NO_NEEDS
        self._reset()

    def _name_of(self, class_id: int) -> str:
        at = f"AP@{self._options.threshold}IOU"
        return f"{self._options.prefix}PerformanceByCategory/{at}/{self._categories[class_id]}"

    def _reset(self) -> None:
        self._num_boxes = np.zeros(len(self._ids))
        # Columns of detections that count: index of the class, score, and 0 or the verdict
        # a correct one.
        self._classes: List[np.ndarray] = []
        self._scores: List[np.ndarray] = []
        self._weights: List[np.ndarray] = []

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds one batch of arrays."""
        objects = self._objects(batch)
        weight, threshold = self._options.group_of_weight or 0.0, self._options.threshold
        counted = objects.is_true & objects.has_mask & ~objects.is_difficult
        self._count(batch.classes[counted & ~objects.is_group], 1.0)
        self._count(batch.classes[counted & objects.is_group], weight)
        verdicts = np.full(objects.exists.shape, _FALSE)
        verdicts[~objects.exists] = _LEFT_OUT
        masked = objects._replace(is_true=objects.is_true & objects.has_mask)
        iou, cover = self._overlaps(batch, masked.is_true)
        is_correct = _match(batch.detection_scores, masked, iou, verdicts, threshold)
        verdicts[is_correct] = _TRUE
        groups = _match_groups(batch.detection_scores, masked, cover, verdicts, threshold)
        if self._options.uses_masks:
            # A detected box without mask, in place of a mask, is neither right nor wrong.
            boxes = objects._replace(is_true=objects.is_true & ~objects.has_mask)
            iou, cover = _box_overlaps(batch)
            is_correct = _match(batch.detection_scores, boxes, iou, verdicts, threshold)
            verdicts[is_correct] = _LEFT_OUT
            _match_groups(batch.detection_scores, boxes, cover, verdicts, threshold)
        kept = verdicts != _LEFT_OUT
        self._keep(batch.detection_classes[kept], batch.detection_scores[kept], verdicts[kept])
        if weight > 0:
            is_correct = groups > 0
            self._keep(
                batch.classes[is_correct],
                groups[is_correct],
                np.full(int(is_correct.sum()), weight),
            )

    def _objects(self, batch: EvaluatedBatch) -> _Objects:
        options = self._options
        is_true = _present(batch.boxes, batch.num_boxes) & np.isin(batch.classes, self._ids)
        is_difficult = np.zeros(is_true.shape, bool)
        if options.ignores_difficult and batch.difficult is not None:
            is_difficult = np.asarray(batch.difficult, bool)
        is_group = np.zeros(is_true.shape, bool)
        if options.group_of_weight is not None and batch.group_of is not None:
            is_group = np.asarray(batch.group_of, bool)
        has_mask = np.ones(is_true.shape, bool)
        if options.uses_masks:
            for row, masks in enumerate(masks_of(batch).groundtruth):
                has_mask[row, : len(masks)] = mask_areas(masks) > 0
        same_class = batch.detection_classes[:, :, np.newaxis] == batch.classes[:, np.newaxis]
        exists = _present(batch.detection_boxes, batch.num_detections)
        exists &= (batch.detection_boxes[..., :2] < batch.detection_boxes[..., 2:]).all(axis=2)
        exists &= np.isin(batch.detection_classes, self._ids)
        if options.of_labeled_classes:
            has_boxes = (same_class & is_true[:, np.newaxis]).any(axis=2)
            exists &= has_boxes | _is_labeled(batch, default=False)
        if options.skip_unlabeled:
            exists &= _is_labeled(batch, default=True)
        return _Objects(exists, same_class, is_true, has_mask, is_difficult, is_group)

    def _overlaps(
        self, batch: EvaluatedBatch, is_true: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """IoU, and the part of a detection inside a box or mask; [B, N, G] each."""
        if not self._options.uses_masks:
            return _box_overlaps(batch)
        shape = (*batch.detection_scores.shape, is_true.shape[1])
        iou, cover = np.zeros(shape), np.zeros(shape)
        for row, (detected, true) in enumerate(zip(*masks_of(batch))):
            chosen = np.flatnonzero(is_true[row])
            masks = [true[i] for i in chosen]
            iou[row, : len(detected), chosen] = mask_iou(detected, masks).T
            if self._options.group_of_weight is not None:
                every = np.ones(len(masks), bool)
                cover[row, : len(detected), chosen] = mask_iou(detected, masks, every).T
        return iou, cover

    def _count(self, classes: np.ndarray, weight: float) -> None:
        np.add.at(self._num_boxes, np.searchsorted(self._ids, classes), weight)

    def _keep(self, classes: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        self._classes.append(np.searchsorted(self._ids, classes).astype(np.int32))
        self._scores.append(scores.astype(np.float64))
        self._weights.append(weights.astype(np.float32))

    def results(self) -> Dict[str, float]:
        """Value by name; starts a new evaluation."""
        classes, scores = joined(self._classes, np.int32), joined(self._scores, np.float64)
        weights = joined(self._weights, np.float32)
        order = np.argsort(classes, kind="stable")
        ends = np.searchsorted(classes[order], np.arange(len(self._ids)), side="right")
        values, recalls = {}, self._options.recall_range
        for k, mine in enumerate(np.split(order, ends)[: len(self._ids)]):
            name = self._name_of(int(self._ids[k]))
            values[name] = _area(scores[mine], weights[mine], self._num_boxes[k], recalls)
        known = [value for value in values.values() if not np.isnan(value)]
        mean = float(np.mean(known)) if known else float("nan")
        if self._options.is_weighted:
            pooled = order[self._num_boxes[classes[order]] > 0]
            mean = _area(scores[pooled], weights[pooled], self._num_boxes.sum(), recalls)
        self._reset()
        return {self._mean_name: mean, **values}


def _match(
    scores: np.ndarray,
    objects: _Objects,
    iou: np.ndarray,
    verdicts: np.ndarray,
    threshold: float,
) -> np.ndarray:
    """Bool [B, N]: the best detection of each box; leaves out those of difficult boxes."""
    is_correct = np.zeros(verdicts.shape, bool)
    if not iou.shape[2]:
        return is_correct
    possible = objects.same_class & (objects.is_true & ~objects.is_group)[:, np.newaxis]
    best, reaches = _best(iou, possible, threshold)
    reaches &= verdicts == _FALSE
    difficult = reaches & np.take_along_axis(objects.is_difficult, best, axis=1)
    verdicts[difficult] = _LEFT_OUT
    row, column = np.nonzero(reaches & ~difficult)
    order = np.argsort(-scores[row, column], kind="stable")
    row, column = row[order], column[order]
    _, first = np.unique(row * iou.shape[2] + best[row, column], return_index=True)
    is_correct[row[first], column[first]] = True
    return is_correct


def _match_groups(
    scores: np.ndarray,
    objects: _Objects,
    cover: np.ndarray,
    verdicts: np.ndarray,
    threshold: float,
) -> np.ndarray:
    """Best score inside each group, [B, G], 0 for none; leaves out all detections inside."""
    possible = objects.same_class & (objects.is_true & objects.is_group)[:, np.newaxis]
    best, reaches = _best(cover, possible, threshold)
    reaches &= verdicts == _FALSE
    verdicts[reaches] = _LEFT_OUT
    num_found = np.zeros(objects.is_true.shape)
    row, column = np.nonzero(reaches)
    np.maximum.at(num_found, (row, best[row, column]), scores[row, column])
    return num_found


def _best(
    overlaps: np.ndarray, possible: np.ndarray, threshold: float
) -> Tuple[np.ndarray, np.ndarray]:
    """The box that each detection overlaps most, [B, N], and whether that is enough."""
    if not overlaps.shape[2]:
        nothing = np.zeros(overlaps.shape[:2], np.int64)
        return nothing, nothing.astype(bool)
    overlaps = np.where(possible, overlaps, -1.0)
    best = overlaps.argmax(axis=2)
    most = np.take_along_axis(overlaps, best[..., np.newaxis], axis=2)[..., 0]
    return best, most >= threshold


def _area(
    scores: np.ndarray, weights: np.ndarray, total: float, recall_range: Tuple[float, float]
) -> float:
    """Area below the curve from recall 0 within the range; NaN without groundtruth.

    The precision of a recall is the best one at this recall or above.
    """
    if total == 0:
        return float("nan")
    # Equal scores: the last one first, like the reference.
    right = weights[np.argsort(scores, kind="stable")[::-1]].astype(np.float64)
    hits, misses = np.cumsum(right), np.cumsum(right == 0)
    recall, precision = hits / total, hits / (hits + misses)
    low, high = recall_range
    inside = (recall >= low) & (recall <= high)
    best = np.maximum.accumulate(precision[inside][::-1])[::-1]
    return float(np.sum(np.diff(recall[inside], prepend=0.0) * best))


def _present(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Bool [B, n]: which rows of [B, n, …] are no padding."""
    return np.arange(rows.shape[1]) < np.asarray(counts)[:, np.newaxis]


def _is_labeled(batch: EvaluatedBatch, *, default: bool) -> np.ndarray:
    """Bool [B, N]: whether the class of a detection is annotated in its image."""
    shape = batch.detection_classes.shape
    if batch.labeled_classes is None:
        return np.full(shape, default)
    pairs = zip(batch.labeled_classes, batch.detection_classes)
    return np.array([has_class(k_hot, classes) for k_hot, classes in pairs]).reshape(shape)


def _box_overlaps(batch: EvaluatedBatch) -> Tuple[np.ndarray, np.ndarray]:
    pair = batch.detection_boxes, batch.boxes
    return box_iou(*pair), box_ioa(*pair)

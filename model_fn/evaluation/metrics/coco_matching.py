"""COCO's matching and its tables of precision and recall, for any kind of overlap.

The rules come from pycocotools' COCOeval. Its memory grows with images x categories x areas;
here each image is matched when it is added, and 24 bytes of each detection stay.

Letters: N detections of an image, G groundtruth objects of it, A areas, T thresholds, R recalls,
K categories, M limits of detections per image.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
# The tolerance of COCOeval: rounding must not miss an overlap of 1.
_LIMITS = np.minimum(THRESHOLDS, 1 - 1e-10)
# Areas in pixels squared, both ends included, by COCO's names.
AREAS: Dict[str, Tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}


class ImageObjects(NamedTuple):
    """Detections and objects of one image that are matched."""

    scores: np.ndarray  # [N]
    categories: np.ndarray  # int [N], ids
    areas: np.ndarray  # [N], pixels squared
    true_categories: np.ndarray  # int [G], ids
    true_areas: np.ndarray  # [G], pixels squared
    is_crowd: np.ndarray  # bool [G]
    is_ignored: np.ndarray  # bool [G], crowds included
    overlaps: np.ndarray  # [N, G], of whatever categories
    keeps_unmatched: Optional[np.ndarray] = None  # bool [N], False: only counts if it matches


class Tables(NamedTuple):
    """-1 where no groundtruth counts."""

    precision: np.ndarray  # [T, R, K, A], at the largest of the limits
    recall: np.ndarray  # [T, K, A, M]


class CocoMatches:
    """Matches of an evaluation, image by image.

    Args:
        category_ids: Objects of other ids are ignored.
        areas: Names in `AREAS`, the first of which is "all".
        limits: Detections of an image and category that count, ascending.
    """

    def __init__(
        self,
        category_ids: Sequence[int],
        areas: Sequence[str] = tuple(AREAS),
        limits: Sequence[int] = (1, 10, 100),
    ) -> None:
        self._ids = np.unique(np.asarray(category_ids, np.int64))
        self._ranges = np.array([AREAS[name] for name in areas])
        self._limits = tuple(limits)
        self._width = 2 * len(areas) * len(THRESHOLDS)  # flags of a detection
        self._counts = np.zeros((len(self._ids), len(self._ranges)), np.int64)
        # Category row, rank within it, score and flags of the detections of each image.
        empty = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float64)
        self._detections = [(*empty, np.zeros((0, (self._width + 7) // 8), np.uint8))]

    def add(self, image: ImageObjects) -> None:
        known = np.isin(image.true_categories, self._ids)
        ignored = image.is_ignored[known] | self._outside(image.true_areas[known])
        rows = np.searchsorted(self._ids, image.true_categories[known])
        np.add.at(self._counts, rows, ~ignored.T)
        chosen = np.argsort(-image.scores, kind="stable")
        chosen = chosen[np.isin(image.categories[chosen], self._ids)]
        rows = np.searchsorted(self._ids, image.categories[chosen])
        ranks = _ranks(rows)
        is_counted = ranks < self._limits[-1]
        chosen, rows, ranks = chosen[is_counted], rows[is_counted], ranks[is_counted]
        same = image.categories[chosen, np.newaxis] == image.true_categories[known]
        overlaps = np.where(same, image.overlaps[chosen][:, known], -1.0)
        matched = greedy_match(
            overlaps,
            _LIMITS,
            is_ignored=ignored,
            is_crowd=image.is_crowd[known],
            last_of_equal=True,  # the order of COCOeval
        )
        is_matched = matched >= 0
        is_left_out = self._outside(image.areas[chosen])
        if image.keeps_unmatched is not None:
            is_left_out = is_left_out | ~image.keeps_unmatched[chosen]
        # The last column is for detections without a match, whose column is -1.
        columns = np.pad(ignored, [(0, 0), (0, 1)])[:, np.newaxis]
        ignored_match = np.take_along_axis(columns, matched, axis=2)
        is_ignored = np.where(is_matched, ignored_match, is_left_out[:, np.newaxis])
        flags = np.stack([is_matched & ~is_ignored, ~is_matched & ~is_ignored])
        packed = np.packbits(flags.reshape(self._width, len(chosen)).T, axis=1)
        scores = np.asarray(image.scores[chosen], np.float64)
        self._detections.append((rows.astype(np.int32), ranks.astype(np.int32), scores, packed))

    def _outside(self, areas: np.ndarray) -> np.ndarray:
        """Areas [n] -> bool [A, n]."""
        low, high = self._ranges.T[:, :, np.newaxis]
        return (areas < low) | (areas > high)

    def finish(self) -> Tables:
        """Tables of what was added."""
        sizes = (len(THRESHOLDS), len(RECALLS), len(self._ids), len(self._ranges))
        precision = -np.ones(sizes)
        recall = -np.ones((sizes[0], sizes[2], sizes[3], len(self._limits)))
        categories, ranks, scores, flags = map(np.concatenate, zip(*self._detections))
        for k, mine in enumerate(rows_of_classes(categories, len(self._ids))):
            mine = mine[np.argsort(-scores[mine], kind="stable")]
            bits = np.unpackbits(flags[mine], axis=1, count=self._width)
            hits, misses = bits.T.reshape(2, sizes[3], sizes[0], len(mine))
            present = np.flatnonzero(self._counts[k])
            totals = self._counts[k, present, np.newaxis, np.newaxis]
            for m, limit in enumerate(self._limits):
                counts = hits[present][..., ranks[mine] < limit].sum(axis=2, keepdims=True)
                recall[:, k, present, m] = (counts / totals)[..., 0].T
            right, wrong = (np.cumsum(x[present], axis=2, dtype=np.float64) for x in (hits, misses))
            recalls, shares = right / totals, right / (wrong + right + np.spacing(1))
            for row, t in np.ndindex(*right.shape[:2]):
                curve = precision_at_recalls(recalls[row, t], shares[row, t])
                precision[t, :, k, present[row]] = curve
        return Tables(precision, recall)


def greedy_match(
    overlaps: np.ndarray,
    thresholds: Any,
    *,
    is_ignored: Optional[np.ndarray] = None,
    is_crowd: Optional[np.ndarray] = None,
    last_of_equal: bool = False,
) -> np.ndarray:
    """Column of the object that each detection takes, -1 for none: int [A, T, N].

    The rule that all metrics but VOC's share: in the order given, each detection takes the free
    object of the largest overlap that reaches the threshold, which NaN never does. Metrics differ
    in the order of detections, in crowds and ignored objects, and in equal overlaps.

    Args:
        overlaps: [N, G], detections in the order in which they take objects.
        thresholds: Ascending, [T].
        is_ignored: bool [A, G]; an ignored object is taken only if no other one reaches the
            threshold. None for a single row without ignored objects.
        is_crowd: bool [G]; a crowd stays free when it is taken. None without crowds.
        last_of_equal: Of objects with the same overlap the last one is taken, not the first.
    """
    num_objects = overlaps.shape[1]
    ignored = np.zeros((1, num_objects), bool) if is_ignored is None else is_ignored
    crowd = np.zeros(num_objects, bool) if is_crowd is None else is_crowd
    limits = np.asarray(thresholds)[:, np.newaxis]
    matched = np.full((len(ignored), len(limits), len(overlaps)), -1)
    if not num_objects:
        return matched
    free = np.ones((len(ignored), len(limits), num_objects), bool)
    rows, columns = np.ogrid[: len(ignored), : len(limits)]
    # Most detections overlap few objects or none: skipping the others is what makes this fast.
    is_near = overlaps >= limits[0]
    for i in np.flatnonzero(is_near.any(axis=1)):
        near = np.flatnonzero(is_near[i])
        possible = free[..., near] & (overlaps[i, near] >= limits)
        proper = possible & ~ignored[:, np.newaxis, near]
        possible = np.where(proper.any(axis=2, keepdims=True), proper, possible)
        values = np.where(possible, overlaps[i, near], -1.0)
        if last_of_equal:
            best = near[len(near) - 1 - values[..., ::-1].argmax(axis=2)]
        else:
            best = near[values.argmax(axis=2)]
        is_taken = possible.any(axis=2)
        matched[:, :, i] = np.where(is_taken, best, -1)
        free[rows, columns, best] &= ~is_taken | crowd[best]
    return matched


def mean_known(values: np.ndarray) -> float:
    """Mean of the values above -1, which marks what has no groundtruth; else -1."""
    known = values[values > -1]
    return float(known.mean()) if known.size else -1.0


def _ranks(groups: np.ndarray) -> np.ndarray:
    """Number of equal entries before each entry [n]."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return ranks


def rows_of_classes(classes: np.ndarray, num_classes: int) -> List[np.ndarray]:
    """Rows of each class in their order, from the index of the class of each row [n]."""
    order = np.argsort(classes, kind="stable")
    return np.split(order, np.searchsorted(classes[order], np.arange(1, num_classes)))


def precision_at_recalls(recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Curve [n] by rising recall -> largest precision at `RECALLS` or above; 0 if not reached."""
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return best[np.searchsorted(recall, RECALLS, side="left")]

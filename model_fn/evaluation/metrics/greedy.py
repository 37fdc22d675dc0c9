"""Greedy matching of detections with groundtruth: the rule that all metrics but VOC's share.

In the order given, each detection takes the free object of the largest overlap that reaches the
threshold; what is taken is no longer free. Metrics differ in the order of detections, in crowds and
ignored objects, and in what they do with equal overlaps.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

Array = np.ndarray[Any, Any]


def greedy_match(
    overlaps: Array,
    thresholds: Any,
    *,
    is_ignored: Optional[Array] = None,
    is_crowd: Optional[Array] = None,
    last_of_equal: bool = False,
) -> Array:
    """Column of the object that each detection takes, -1 for none: int [A, T, N].

    NaN reaches no threshold.

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
    # Most detections overlap nothing: skipping them is what makes this fast.
    for i in np.flatnonzero((overlaps >= limits[0]).any(axis=1)):
        possible = free & (overlaps[i] >= limits)
        proper = possible & ~ignored[:, np.newaxis]
        possible = np.where(proper.any(axis=2, keepdims=True), proper, possible)
        values = np.where(possible, overlaps[i], -1.0)
        if last_of_equal:
            best = num_objects - 1 - values[..., ::-1].argmax(axis=2)
        else:
            best = values.argmax(axis=2)
        is_taken = possible.any(axis=2)
        matched[:, :, i] = np.where(is_taken, best, -1)
        free[rows, columns, best] &= ~is_taken | crowd[best]
    return matched

"""Reliability of scores: the precision of detections beside their score.

A detection of score 0.8 is calibrated if 80 % of such detections are correct.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

import numpy as np

from model_fn.drawing import charts

Array = np.ndarray[Any, Any]

NUM_BINS = 15  # bins of the expected calibration error, of equal width


class Reliability(NamedTuple):
    """Precision by score, in `NUM_BINS` bins of equal width over 0 to 1."""

    counts: Array  # int [bins], detections
    scores: Array  # float [bins], their mean; 0 in an empty bin
    precisions: Array  # float [bins], 0 in an empty bin

    @property
    def expected_error(self) -> float:
        """The expected calibration error: mean over detections of |precision - score| of a bin."""
        gaps = np.abs(self.precisions - self.scores)
        return float(np.sum(gaps * self.counts) / max(np.sum(self.counts), 1))


def precision_by_score(scores: Array, correct: Array) -> Reliability:
    """Precision by score of detections [n]; scores are within 0 to 1."""
    bins = np.minimum((np.asarray(scores, np.float64) * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    counts = np.bincount(bins, minlength=NUM_BINS)
    least_one = np.maximum(counts, 1)
    return Reliability(
        counts,
        np.bincount(bins, scores, NUM_BINS) / least_one,
        np.bincount(bins, correct, NUM_BINS) / least_one,
    )


def reliability_chart(title: str, curves: Mapping[str, Reliability]) -> charts.Panel:
    """Precision by score for each name of the legend."""
    lines = [
        charts.Curve(name, curve.scores[curve.counts > 0], curve.precisions[curve.counts > 0])
        for name, curve in curves.items()
    ]
    return charts.curves(
        title,
        [*lines, charts.Curve("precision = score", [0.0, 1.0], [0.0, 1.0])],
        x_label="score",
        y_label="precision",
        limits=(0, 1, 0, 1.02),
        legend="upper left",
    )

"""Labels that a detector contradicts: candidates for a second look by a person.

Near an extra label, no detection reaches the threshold of the best F1; half of it is enough for a
detection that says that a label is missing, of another class or shifted. Strengths of two kinds do
not compare, so cases are ranked by how rare they are: their suspicion is the share of agreement
among all cases at least as strong. A detector that often misses objects says little by missing one.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

from model_fn.evaluation.matching import MATCH_IOU, Array, ClassMatches, MatchedImage
from model_fn.evaluation.metrics.overlaps import box_iou
from model_fn.evaluation.score_thresholds import best_f1

# A detection that overlaps a label less than this has nothing to do with it.
NEAR_IOU = 0.1
DOUBT = 0.5  # share of the threshold that a detection needs to contradict a label
SHARE, LEAST, MOST = 0.2, 50, 300  # cases that are kept: a share of the labels, within limits

MISSING = "missing label"  # a detection without a label
EXTRA = "extra label"  # a label without a detection
WRONG_CLASS = "wrong class"
SHIFTED = "shifted box"
KINDS = (MISSING, EXTRA, WRONG_CLASS, SHIFTED)

# `box` and `name` describe the label: its box and class. `detection` and `detected` are the box and
# class of the detection. A missing label has the number -1; `score` of an extra label is the best
# score of a detection near it.
_CASE = np.dtype(
    [
        ("kind", np.int8), ("strength", np.float32), ("image", np.int64), ("label", np.int32),
        ("name", np.int32), ("box", np.float32, 4), ("score", np.float32), ("iou", np.float32),
        ("detected", np.int32), ("detection", np.float32, 4),
    ]
)  # fmt: skip


class LabelFaults:
    """Collects the contradictions of an evaluation, and ranks them at its end."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._cases: List[Array] = [np.zeros(0, _CASE)]

    def add(self, number: int, image: MatchedImage) -> None:
        """Adds an image by its number in the evaluation."""
        self._cases += find_cases(number, image)

    def results(self, matches: ClassMatches) -> List[Dict[str, Any]]:
        """JSON values, most suspicious first; each label once.

        Args:
            matches: The matches of all classes together.
        """
        cases = np.concatenate(self._cases)
        suspicions = suspicions_of(cases, matches)
        count = int(np.clip(matches.num_boxes * SHARE, LEAST, MOST))
        kept: List[Dict[str, Any]] = []
        seen = set()
        for row in np.argsort(-suspicions, kind="stable"):
            case = cases[row]
            label = int(case["image"]), int(case["label"])
            if len(kept) == count or suspicions[row] <= 0:
                break
            if case["label"] >= 0 and label in seen:
                continue
            seen.add(label)
            kept.append(self._entry(case, float(suspicions[row])))
        return kept

    def _entry(self, case: Any, suspicion: float) -> Dict[str, Any]:
        entry = {
            "kind": KINDS[case["kind"]], "suspicion": round(suspicion, 4),
            "image": int(case["image"]), "label": None, "detection": None,
        }  # fmt: skip
        if case["label"] >= 0:
            entry["label"] = {
                "number": int(case["label"]), "class": self._names[case["name"]],
                "box": _rounded(case["box"]),
            }  # fmt: skip
        if KINDS[case["kind"]] != EXTRA:
            entry["detection"] = {
                "class": self._names[case["detected"]], "score": round(float(case["score"]), 4),
                "iou": round(float(case["iou"]), 3), "box": _rounded(case["detection"]),
            }  # fmt: skip
        return entry


def _rounded(box: Array) -> List[float]:
    return [round(side, 1) for side in box.tolist()]


def find_cases(number: int, image: MatchedImage) -> List[Array]:
    """The cases of each kind in an image, weak ones included."""
    scores, counted = image.scores[:, np.newaxis], image.is_counted
    same = image.classes[:, np.newaxis] == image.true_classes
    hit, near = image.iou >= MATCH_IOU, image.iou >= NEAR_IOU
    best_near = np.where(near, scores, 0).max(axis=0, initial=0)
    best_same = np.where(hit & same, scores, 0).max(axis=0, initial=0)
    # The best detection of an object speaks for all, also if it misses the label.
    is_repeat = (box_iou(image.boxes, image.boxes) >= MATCH_IOU) & (scores < image.scores)
    speaks = (image.matched < 0) & ~is_repeat.any(axis=1)
    speaks &= ~(hit & same).any(axis=1) & ~image.is_excused.any(axis=1)
    is_free = counted.copy()
    is_free[image.matched[image.matched >= 0]] = False

    def cases(kind: str, rows: Array, labels: Array, strengths: Array) -> Array:
        table = np.zeros(len(strengths), _CASE)
        table["kind"], table["image"], table["strength"] = (
            KINDS.index(kind),
            number,
            strengths,
        )
        table["label"] = -1
        if labels.size:
            table["label"], table["name"] = labels, image.true_classes[labels]
            table["box"] = image.true_boxes[labels]
        if rows.size:
            table["score"], table["detected"] = (
                image.scores[rows],
                image.classes[rows],
            )
            table["detection"] = image.boxes[rows]
            table["iou"] = image.iou[rows].max(axis=1, initial=0)
        return table

    none, labels = np.zeros(0, int), np.flatnonzero(counted)
    extra = cases(EXTRA, none, labels, 1 - best_near[labels])
    extra["score"] = best_near[labels]
    result = [extra]
    for kind, meets in (
        (WRONG_CLASS, hit & ~same & counted),
        (SHIFTED, near & same & is_free),
    ):
        rows = np.flatnonzero(speaks & meets.any(axis=1))
        labels = np.where(meets, image.iou, -1)[rows].argmax(axis=1) if rows.size else none
        result.append(cases(kind, rows, labels, image.scores[rows] - best_same[labels]))
        speaks[rows] = False
    rows = np.flatnonzero(speaks)
    overlaps = image.iou[rows].max(axis=1, initial=0)
    return [*result, cases(MISSING, rows, none, image.scores[rows] * (1 - overlaps))]


def suspicions_of(cases: Array, matches: ClassMatches) -> Array:
    """Suspicion of each case, 0 to 1; 0 for those that contradict no label.

    Args:
        matches: The matches of all classes together.
    """
    suspicions = np.zeros(len(cases))
    threshold = best_f1("", matches).threshold
    if threshold is None:
        return suspicions
    agreements = np.sort(matches.scores[matches.correct])
    for kind, name in enumerate(KINDS):
        rows = np.flatnonzero(cases["kind"] == kind)
        rows = rows[np.argsort(cases["strength"][rows], kind="stable")]
        strengths = cases["strength"][rows]
        against = len(rows) - np.searchsorted(strengths, strengths, "left")
        if name == EXTRA:
            support = np.full(len(rows), len(agreements))
        else:
            support = len(agreements) - np.searchsorted(agreements, strengths, "left")
        # No detection agrees above the strongest case; that makes it no less suspicious.
        shares = np.maximum.accumulate(support / np.maximum(support + against, 1))
        scores = cases["score"][rows]
        is_clear = scores < threshold if name == EXTRA else scores >= DOUBT * threshold
        suspicions[rows] = np.where(is_clear, shares, 0)
    return suspicions

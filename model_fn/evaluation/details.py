"""Details of an evaluation for a report of the run: curves, confusion, mistakes, missed objects.

Each evaluation writes them as `details-STEP.json` beside its thresholds. An image is known by its
number in the evaluation, which reads its records in the same order each time.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import UsageError
from estimator_det.files import json_lines
from model_fn.evaluation.matching import MATCH_IOU, Array, MatchedImage
from model_fn.evaluation.metrics.overlaps import box_area

EXAMPLES = 8  # mistakes and missed objects that are kept, one of each kind from an image
MAX_BOXES = 20  # detections and boxes of each example
# A wrong detection that overlaps a box of its class this much has found it, in a wrong place.
NEAR_IOU = 0.1

DUPLICATE, MISPLACED = "duplicate", "misplaced"
OTHER_CLASS, BACKGROUND = "other class", "background"


class _Example(NamedTuple):
    rank: float  # score of a mistake, area of a missed object
    number: int  # number of the image
    image: MatchedImage
    row: int  # its detection or its box


class Examples:
    """Collects examples of an evaluation.

    An object is missed if no detection of `min_score` or more finds it.
    """

    def __init__(self, names: Sequence[str], min_score: float) -> None:
        self._names, self._min_score = names, min_score
        self._mistakes: List[_Example] = []
        self._missed: List[_Example] = []

    def add(self, number: int, image: MatchedImage) -> None:
        wrong = np.flatnonzero(image.counts & (image.matched < 0))
        if len(wrong):
            # One mistake of an image, so that a crowded image does not fill the list.
            first = int(wrong[np.argmax(image.scores[wrong])])
            self._mistakes.append(_Example(float(image.scores[first]), number, image, first))
        hits = image.matched[image.scores >= self._min_score]
        is_missed = image.is_counted.copy()
        is_missed[hits[hits >= 0]] = False
        missed = np.flatnonzero(is_missed)
        if len(missed):
            areas = box_area(image.true_boxes)
            largest = int(missed[np.argmax(areas[missed])])
            self._missed.append(_Example(float(areas[largest]), number, image, largest))
        for kept in (self._mistakes, self._missed):
            kept.sort(key=lambda example: -example.rank)  # stable: of equal ones the first stay
            del kept[EXAMPLES:]

    def results(self) -> Dict[str, List[Dict[str, Any]]]:
        """JSON values: `mistakes`, most confident ones first; `missed` objects, largest first."""
        kinds = {"mistakes": (self._mistakes, self._mistake), "missed": (self._missed, self._miss)}
        return {
            name: [
                {"rank": rank, **describe(image, index), "image": number, **self._objects(image)}
                for rank, number, image, index in examples
            ]
            for name, (examples, describe) in kinds.items()
        }

    def _mistake(self, image: MatchedImage, index: int) -> Dict[str, Any]:
        iou = np.where(image.is_counted, image.iou[index], 0.0)
        same = image.true_classes == image.classes[index]
        same_iou, other_iou = (float(iou[mask].max(initial=0.0)) for mask in (same, ~same))
        kind = BACKGROUND
        # In this order: a second detection of a found object is a duplicate, whatever else it
        # overlaps.
        if same_iou >= MATCH_IOU:
            kind = DUPLICATE
        elif other_iou >= MATCH_IOU:
            kind = OTHER_CLASS
        elif same_iou >= NEAR_IOU:
            kind = MISPLACED
        actual: Optional[str] = None
        if kind == OTHER_CLASS:
            actual = self._names[image.true_classes[int(np.argmax(np.where(same, 0.0, iou)))]]
        return {
            "kind": kind,
            "class": self._names[image.classes[index]],
            "actual": actual,
            "score": float(image.scores[index]),
            "iou": other_iou if kind == OTHER_CLASS else same_iou,
            "box": _rounded(image.boxes[index]),
        }

    def _miss(self, image: MatchedImage, index: int) -> Dict[str, Any]:
        same = image.classes == image.true_classes[index]
        near = same & (image.iou[:, index] >= MATCH_IOU)
        return {
            "class": self._names[image.true_classes[index]],
            "best_score": float(image.scores[near].max(initial=0.0)),
            "box": _rounded(image.true_boxes[index]),
        }

    def _objects(self, image: MatchedImage) -> Dict[str, Any]:
        real = np.flatnonzero(image.is_object)[:MAX_BOXES]
        # Stable, so that equal scores give the same file again.
        order = np.argsort(-image.scores, kind="stable")
        shown = order[image.scores[order] >= self._min_score][:MAX_BOXES]
        return {
            "boxes": _rounded(image.true_boxes, real),
            "classes": [self._names[k] for k in image.true_classes[real]],
            "detections": _rounded(image.boxes, shown),
            "detected": [self._names[k] for k in image.classes[shown]],
            "scores": [float(score) for score in image.scores[shown]],
            "keypoints": _rounded(image.true_keypoints, real),
            "detected_keypoints": _rounded(image.keypoints, shown),
            "keypoint_scores": _rounded(image.keypoint_scores, shown, digits=3),
        }


def _rounded(values: Optional[Array], rows: Any = ..., digits: int = 1) -> Any:
    """JSON values of some rows; None without values, and in place of what is not a number."""
    if values is None:
        return None
    numbers = np.round(np.asarray(values, float)[rows], digits)
    return np.where(np.isfinite(numbers), numbers.astype(object), np.array(None)).tolist()


def path_for(folder: str, step: Union[int, str]) -> str:
    """Path of an evaluation's details, in the folder of its events."""
    return os.path.join(folder, f"details-{step}.json")


def write(folder: str, step: int, details: Mapping[str, Any]) -> None:
    """Writes the details of an evaluation."""
    files.write_text(path_for(folder, step), json_lines.dumps(details) + "\n")


def read(folder: str, step: int) -> Optional[Dict[str, Any]]:
    """The details of an evaluation; None if it wrote none."""
    path = path_for(folder, step)
    if not tf.io.gfile.exists(path):
        return None
    try:
        return json.loads(files.read_text(path))
    except ValueError as error:
        raise UsageError(
            f"{path}: is not a file of details: {error}; delete it, and evaluate again"
        ) from None


def latest(folder: str) -> Dict[str, Any]:
    """The details of the last evaluation of a folder; empty without one."""
    paths = tf.io.gfile.glob(path_for(folder, "*"))
    steps = [int(each) for path in paths if (each := path[:-5].rpartition("-")[2]).isdecimal()]
    return (read(folder, max(steps)) or {}) if steps else {}

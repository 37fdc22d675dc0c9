"""Correct detections at one IoU, for diagnostics, thresholds and calibrations.

Detections are matched by class within each image. By falling score, each one takes the free box of
its class with the largest IoU, if that is `MATCH_IOU` or more. Crowd and difficult boxes are
ignored as COCO ignores boxes: they need not be found, and a detection without a match does not
count if it has `MATCH_IOU` with one of its class. The overlap with a crowd is the share of the
detection that is inside it. Unlike COCO's matching, a difficult box may excuse several detections.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.metrics.coco_matching import (
    greedy_match,
    precision_at_recalls,
    rows_of_classes,
)
from model_fn.evaluation.metrics.overlaps import box_ioa, box_iou

Array = np.ndarray[Any, Any]

MATCH_IOU = 0.5


class ClassMatches(NamedTuple):
    """The n detections of a class that count, by falling score, and how many boxes it has."""

    scores: Array  # float32 [n]
    correct: Array  # bool [n]
    num_boxes: int  # neither crowd nor difficult


class Matches:
    """Score and correctness of every detection of an evaluation, by class.

    Args:
        class_ids: Ids of the label map; all classes are given by their position in it.
    """

    def __init__(self, class_ids: Sequence[int], class_names: Sequence[str]) -> None:
        self.class_ids = list(class_ids)
        self.class_names = list(class_names)
        self.num_boxes = np.zeros(len(self.class_ids), np.int64)
        self._images: List[Tuple[Array, Array, Array]] = []

    def add_image(self, box_classes: Array, classes: Array, scores: Array, correct: Array) -> None:
        """Adds the classes [m] of an image's boxes that count, and its detections [n] that do."""
        np.add.at(self.num_boxes, box_classes, 1)
        self._images.append(
            (classes.astype(np.int32), scores.astype(np.float32), correct.astype(bool))
        )

    def per_class(self) -> List[ClassMatches]:
        classes, scores, correct = self._columns()
        return [
            ClassMatches(scores[rows], correct[rows], int(count))
            for rows, count in zip(rows_of_classes(classes, len(self.class_ids)), self.num_boxes)
        ]

    def classes(self) -> Array:
        """int32 [n]: position of the class of each detection in `all_classes_merged`."""
        return self._columns()[0]

    def all_classes_merged(self) -> ClassMatches:
        _, scores, correct = self._columns()
        return ClassMatches(scores, correct, int(self.num_boxes.sum()))

    def every_second_image(self, start: int) -> Matches:
        """The detections of every second image; `num_boxes` still counts all images."""
        half = Matches(self.class_ids, self.class_names)
        half.num_boxes = self.num_boxes.copy()
        half._images = self._images[start::2]
        return half

    def _columns(self) -> List[Array]:
        """Class, score and correctness of the detections of all images, by falling score."""
        empty = np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, bool)
        columns = [np.concatenate(parts) for parts in zip(empty, *self._images)]
        order = np.argsort(-columns[1], kind="stable")
        return [column[order] for column in columns]


class MatchedImage(NamedTuple):
    """One image: m boxes of its groundtruth, and n detections, which are matched to them.

    Boxes are yxyx in pixels of the original image, classes positions in the label map.
    """

    true_boxes: Array  # float32 [m, 4]
    true_classes: Array  # int [m], -1: none of the label map
    is_object: Array  # bool [m], of a class of the label map, and not a crowd
    is_counted: Array  # bool [m], an object that must be found: it is not difficult
    boxes: Array  # float32 [n, 4]
    scores: Array  # float32 [n]
    classes: Array  # int [n]
    iou: Array  # float [n, m]
    is_excused: Array  # bool [n, m], True if the box excuses the detection
    matched: Array  # int [n], the box of the same class that it finds, -1 for none
    counts: Array  # bool [n], False if it is neither right nor wrong
    true_keypoints: Optional[Array] = None  # float32 [m, P, 2], NaN where absent
    keypoints: Optional[Array] = None  # float32 [n, P, 2]
    keypoint_scores: Optional[Array] = None  # float32 [n, P]


def match_image(image: EvaluatedBatch) -> MatchedImage:
    """Matches one of `EvaluatedBatch.images`, with positions in the label map as its classes."""
    boxes, scores, classes = image.detection_boxes, image.detection_scores, image.detection_classes
    is_object = (image.classes >= 0) & ~image.is_crowd
    is_counted = is_object & ~image.difficult
    iou = box_iou(boxes, image.boxes)
    overlaps_crowd = box_ioa(boxes, image.boxes) >= MATCH_IOU
    is_excused = (overlaps_crowd & image.is_crowd) | ((iou >= MATCH_IOU) & image.difficult)
    same = classes[:, np.newaxis] == image.classes
    matched = match(np.where(same & is_counted, iou, 0.0), scores)
    counts = (matched >= 0) | ~(is_excused & same).any(axis=1)
    return MatchedImage(
        *(image.boxes, image.classes, is_object, is_counted),
        *(boxes, scores, classes, iou, is_excused, matched, counts),
        *(image.keypoints, image.detection_keypoints, image.detection_keypoint_scores),
    )


def match(iou: Array, scores: Array) -> Array:
    """IoUs [n, m], scores [n] -> column of each detection [n], -1 without a match."""
    # Stable, so that equal scores keep the order of the model and results repeat.
    order = np.argsort(-scores, kind="stable")
    matched = np.full(len(iou), -1)
    matched[order] = greedy_match(iou[order], [MATCH_IOU])[0, 0]
    return matched


def precision_curve(matches: ClassMatches) -> Array:
    """Largest precision at each of COCO's recalls or above; 0 for recalls that are not reached."""
    hits = np.cumsum(matches.correct)
    precision = hits / np.arange(1, len(hits) + 1)
    return precision_at_recalls(hits / matches.num_boxes, precision)

"""Diagnostics of an evaluation: counts, confusion matrix, precision and recall.

`EvalDiagnostics` gets the same batches as the metrics. From its counts, `explain_metrics` derives
the reason for a metric that is -1, 0 or NaN.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf1
from estimator_det.config.printing import listed
from model_fn.drawing import charts
from model_fn.drawing.boxes import add_picture
from model_fn.evaluation import calibration, details, matching
from model_fn.evaluation.matching import MATCH_IOU, ImageBoxes, ImageDetections, Matches
from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.metrics.coco_matching import AREAS, RECALLS
from model_fn.evaluation.metrics.overlaps import box_area

EVAL_DIAGNOSTICS = "Evaluation_Diagnostics"

AREA_NAMES = ("small", "medium", "large")
AREA_LIMITS = AREAS["medium"]  # between the others
MAX_CLASSES_DRAWN = 20
MAX_CURVES = len(charts.COLORS) - 1
BACKGROUND = "none"
_NOT_OF_DETECTIONS = ("loss", "learning_rate", tf1.GraphKeys.GLOBAL_STEP)
_FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}


class EvalDiagnostics:
    """Accumulates one evaluation.

    `model_fn.evaluation.matching` says which detections are correct, and which are ignored. The
    confusion matrix matches detections of `min_score` or more to boxes of any class.
    """

    def __init__(self, categories: Sequence[Mapping[str, Any]], min_score: float) -> None:
        self._ids = [int(category["id"]) for category in categories]
        self._names = [str(category["name"]) for category in categories]
        self._min_score = min_score
        self._reset()

    def _reset(self) -> None:
        size = len(self._ids)
        self._images = 0
        self._boxes = np.zeros(size, np.int64)
        self._detections = np.zeros(size, np.int64)
        self._over_score = np.zeros(size, np.int64)
        self._areas = np.zeros(len(AREA_NAMES), np.int64)
        self._unknown_boxes: Dict[int, int] = {}
        self._unknown_detections: Dict[int, int] = {}
        self._not_finite = 0
        self._best_score = 0.0
        self._best_iou = 0.0
        self._confusion = np.zeros((size + 1, size + 1), np.int64)
        self._matches = Matches(self._ids, self._names)
        self._examples = details.Examples(self._names, self._min_score)

    def add(self, batch: EvaluatedBatch) -> None:
        for image in batch.images():
            self._add_image(image)

    def _add_image(self, image: EvaluatedBatch) -> None:
        groundtruth = ImageBoxes(
            image.boxes,
            _known(image.classes, self._ids, self._unknown_boxes),
            image.is_crowd,
            image.difficult,
        )
        boxes, scores = image.detection_boxes, image.detection_scores
        classes = _known(image.detection_classes, self._ids, self._unknown_detections)
        finite = np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
        self._not_finite += int(np.sum(~finite))
        # NaN compares false with every threshold: such detections would vanish without a count.
        use = finite & (classes >= 0)
        detections = matching.match_image(groundtruth, boxes[use], scores[use], classes[use])
        self._count(groundtruth, detections)
        self._examples.add(self._images, groundtruth, detections)
        counted, counts = groundtruth.counted, detections.counts
        self._matches.add_image(
            groundtruth.classes[counted],
            detections.classes[counts],
            detections.scores[counts],
            detections.matched[counts] >= 0,
        )
        _confuse(self._confusion, groundtruth, detections, self._min_score)
        self._images += 1

    def _count(self, groundtruth: ImageBoxes, detections: ImageDetections) -> None:
        real = (groundtruth.classes >= 0) & ~groundtruth.is_crowd
        classes = groundtruth.classes[real]
        # A box of exactly the limit counts as the larger area, like in COCO.
        areas = np.searchsorted(AREA_LIMITS, box_area(groundtruth.boxes[real]), side="right")
        np.add.at(self._areas, areas, 1)
        # `+=` with an index array would count a class only once per image.
        np.add.at(self._boxes, classes, 1)
        np.add.at(self._detections, detections.classes, 1)
        np.add.at(self._over_score, detections.classes[detections.scores >= self._min_score], 1)
        self._best_score = max(self._best_score, float(detections.scores.max(initial=0.0)))
        iou = detections.iou[:, real][detections.classes[:, np.newaxis] == classes]
        self._best_iou = max(self._best_iou, float(iou.max(initial=0.0)))

    def counts(self) -> Dict[str, Any]:
        """All counts, as JSON values."""
        return {
            "images": self._images,
            "boxes": dict(zip(self._names, self._boxes.tolist())),
            "detections": dict(zip(self._names, self._detections.tolist())),
            "detections_over_min_score": dict(zip(self._names, self._over_score.tolist())),
            "boxes_by_area": dict(zip(AREA_NAMES, self._areas.tolist())),
            "boxes_of_unknown_class": {str(k): n for k, n in self._unknown_boxes.items()},
            "detections_of_unknown_class": {str(k): n for k, n in self._unknown_detections.items()},
            "detections_not_finite": self._not_finite,
            "best_score": self._best_score,
            "best_iou_within_class": self._best_iou,
            "min_score": self._min_score,
        }

    def results(self) -> Tuple[Dict[str, Any], Matches, bytes, Dict[str, Any]]:
        """Counts, matches, chart (PNG; empty without images) and details as JSON values.

        Starts a new evaluation.
        """
        precisions = {
            k: matching.precision_at(RECALLS, class_matches)
            for k, class_matches in enumerate(self._matches.per_class())
            if class_matches.num_boxes
        }
        occurrences = self._boxes + self._over_score
        frequent = _most_frequent(occurrences, MAX_CLASSES_DRAWN)
        curves = _curves(self._names, _most_frequent(occurrences, MAX_CURVES), precisions)
        chart = charts.figure(self._panels(frequent, curves)) if self._images else b""
        values = self._details(frequent, curves, precisions)
        results = self.counts(), self._matches, chart, values
        self._reset()
        return results

    def _confusion_of(self, class_indices: np.ndarray) -> Tuple[List[str], np.ndarray]:
        """Names and matrix of some classes and, last, no class."""
        rows = [*class_indices, len(self._ids)]
        names = [*(self._names[k] for k in class_indices), BACKGROUND]
        return names, self._confusion[np.ix_(rows, rows)]

    def _details(
        self,
        class_indices: np.ndarray,
        curves: Sequence[charts.Curve],
        precisions: Mapping[int, np.ndarray],
    ) -> Dict[str, Any]:
        names, rows = self._confusion_of(class_indices)
        every = self._matches.all_classes_merged()
        reliability = calibration.reliability(every.scores.clip(0, 1), every.correct)
        return {
            "counts": self.counts(),
            "confusion": {"names": names, "rows": rows.tolist()},
            "curves": [{"name": curve.name, "precisions": curve.y} for curve in curves],
            "average_precisions": {
                self._names[k]: float(np.mean(y)) for k, y in precisions.items()
            },
            "reliability": {
                "counts": reliability.counts.tolist(),
                "scores": reliability.mean_scores.tolist(),
                "precisions": reliability.precisions.tolist(),
                "expected_error": reliability.expected_error,
            },
            **self._examples.to_json(),
        }

    def _panels(
        self, class_indices: np.ndarray, curves: Sequence[charts.Curve]
    ) -> List[charts.Panel]:
        names, rows = self._confusion_of(class_indices)
        is_all = len(class_indices) == len(self._ids)
        title_suffix = "" if is_all else f", {len(class_indices)} most frequent classes"
        return [
            charts.heatmap(
                f"Confusion at score {self._min_score:g}{title_suffix}",
                rows,
                row_labels=names,
                column_labels=names,
                x_label="detected",
                y_label="groundtruth",
            ),
            charts.curves(
                f"Precision and recall at IoU {MATCH_IOU:g}",
                curves,
                x_label="recall",
                y_label="precision",
                limits=(0, 1, 0, 1.02),
            ),
            charts.bar_chart(
                f"Boxes of a class{title_suffix}",
                names[:-1],
                {
                    "groundtruth": self._boxes[class_indices],
                    f"detections over {self._min_score:g}": self._over_score[class_indices],
                },
            ),
        ]


def _curves(
    names: Sequence[str], frequent: np.ndarray, precisions: Mapping[int, np.ndarray]
) -> List[charts.Curve]:
    """Curves of the mean over classes and of frequent classes, from precisions at `RECALLS`."""
    if not precisions:
        return []
    lines = [("mean", np.mean(list(precisions.values()), axis=0))]
    lines += [(names[k], precisions[k]) for k in frequent if k in precisions]
    return [charts.Curve(name, RECALLS.tolist(), y.tolist()) for name, y in lines]


def _most_frequent(occurrences: np.ndarray, count: int) -> np.ndarray:
    """Indices of the most frequent classes that occur, by id; of any if none occurs."""
    order = np.argsort(-occurrences, kind="stable")
    # Classes that do not occur would fill the chart with empty rows.
    order = order[occurrences[order] > 0] if occurrences.any() else order
    return np.sort(order[:count])


def _known(class_ids: np.ndarray, known_ids: Sequence[int], unknown: Dict[int, int]) -> np.ndarray:
    """Index of each class id; ids without category give -1 and are counted in `unknown`."""
    index = {class_id: i for i, class_id in enumerate(known_ids)}
    indices = np.array([index.get(int(k), -1) for k in class_ids], np.int64)
    for k in np.asarray(class_ids)[indices < 0]:
        unknown[int(k)] = unknown.get(int(k), 0) + 1
    return indices


def _confuse(
    confusion: np.ndarray, groundtruth: ImageBoxes, detections: ImageDetections, min_score: float
) -> None:
    """Adds to the matrix: rows are groundtruth, columns detections, the last of each none.

    It compares classes, so it matches boxes of any class.
    """
    background = len(confusion) - 1
    shown = detections.scores >= min_score
    classes, scores = detections.classes[shown], detections.scores[shown]
    # Difficult boxes and crowds take no detection away from the boxes that count.
    matched = matching.match(np.where(groundtruth.counted, detections.iou[shown], 0.0), scores)
    is_matched = matched >= 0
    np.add.at(confusion, (groundtruth.classes[matched[is_matched]], classes[is_matched]), 1)
    is_wrong = ~is_matched & ~detections.ignored[shown].any(axis=1)
    np.add.at(confusion[background], classes[is_wrong], 1)
    missed = groundtruth.counted
    missed[matched[is_matched]] = False
    np.add.at(confusion[:, background], groundtruth.classes[missed], 1)


def chart_summary(png: bytes) -> bytes:
    """A serialized Summary with the chart, which Estimator writes for TensorBoard."""
    summary = tf1.Summary()
    if png:
        add_picture(summary, EVAL_DIAGNOSTICS, png)
    return summary.SerializeToString()


def explain_metrics(
    metrics: Mapping[str, float], counts: Mapping[str, Any], score_field: str = ""
) -> Dict[str, str]:
    """Metric name -> reason, for each metric that is -1, 0 or NaN.

    Args:
        score_field: Path of the field that detections of low scores are dropped by; empty if no
            model made the detections.
    """
    reasons = {}
    for name, value in metrics.items():
        if np.isnan(value):
            reasons[name] = _why_nan(name, counts)
        elif value == -1 and _is_of_detections(name):
            reasons[name] = _why_absent(name, counts)
        elif value == 0 and _is_of_detections(name):
            reasons[name] = _why_zero(name, counts, score_field)
    return reasons


def _is_of_detections(name: str) -> bool:
    return name not in _NOT_OF_DETECTIONS and not name.startswith(("Loss/", "bad_records/"))


def _why_nan(name: str, counts: Mapping[str, Any]) -> str:
    if _is_of_detections(name):
        category = _category_of(name, counts)
        boxes = counts["boxes"]
        if not sum(boxes.values()) or (category is not None and not boxes[category]):
            return _why_absent(name, counts)
    if counts["detections_not_finite"]:
        return (
            f"{counts['detections_not_finite']} detections are not finite: the weights of the "
            "checkpoint are damaged or training has diverged; use an earlier checkpoint"
        )
    # Both "Loss/…" of the terms and Estimator's "loss".
    if "oss" in name:
        return "the loss is not finite: weights are not finite, or records have boxes without area"
    if _is_of_detections(name):
        return (
            "no groundtruth box counts for it: all are difficult, in groups, or without the mask "
            "that it compares"
        )
    return "its denominator is a count of 0"


def _area_of(name: str) -> Optional[str]:
    # LVIS names areas by their first letter, COCO by the word in brackets.
    lvis_area = re.search(r"_A[PR]([sml])(@\d+)?$", name)
    initial = lvis_area.group(1) if lvis_area else ""
    return next((a for a in AREA_NAMES if f"({a})" in name or a[0] == initial), None)


def _category_of(name: str, counts: Mapping[str, Any]) -> Optional[str]:
    """The category of a metric of one category, whose name may have slashes."""
    suffix = name.partition("ByCategory/")[2]
    # Names may end alike ("bear" and "teddy bear"), so whole parts are compared and the longest
    # wins.
    categories = [category for category in counts["boxes"] if f"/{suffix}".endswith(f"/{category}")]
    return max(categories, key=len) if suffix and categories else None


def _why_absent(name: str, counts: Mapping[str, Any]) -> str:
    unknown = counts["boxes_of_unknown_class"]
    total = sum(counts["boxes"].values())
    if not counts["images"]:
        return "no image was evaluated: eval_input_reader returns no records"
    if not total and unknown:
        return (
            f"no groundtruth box has a class of the label map; the {sum(unknown.values())} boxes "
            f"have the ids {sorted(map(int, unknown))[:10]}: use the label map of the records"
        )
    if not total:
        return f"the {counts['images']} evaluated images have no groundtruth box"
    category = _category_of(name, counts)
    if category is not None and not counts["boxes"][category]:
        return "no groundtruth box of this class"
    area = _area_of(name)
    if area and not counts["boxes_by_area"][area]:
        low, high = AREA_LIMITS
        limits = {
            "small": f"under {low:.0f}",
            "medium": f"from {low:.0f} to {high:.0f}",
            "large": f"over {high:.0f}",
        }
        return f"no groundtruth box has an area {limits[area]} pixels of the original image"
    if name.startswith("Keypoints_"):
        return "no object of this class has a labeled keypoint"
    if re.search(r"_AP[rcf]$", name):
        return f"no groundtruth box has a {_FREQUENCIES[name[-1]]} class"
    return "no groundtruth box counts for it"


def _why_zero(name: str, counts: Mapping[str, Any], score_field: str) -> str:
    boxes, detections = counts["boxes"], counts["detections"]
    category = _category_of(name, counts)
    if category is not None:
        if not detections[category]:
            return f"no detection has the class {category}"
        what = "resembles" if name.startswith("Keypoints_") else "overlaps"
        return f"no detection of this class {what} its {boxes[category]} boxes enough"
    if not sum(detections.values()):
        unknown = counts["detections_of_unknown_class"]
        if unknown:
            return f"no detection has a class of the label map; ids: {sorted(unknown)[:10]}"
        if not score_field:
            return "there are no detections: the file has none"
        return (
            f"there are no detections: every score is below {score_field}, or a file of detections "
            "has none; the model needs more training, or its weights were not restored"
        )
    labelled = {name for name, count in boxes.items() if count}
    detected = {name for name, count in detections.items() if count}
    if not labelled & detected:
        return (
            f"no detected class ({listed(sorted(detected), 5)}) is among the groundtruth classes "
            f"({listed(sorted(labelled), 5)}): the model needs more training, or its label map in "
            "training was another one"
        )
    if counts["best_iou_within_class"] < MATCH_IOU:
        return (
            "no detection overlaps a box of its class with an IoU of "
            f"{MATCH_IOU:g}: the maximum is {counts['best_iou_within_class']:.2f}"
        )
    return "there are too few correct detections, or their scores are too low"

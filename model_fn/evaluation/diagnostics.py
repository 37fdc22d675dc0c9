"""Diagnostics of an evaluation: counts, confusion matrix, precision and recall.

`EvalDiagnostics` gets the same batches as the metrics. From its counts, `explain_metrics` derives
the reason for a metric that is -1, 0 or NaN.
"""

from __future__ import annotations

import collections
from typing import Any, Counter, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from estimator_det.console.printing import listed
from model_fn.drawing import charts
from model_fn.drawing.boxes import picture_summary
from model_fn.evaluation import details, label_faults, matching
from model_fn.evaluation.matching import MATCH_IOU, MatchedImage, Matches
from model_fn.evaluation.metrics.base import EvaluatedBatch, Scope
from model_fn.evaluation.metrics.coco import CocoBoxMetrics
from model_fn.evaluation.metrics.coco_matching import AREAS, RECALLS
from model_fn.evaluation.metrics.overlaps import box_area
from model_fn.evaluation.reliability import precision_by_score

EVAL_DIAGNOSTICS = "Evaluation_Diagnostics"

AREA_NAMES = ("small", "medium", "large")
AREA_LIMITS = AREAS["medium"]  # between the others
MAX_CLASSES_DRAWN = 20
MAX_CURVES = len(charts.COLORS) - 1
BACKGROUND = "none"
# The means of COCO, which count this many detections of an image and class.
COCO_MEANS = ("DetectionBoxes_Precision/mAP", "DetectionMasks_Precision/mAP")
COCO_LIMIT = CocoBoxMetrics.limits[-1]


class EvalDiagnostics:
    """Accumulates one evaluation.

    `model_fn.evaluation.matching` says which detections are correct, and which are ignored. The
    confusion matrix matches detections of `min_score` or more to boxes of any class.
    """

    def __init__(self, categories: Sequence[Mapping[str, Any]], min_score: float) -> None:
        ids = [int(category["id"]) for category in categories]
        self._positions = {class_id: k for k, class_id in enumerate(ids)}
        self._names = [str(category["name"]) for category in categories]
        self._min_score = min_score
        size = len(ids)
        self._images = 0
        self._boxes = np.zeros(size, np.int64)
        self._most_boxes = 0  # the most of a class in an image
        self._detections = np.zeros(size, np.int64)
        self._over_score = np.zeros(size, np.int64)
        self._areas = np.zeros(len(AREA_NAMES), np.int64)
        self._unknown_boxes: Counter[int] = collections.Counter()
        self._unknown_detections: Counter[int] = collections.Counter()
        self._not_finite = 0
        self._best_iou = 0.0
        # Rows are groundtruth, columns detections, the last of each none.
        self._confusion = np.zeros((size + 1, size + 1), np.int64)
        self._matches = Matches(ids, self._names)
        self._examples = details.Examples(self._names, self._min_score)
        self._label_faults = label_faults.LabelFaults(self._names)

    def add(self, batch: EvaluatedBatch) -> None:
        for image in batch.images():
            scores, corners = image.detection_scores, image.detection_boxes
            image = image._replace(
                classes=self._known(image.classes, self._unknown_boxes),
                detection_classes=self._known(image.detection_classes, self._unknown_detections),
            )
            is_finite = np.isfinite(scores) & np.isfinite(corners).all(axis=1)
            self._not_finite += int(np.sum(~is_finite))
            # NaN compares false with every threshold: such detections would vanish without a count.
            chosen = image.with_detections(is_finite & (image.detection_classes >= 0))
            matched = matching.match_image(chosen)
            self._count(matched)
            self._confuse(matched)
            self._examples.add(self._images, matched)
            self._label_faults.add(self._images, matched)
            counts = matched.counts
            self._matches.add_image(
                matched.true_classes[matched.is_counted],
                matched.classes[counts],
                matched.scores[counts],
                matched.matched[counts] >= 0,
            )
            self._images += 1

    def _known(self, class_ids: np.ndarray, unknown: Counter[int]) -> np.ndarray:
        """Position of each class id; ids without category give -1 and are counted in `unknown`."""
        ids = class_ids.tolist()
        unknown.update(k for k in ids if k not in self._positions)
        return np.array([self._positions.get(k, -1) for k in ids], np.int64)

    def _count(self, image: MatchedImage) -> None:
        classes, real = image.true_classes[image.is_object], image.is_object
        # A box of exactly the limit counts as the larger area, like in COCO.
        areas = np.searchsorted(AREA_LIMITS, box_area(image.true_boxes[real]), side="right")
        np.add.at(self._areas, areas, 1)
        # `+=` with an index array would count a class only once per image.
        np.add.at(self._boxes, classes, 1)
        self._most_boxes = max(self._most_boxes, int(np.bincount(classes).max(initial=0)))
        np.add.at(self._detections, image.classes, 1)
        np.add.at(self._over_score, image.classes[image.scores >= self._min_score], 1)
        iou = image.iou[:, real][image.classes[:, np.newaxis] == classes]
        self._best_iou = max(self._best_iou, float(iou.max(initial=0.0)))

    def _confuse(self, image: MatchedImage) -> None:
        """Matches boxes of any class, since the matrix compares classes."""
        shown = image.scores >= self._min_score
        classes, scores = image.classes[shown], image.scores[shown]
        # Difficult boxes and crowds take no detection away from the boxes that count.
        matched = matching.match(np.where(image.is_counted, image.iou[shown], 0.0), scores)
        is_matched = matched >= 0
        true = image.true_classes[matched[is_matched]]
        np.add.at(self._confusion, (true, classes[is_matched]), 1)
        is_wrong = ~is_matched & ~image.is_excused[shown].any(axis=1)
        np.add.at(self._confusion[-1], classes[is_wrong], 1)
        is_missed = image.is_counted.copy()
        is_missed[matched[is_matched]] = False
        np.add.at(self._confusion[:, -1], image.true_classes[is_missed], 1)

    def counts(self) -> Dict[str, Any]:
        """All counts, as JSON values."""
        return {
            "images": self._images,
            "boxes": dict(zip(self._names, self._boxes.tolist())),
            "detections": dict(zip(self._names, self._detections.tolist())),
            "most_boxes_of_class": self._most_boxes,
            "boxes_by_area": dict(zip(AREA_NAMES, self._areas.tolist())),
            "boxes_of_unknown_class": {str(k): n for k, n in self._unknown_boxes.items()},
            "detections_of_unknown_class": {str(k): n for k, n in self._unknown_detections.items()},
            "detections_not_finite": self._not_finite,
            "best_iou_within_class": self._best_iou,
            "min_score": self._min_score,
        }

    def results(self) -> Tuple[Matches, bytes, Dict[str, Any]]:
        """Matches, chart (PNG; empty without images) and details as JSON values."""
        precisions = {
            k: matching.precision_curve(class_matches)
            for k, class_matches in enumerate(self._matches.per_class())
            if class_matches.num_boxes
        }
        occurrences = self._boxes + self._over_score
        frequent = _most_frequent(occurrences, MAX_CLASSES_DRAWN)
        names = [*(self._names[k] for k in frequent), BACKGROUND]
        rows = [*frequent, len(self._names)]
        curves = [("mean", np.mean(list(precisions.values()), axis=0))] if precisions else []
        classes = _most_frequent(occurrences, MAX_CURVES)
        curves += [(self._names[k], precisions[k]) for k in classes if k in precisions]
        every = self._matches.all_classes_merged()
        reliability = precision_by_score(every.scores.clip(0, 1), every.correct)
        values = {
            "counts": self.counts(),
            "confusion": {"names": names, "rows": self._confusion[np.ix_(rows, rows)].tolist()},
            "curves": [{"name": name, "precisions": y.tolist()} for name, y in curves],
            "average_precisions": {
                self._names[k]: float(np.mean(y)) for k, y in precisions.items()
            },
            "reliability": {name: x.tolist() for name, x in reliability._asdict().items()},
            **self._examples.results(),
            "label_faults": self._label_faults.results(every),
        }
        chart = charts.figure(self._panels(frequent, values)) if self._images else b""
        return self._matches, chart, values

    def _panels(self, frequent: np.ndarray, values: Mapping[str, Any]) -> List[charts.Panel]:
        is_all = len(frequent) == len(self._names)
        title_suffix = "" if is_all else f", {len(frequent)} most frequent classes"
        names = values["confusion"]["names"]
        return [
            charts.heatmap(
                f"Confusion at score {self._min_score:g}{title_suffix}",
                values["confusion"]["rows"],
                row_labels=names,
                column_labels=names,
                x_label="detected",
                y_label="groundtruth",
            ),
            precision_and_recall(values["curves"]),
            charts.bar_chart(
                f"Boxes of a class{title_suffix}",
                names[:-1],
                {
                    "groundtruth": self._boxes[frequent],
                    f"detections over {self._min_score:g}": self._over_score[frequent],
                },
            ),
        ]


def precision_and_recall(curves: Sequence[Mapping[str, Any]]) -> charts.Panel:
    """Chart of the "curves" in the details of an evaluation."""
    return charts.curves(
        f"Precision and recall at IoU {MATCH_IOU:g}",
        [charts.Curve(curve["name"], RECALLS, curve["precisions"]) for curve in curves],
        x_label="recall",
        y_label="precision",
        limits=(0, 1, 0, 1.02),
    )


def _most_frequent(occurrences: np.ndarray, count: int) -> np.ndarray:
    """Indices of the most frequent classes that occur, by id; of any if none occurs."""
    order = np.argsort(-occurrences, kind="stable")
    # Classes that do not occur would fill the chart with empty rows.
    order = order[occurrences[order] > 0] if occurrences.any() else order
    return np.sort(order[:count])


def chart_summary(png: bytes) -> bytes:
    """A serialized Summary with the chart, which Estimator writes for TensorBoard."""
    return picture_summary({EVAL_DIAGNOSTICS: png} if png else {})


def explain_metrics(
    metrics: Mapping[str, float],
    scopes: Mapping[str, Scope],
    counts: Mapping[str, Any],
    score_field: str = "",
) -> Dict[str, str]:
    """Metric name -> reason, for each metric that is -1, 0 or NaN, or bounded by COCO's limit.

    Args:
        scopes: Of the metrics of detections; other values, such as losses, may be -1 or 0.
        score_field: Path of the field that detections of low scores are dropped by; empty if no
            model made the detections.
    """
    reasons = {}
    for name, value in metrics.items():
        scope = scopes.get(name)
        if np.isnan(value):
            reasons[name] = _why_nan(name, scope, counts)
        elif scope is not None and value == -1:
            reasons[name] = _why_absent(scope, counts)
        elif scope is not None and value == 0:
            reasons[name] = _why_zero(scope, counts, score_field)
        elif name in COCO_MEANS and counts["most_boxes_of_class"] > COCO_LIMIT:
            reasons[name] = (
                f"an image has {counts['most_boxes_of_class']} boxes of a class, of which COCO's "
                f"metrics can find {COCO_LIMIT}; pascal_voc_detection_metrics has no limit"
            )
    return reasons


def _why_nan(name: str, scope: Optional[Scope], counts: Mapping[str, Any]) -> str:
    if scope is not None:
        boxes = counts["boxes"]
        has_boxes = sum(boxes.values()) if scope.category is None else boxes[scope.category]
        if not has_boxes:
            return _why_absent(scope, counts)
    if counts["detections_not_finite"]:
        return (
            f"{counts['detections_not_finite']} detections are not finite: the weights of the "
            "checkpoint are damaged or training has diverged; use an earlier checkpoint"
        )
    if scope is not None:
        return (
            "no groundtruth box counts for it: all are difficult, in groups, or without the mask "
            "that it compares"
        )
    if name == "loss" or name.startswith("Loss/"):
        return "the loss is not finite: weights are not finite, or records have boxes without area"
    return "its denominator is a count of 0"


def _why_absent(scope: Scope, counts: Mapping[str, Any]) -> str:
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
    if scope.category is not None and not counts["boxes"][scope.category]:
        return "no groundtruth box of this class"
    if scope.area and not counts["boxes_by_area"][scope.area]:
        low, high = AREA_LIMITS
        limits = {
            "small": f"under {low:.0f}",
            "medium": f"from {low:.0f} to {high:.0f}",
            "large": f"over {high:.0f}",
        }
        return f"no groundtruth box has an area {limits[scope.area]} pixels of the original image"
    return scope.absent


def _why_zero(scope: Scope, counts: Mapping[str, Any], score_field: str) -> str:
    boxes, detections = counts["boxes"], counts["detections"]
    if scope.category is not None:
        if not detections[scope.category]:
            return f"no detection has the class {scope.category}"
        return f"no detection of this class {scope.verb} its {boxes[scope.category]} boxes enough"
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

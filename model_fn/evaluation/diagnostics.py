"""Diagnostics of an evaluation: counts, confusion matrix, precision and recall.

`EvalDiagnostics` gets the same batches as the metrics. Its summary contains charts for TensorBoard,
and counts as JSON text. From the counts, `explain_metrics` gives the reason for a metric that is
-1, 0 or NaN.
"""

from __future__ import annotations

import io
import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from PIL import Image

from estimator_det.compat import tf, tf1
from model_fn.drawing import charts
from model_fn.evaluation.metrics.base import EvaluatedBatch

EVAL_DIAGNOSTICS = "Evaluation_Diagnostics"
_TEXT_TAG = f"{EVAL_DIAGNOSTICS}/counts"

MATCH_IOU = 0.5
# COCO's limits between small, medium and large, in pixels squared.
AREA_LIMITS = (32.0**2, 96.0**2)
AREA_NAMES = ("small", "medium", "large")
MAX_CLASSES_DRAWN = 20
MAX_CURVES = len(charts.COLORS) - 1
BACKGROUND = "none"


class EvalDiagnostics:
    """Accumulates one evaluation.

    In the order of scores, each detection matches the free groundtruth box of the largest IoU, if
    that is `MATCH_IOU` or more. Crowd boxes and detections inside them are ignored.

    Args:
        categories: Dictionaries with "id" (from 1) and "name".
        min_score: The confusion matrix ignores detections below this score.
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
        # By class: score of each detection, and whether it is correct.
        self._scored: List[List[Tuple[float, bool]]] = [[] for _ in range(size)]

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds one batch, as arrays."""
        for row in range(len(batch.num_boxes)):
            boxes = slice(0, int(batch.num_boxes[row]))
            found = slice(0, int(batch.num_detections[row]))
            self._add_image(
                batch.boxes[row, boxes],
                self._known(batch.classes[row, boxes], self._unknown_boxes),
                None if batch.is_crowd is None else batch.is_crowd[row, boxes],
                batch.detection_boxes[row, found],
                batch.detection_scores[row, found],
                self._known(batch.detection_classes[row, found], self._unknown_detections),
            )

    def _known(self, class_ids: np.ndarray, unknown: Dict[int, int]) -> np.ndarray:
        """Index of each class id; ids without category give -1 and are counted in `unknown`."""
        index = {class_id: i for i, class_id in enumerate(self._ids)}
        found = np.array([index.get(int(k), -1) for k in class_ids], np.int64)
        for k in np.asarray(class_ids)[found < 0]:
            unknown[int(k)] = unknown.get(int(k), 0) + 1
        return found

    def _add_image(
        self,
        boxes: np.ndarray,
        classes: np.ndarray,
        is_crowd: Optional[np.ndarray],
        detection_boxes: np.ndarray,
        scores: np.ndarray,
        detection_classes: np.ndarray,
    ) -> None:
        self._images += 1
        finite = np.isfinite(scores) & np.isfinite(detection_boxes).all(axis=1)
        self._not_finite += int(np.sum(~finite))
        use = finite & (detection_classes >= 0)
        detection_boxes, scores = detection_boxes[use], scores[use]
        detection_classes = detection_classes[use]
        crowd = np.zeros(len(boxes), bool) if is_crowd is None else np.asarray(is_crowd, bool)
        real = (classes >= 0) & ~crowd
        sizes = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        areas = np.searchsorted(AREA_LIMITS, sizes[real].prod(axis=1), side="right")
        np.add.at(self._areas, areas, 1)
        np.add.at(self._boxes, classes[real], 1)
        np.add.at(self._detections, detection_classes, 1)
        shown = scores >= self._min_score
        np.add.at(self._over_score, detection_classes[shown], 1)
        self._best_score = max(self._best_score, float(scores.max(initial=0.0)))
        iou = _pairwise_iou(detection_boxes, boxes)
        in_crowd = (iou[:, crowd] >= MATCH_IOU).any(axis=1)
        same = detection_classes[:, np.newaxis] == classes
        self._best_iou = max(self._best_iou, float(iou[:, real][same[:, real]].max(initial=0.0)))
        iou = np.where(real, iou, 0.0)
        order = np.argsort(-scores, kind="stable")
        right = _match(np.where(same, iou, 0.0), order) >= 0
        for i in order:
            if right[i] or not in_crowd[i]:
                self._scored[detection_classes[i]].append((float(scores[i]), bool(right[i])))
        self._confuse(classes, real, iou, order[shown[order]], detection_classes, in_crowd)

    def _confuse(
        self,
        classes: np.ndarray,
        real: np.ndarray,
        iou: np.ndarray,
        order: np.ndarray,
        detection_classes: np.ndarray,
        in_crowd: np.ndarray,
    ) -> None:
        """Adds to the matrix: rows are groundtruth, columns detections, the last of each none."""
        matched = _match(iou, order)
        background = len(self._ids)
        missed = real.copy()
        for i in order:
            if matched[i] >= 0:
                missed[matched[i]] = False
                self._confusion[classes[matched[i]], detection_classes[i]] += 1
            elif not in_crowd[i]:
                self._confusion[background, detection_classes[i]] += 1
        np.add.at(self._confusion, (classes[missed], background), 1)

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

    def summary(self) -> bytes:
        """A serialized Summary with charts and counts; starts a new evaluation."""
        summary = tf1.Summary()
        if self._images:
            png = charts.figure(self._panels(), columns=3)
            width, height = Image.open(io.BytesIO(png)).size
            image = tf1.Summary.Image(
                height=height, width=width, colorspace=4, encoded_image_string=png
            )
            summary.value.add(tag=EVAL_DIAGNOSTICS, image=image)
        text = json.dumps(self.counts())
        metadata = tf1.SummaryMetadata(
            plugin_data=tf1.SummaryMetadata.PluginData(plugin_name="text")
        )
        summary.value.add(
            tag=_TEXT_TAG, metadata=metadata, tensor=tf1.make_tensor_proto(text, tf.string)
        )
        self._reset()
        return summary.SerializeToString()

    def _panels(self) -> List[charts.Panel]:
        drawn = self._most_frequent(MAX_CLASSES_DRAWN)
        names = [self._names[k] for k in drawn]
        rows = [*drawn, len(self._ids)]
        of_most = f", {len(drawn)} most frequent classes" if len(drawn) < len(self._ids) else ""
        return [
            charts.heatmap(
                f"Confusion at score {self._min_score:g}{of_most}",
                self._confusion[np.ix_(rows, rows)],
                row_labels=[*names, BACKGROUND],
                column_labels=[*names, BACKGROUND],
                x_label="detected",
                y_label="groundtruth",
            ),
            charts.curves(
                f"Precision and recall at IoU {MATCH_IOU:g}",
                self._curves(),
                x_label="recall",
                y_label="precision",
                limits=(0, 1, 0, 1.02),
            ),
            charts.bar_chart(
                f"Boxes of a class{of_most}",
                names,
                {
                    "groundtruth": self._boxes[drawn].tolist(),
                    f"detections over {self._min_score:g}": self._over_score[drawn].tolist(),
                },
            ),
        ]

    def _most_frequent(self, count: int) -> np.ndarray:
        """Indices of the most frequent classes that occur, by id; of any if none occurs."""
        occurrences = self._boxes + self._over_score
        order = np.argsort(-occurrences, kind="stable")
        order = order[occurrences[order] > 0] if occurrences.any() else order
        return np.sort(order[:count])

    def _curves(self) -> List[charts.Curve]:
        """Curves of the mean over classes and of the most frequent classes."""
        recalls = np.linspace(0, 1, 101)
        labelled = np.flatnonzero(self._boxes)
        if not labelled.size:
            return []
        precisions = {k: _precision_at(recalls, self._scored[k], self._boxes[k]) for k in labelled}
        lines = [_curve("mean", recalls, np.mean(list(precisions.values()), axis=0))]
        for k in self._most_frequent(MAX_CURVES):
            if k in precisions:
                lines.append(_curve(self._names[k], recalls, precisions[k]))
        return lines


def _curve(name: str, recalls: np.ndarray, precisions: np.ndarray) -> charts.Curve:
    return charts.Curve(name, recalls.tolist(), precisions.tolist())


def _pairwise_iou(boxes_a: np.ndarray, boxes_b: np.ndarray) -> np.ndarray:
    """IoU of yxyx boxes [n, 4], [m, 4] -> [n, m]; empty boxes give 0."""
    low = np.maximum(boxes_a[:, np.newaxis, :2], boxes_b[np.newaxis, :, :2])
    high = np.minimum(boxes_a[:, np.newaxis, 2:], boxes_b[np.newaxis, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=2)
    area_a = np.maximum(boxes_a[:, 2:] - boxes_a[:, :2], 0).prod(axis=1)
    area_b = np.maximum(boxes_b[:, 2:] - boxes_b[:, :2], 0).prod(axis=1)
    union = area_a[:, np.newaxis] + area_b - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _match(iou: np.ndarray, order: np.ndarray) -> np.ndarray:
    """IoUs [n, m], detections by `order` -> column of each detection [n], -1 without a match."""
    matched = np.full(len(iou), -1)
    if not iou.size:
        return matched
    free = np.ones(iou.shape[1], bool)
    for i in order:
        best = int(np.argmax(np.where(free, iou[i], -1.0)))
        if free[best] and iou[i, best] >= MATCH_IOU:
            matched[i], free[best] = best, False
    return matched


def _precision_at(
    recalls: np.ndarray, scored: Sequence[Tuple[float, bool]], num_boxes: int
) -> np.ndarray:
    """Maximum precision at each recall or above; 0 for recalls that are not reached."""
    right = np.array([hit for _, hit in sorted(scored, key=lambda pair: -pair[0])], float)
    hits = np.cumsum(right)
    precision = hits / np.arange(1, len(right) + 1)
    recall = hits / num_boxes
    best = np.maximum.accumulate(precision[::-1])[::-1]
    place = np.searchsorted(recall, recalls, side="left")
    return np.array([best[i] if i < len(best) else 0.0 for i in place])


def diagnostics_ops(diagnostics: EvalDiagnostics, batch: EvaluatedBatch) -> Dict[str, Any]:
    """`eval_metric_ops` entry; its value is a serialized Summary that Estimator writes."""
    present = {name: value for name, value in batch._asdict().items() if value is not None}

    def add(*arrays: np.ndarray) -> None:
        fields: Dict[str, Any] = dict(zip(present, arrays))
        diagnostics.add(EvaluatedBatch(**fields))

    update = tf.numpy_function(add, list(present.values()), [])
    return {EVAL_DIAGNOSTICS: (tf.numpy_function(diagnostics.summary, [], tf.string), update)}


def counts_of(results: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """`EvalDiagnostics.counts` in evaluation results; None if they contain no diagnostics."""
    if not isinstance(results.get(EVAL_DIAGNOSTICS), bytes):
        return None
    for value in tf1.Summary.FromString(results[EVAL_DIAGNOSTICS]).value:
        if value.tag == _TEXT_TAG:
            counts: Dict[str, Any] = json.loads(value.tensor.string_val[0])
            return counts
    return None


def explain_metrics(
    metrics: Mapping[str, float], counts: Mapping[str, Any], score_field: str
) -> Dict[str, str]:
    """Metric name -> reason, for each metric that is -1, 0 or NaN.

    Args:
        metrics: Value by name, from `model_fn.runs.evaluation_report.scalars`.
        counts: From `counts_of`.
        score_field: Path of the field that detections of low scores are dropped by.
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
    return "/" in name and not name.startswith("Loss/")


def _why_nan(name: str, counts: Mapping[str, Any]) -> str:
    if counts["detections_not_finite"]:
        return (
            f"{counts['detections_not_finite']} detections are not finite: the weights of the "
            "checkpoint are damaged or training has diverged; use an earlier checkpoint"
        )
    if "oss" in name:
        return "the loss is not finite: weights are not finite, or records have boxes without area"
    return "its denominator is a count of 0"


def _area_of(name: str) -> Optional[str]:
    return next((area for area in AREA_NAMES if f"({area})" in name), None)


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
    category = name.rsplit("/", 1)[1]
    if "ByCategory" in name and counts["boxes"].get(category) == 0:
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
    return "no groundtruth box counts for it"


def _why_zero(name: str, counts: Mapping[str, Any], score_field: str) -> str:
    boxes, detections = counts["boxes"], counts["detections"]
    category = name.rsplit("/", 1)[1]
    if "ByCategory" in name and category in boxes:
        if not detections[category]:
            return f"no detection has the class {category}"
        return f"no detection of this class overlaps its {boxes[category]} boxes enough"
    if not sum(detections.values()):
        unknown = counts["detections_of_unknown_class"]
        if unknown:
            return f"no detection has a class of the label map; ids: {sorted(unknown)[:10]}"
        return (
            f"there are no detections: every score is below {score_field}; the model needs more "
            "training, or its weights were not restored"
        )
    labelled = {name for name, count in boxes.items() if count}
    found = {name for name, count in detections.items() if count}
    if not labelled & found:
        return (
            f"no detected class ({_first_names(found)}) is among the groundtruth classes "
            f"({_first_names(labelled)}): use the label map of the training"
        )
    if counts["best_iou_within_class"] < MATCH_IOU:
        return (
            "no detection overlaps a box of its class with an IoU of "
            f"{MATCH_IOU:g}: the maximum is {counts['best_iou_within_class']:.2f}"
        )
    return "there are too few correct detections, or their scores are too low"


def _first_names(names: Any) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (", …" if len(ordered) > 5 else "")

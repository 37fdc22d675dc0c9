"""What lies behind the numbers of an evaluation: counts, confusion matrix, precision and recall.

`EvalDiagnostics` sees every batch beside the metrics. Its summary holds pictures for TensorBoard
and counts as JSON text, which `explanations` turns into reasons for a metric that is -1, 0 or NaN.
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
# COCO's borders between small, medium and large, pixels squared.
AREA_BORDERS = (32.0**2, 96.0**2)
AREA_NAMES = ("small", "medium", "large")
MAX_CLASSES_DRAWN = 20
MAX_CURVES = len(charts.COLORS) - 1
BACKGROUND = "none"


class EvalDiagnostics:
    """Accumulates one evaluation.

    A detection matches the groundtruth box it overlaps most, of those that no better detection of
    the same image has taken, at an IoU of at least `MATCH_IOU`. Boxes of crowds and detections in
    them do not count.

    Args:
        categories: Dictionaries with "id" (from 1) and "name".
        min_score: Of the detections in the confusion matrix.
    """

    def __init__(self, categories: Sequence[Mapping[str, Any]], min_score: float) -> None:
        self._ids = [int(category["id"]) for category in categories]
        self._names = [str(category["name"]) for category in categories]
        self._min_score = min_score
        self._forget()

    def _forget(self) -> None:
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
        # Of each class: scores of its detections, and whether each is right.
        self._scored: List[List[Tuple[float, bool]]] = [[] for _ in range(size)]

    def add(self, batch: EvaluatedBatch) -> None:
        """Takes one batch, as arrays."""
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
        """Index of each class id; -1, and counted, where it is in no category."""
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
        areas = np.searchsorted(AREA_BORDERS, sizes[real].prod(axis=1), side="right")
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
        """Rows are groundtruth, columns detections; the last of both stands for none."""
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
        """Everything that was counted, as JSON takes it."""
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
        """A serialized Summary of pictures and counts; forgets the batches."""
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
        self._forget()
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
        """Indices of classes that occur at all, in the order of ids; of all if none does."""
        occurrences = self._boxes + self._over_score
        order = np.argsort(-occurrences, kind="stable")
        order = order[occurrences[order] > 0] if occurrences.any() else order
        return np.sort(order[:count])

    def _curves(self) -> List[charts.Curve]:
        """The mean over classes, and the most frequent classes."""
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
    """[n, m] IoUs, taken in the order of detections -> [n], each one's column; -1 for none."""
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
    """Best precision at each recall or a higher one; 0 where it is never reached."""
    right = np.array([hit for _, hit in sorted(scored, key=lambda pair: -pair[0])], float)
    hits = np.cumsum(right)
    precision = hits / np.arange(1, len(right) + 1)
    recall = hits / num_boxes
    best = np.maximum.accumulate(precision[::-1])[::-1]
    place = np.searchsorted(recall, recalls, side="left")
    return np.array([best[i] if i < len(best) else 0.0 for i in place])


def diagnostics_ops(diagnostics: EvalDiagnostics, batch: EvaluatedBatch) -> Dict[str, Any]:
    """`eval_metric_ops` entry whose value, a serialized Summary, Estimator writes."""
    present = {name: value for name, value in batch._asdict().items() if value is not None}

    def add(*arrays: np.ndarray) -> None:
        diagnostics.add(EvaluatedBatch(**dict(zip(present, arrays))))

    update = tf.numpy_function(add, list(present.values()), [])
    return {EVAL_DIAGNOSTICS: (tf.numpy_function(diagnostics.summary, [], tf.string), update)}


def counts_of(results: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """`EvalDiagnostics.counts` out of evaluation results; None where they hold no diagnostics."""
    if not isinstance(results.get(EVAL_DIAGNOSTICS), bytes):
        return None
    for value in tf1.Summary.FromString(results[EVAL_DIAGNOSTICS]).value:
        if value.tag == _TEXT_TAG:
            counts: Dict[str, Any] = json.loads(value.tensor.string_val[0])
            return counts
    return None


def explanations(metrics: Mapping[str, float], counts: Mapping[str, Any]) -> Dict[str, str]:
    """Why a metric is -1, 0 or NaN: name -> reason, of those that are.

    Args:
        metrics: Value by name, as `model_fn.runs.evaluation_report.scalars` gives them.
        counts: Of `counts_of`.
    """
    reasons = {}
    for name, value in metrics.items():
        if np.isnan(value):
            reasons[name] = _why_nan(name, counts)
        elif value == -1 and _is_of_detections(name):
            reasons[name] = _why_absent(name, counts)
        elif value == 0 and _is_of_detections(name):
            reasons[name] = _why_zero(name, counts)
    return reasons


def _is_of_detections(name: str) -> bool:
    return "/" in name and not name.startswith("Loss/")


def _why_nan(name: str, counts: Mapping[str, Any]) -> str:
    if counts["detections_not_finite"]:
        return (
            f"{counts['detections_not_finite']} detections are not finite: the checkpoint's "
            "weights are damaged or training has diverged; choose an earlier checkpoint"
        )
    if "oss" in name:
        return "the loss is not finite: weights are not, or records hold boxes without area"
    return "it divides by a count that is zero"


def _area_of(name: str) -> Optional[str]:
    return next((area for area in AREA_NAMES if f"({area})" in name), None)


def _why_absent(name: str, counts: Mapping[str, Any]) -> str:
    unknown = counts["boxes_of_unknown_class"]
    total = sum(counts["boxes"].values())
    if not counts["images"]:
        return "no image was evaluated: eval_input_reader gives no record"
    if not total and unknown:
        return (
            f"no groundtruth box has a class of the label map; the {sum(unknown.values())} boxes "
            f"have the ids {sorted(map(int, unknown))[:10]}: records and label map do not fit"
        )
    if not total:
        return f"the {counts['images']} images evaluated have no groundtruth box"
    category = name.rsplit("/", 1)[1]
    if "ByCategory" in name and counts["boxes"].get(category) == 0:
        return "no groundtruth box of this class"
    area = _area_of(name)
    if area and not counts["boxes_by_area"][area]:
        low, high = AREA_BORDERS
        limits = {
            "small": f"under {low:.0f}",
            "medium": f"from {low:.0f} to {high:.0f}",
            "large": f"over {high:.0f}",
        }
        return f"no groundtruth box has an area {limits[area]} pixels of the original image"
    return "no groundtruth box falls under it"


def _why_zero(name: str, counts: Mapping[str, Any]) -> str:
    boxes, detections = counts["boxes"], counts["detections"]
    category = name.rsplit("/", 1)[1]
    if "ByCategory" in name and category in boxes:
        if not detections[category]:
            return f"nothing was detected as {category}"
        return f"no detection of this class overlaps its {boxes[category]} boxes enough"
    if not sum(detections.values()):
        unknown = counts["detections_of_unknown_class"]
        if unknown:
            return f"all detections have classes outside the label map: {sorted(unknown)[:10]}"
        return (
            "nothing was detected: every score is below "
            "model.ssd.post_processing's score_threshold; the model is hardly trained, or its "
            "weights were not restored"
        )
    labelled = {name for name, count in boxes.items() if count}
    found = {name for name, count in detections.items() if count}
    if not labelled & found:
        return (
            f"detected classes ({_some(found)}) and labelled classes ({_some(labelled)}) never "
            "meet: is the label map the one of the training?"
        )
    if counts["best_iou_within_class"] < MATCH_IOU:
        return (
            "no detection overlaps a box of its class with an IoU of "
            f"{MATCH_IOU:g}: the best is {counts['best_iou_within_class']:.2f}"
        )
    return "right detections are too few, or of too low a score, to reach it"


def _some(names: Any) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (", …" if len(ordered) > 5 else "")

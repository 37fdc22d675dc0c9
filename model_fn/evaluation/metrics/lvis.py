"""LVIS metrics of boxes and masks (Gupta, Dollar, Girshick, "LVIS: A Dataset for Large Vocabulary
Instance Segmentation", 2019).

LVIS annotates some classes of an image only. A detection counts where its class has groundtruth or
is verified to be absent; a detection that matches nothing does not count where the class may lack
a box.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from estimator_det.console.printing import listed
from estimator_det.errors import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics.base import EvaluatedBatch, Scope, has_class, register
from model_fn.evaluation.metrics.coco import ALL, AT_50, AT_75, CocoBoxMetrics, Summary
from model_fn.evaluation.metrics.overlaps import mask_objects

MAX_DETECTIONS = 300  # detections of an image
FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}
SUMMARIES: Dict[str, Summary] = {
    "AP": Summary("precision", ALL, 0),
    "AP50": Summary("precision", AT_50, 0),
    "AP75": Summary("precision", AT_75, 0),
    "APs": Summary("precision", ALL, 1),
    "APm": Summary("precision", ALL, 2),
    "APl": Summary("precision", ALL, 3),
    "AR@300": Summary("recall", ALL, 0),
    "ARs@300": Summary("recall", ALL, 1),
    "ARm@300": Summary("recall", ALL, 2),
    "ARl@300": Summary("recall", ALL, 3),
}


class LvisBoxMetrics(CocoBoxMetrics):
    """Average precision and recall of boxes, and precision of rare, common and frequent classes.

    There are no crowds; the 300 best detections of an image count. Each category has a "frequency",
    one of `FREQUENCIES`.
    """

    summaries = SUMMARIES
    limits = (MAX_DETECTIONS,)

    def __init__(self, categories: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(categories)
        frequencies = {int(c["id"]): str(c["frequency"]) for c in categories}
        ordered = np.array([frequencies[number] for number in sorted(frequencies)])
        for frequency, word in FREQUENCIES.items():
            columns = np.flatnonzero(ordered == frequency)
            scope = Scope(absent=f"no groundtruth box has a {word} class")
            self._add_all({f"AP{frequency}": SUMMARIES["AP"]}, "", columns, scope)

    def add(self, batch: EvaluatedBatch) -> None:
        """Adds a batch of arrays; without lists of classes, classes of the groundtruth count."""
        for image in batch.images():
            classes = image.detection_classes
            counts = has_class(image.verified_negatives, classes) | np.isin(classes, image.classes)
            best = np.argsort(-image.detection_scores, kind="stable")[:MAX_DETECTIONS]
            image = image.with_detections(best[counts[best]])
            incomplete = has_class(image.not_exhaustive, image.detection_classes)
            objects = self.objects(image._replace(is_crowd=np.zeros_like(image.is_crowd)))
            self._matches.add(objects._replace(keeps_unmatched=~incomplete))


class LvisMaskMetrics(LvisBoxMetrics):
    """The same for masks, with the arguments of `LvisBoxMetrics`."""

    prefix = "DetectionMasks_"
    needs = frozenset({"masks"})
    objects = staticmethod(mask_objects)


def _with_frequencies(name: str, categories: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    without = [c["name"] for c in categories if c.get("frequency") not in FREQUENCIES]
    if without:
        raise ConfigError.at(
            "eval_config.metrics_set",
            f"{name!r} needs a label map that gives the frequency of each class; "
            f"{listed(map(repr, without), 5)} has none",
            "Add frequency: RARE, COMMON or FREQUENT to each item",
        )
    return list(categories)


@register("lvis_box_metrics", "lvis_detection_metrics", needs_label_map=True)
def _make_boxes(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> LvisBoxMetrics:
    del eval_config
    return LvisBoxMetrics(_with_frequencies("lvis_box_metrics", categories))


@register("lvis_mask_metrics", needs_label_map=True)
def _make_masks(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> LvisMaskMetrics:
    del eval_config
    return LvisMaskMetrics(_with_frequencies("lvis_mask_metrics", categories))

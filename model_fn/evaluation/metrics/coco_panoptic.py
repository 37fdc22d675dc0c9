"""Panoptic quality (Kirillov et al., "Panoptic Segmentation", 2019)."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

import numpy as np

from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics.base import EvaluatedBatch, Scope, register
from model_fn.evaluation.metrics.coco_matching import greedy_match
from model_fn.evaluation.metrics.overlaps import mask_iou


class CocoPanopticMetrics:
    """Quality of segmentation, of recognition, and their product, averaged over categories.

    Detections match in the order given, not by score. Categories without groundtruth and
    detections do not count; if there are no others, all is NaN. Objects of other categories are
    ignored.

    Args:
        per_category: Adds the panoptic quality of every category.
        iou_threshold: IoU from which a detection matches.
        ioa_threshold: Part inside a crowd from which a detection does not count.
    """

    needs = frozenset({"masks"})
    num_keypoints = 0

    def __init__(
        self,
        categories: Sequence[Mapping[str, Any]],
        *,
        per_category: bool = False,
        iou_threshold: float = 0.5,
        ioa_threshold: float = 0.5,
    ) -> None:
        names = {int(c["id"]): str(c["name"]) for c in categories}
        self._ids = np.array(sorted(names))
        self._iou_threshold, self._ioa_threshold = iou_threshold, ioa_threshold
        at = f"@{iou_threshold:.2f}IOU"
        self._summary_names = [
            f"{kind}Quality{at}" for kind in ("Panoptic", "Segmentation", "Recognition")
        ]
        start = f"{self._summary_names[0]}_ByCategory"
        category_names = [names[k] for k in sorted(names) if per_category]
        self._category_names = [f"{start}/{name}" for name in category_names]
        self.scopes = dict(zip(self._category_names, map(Scope, category_names)))
        # IoU of matched pairs; matches; detections without one; missed groundtruth.
        self._sums = np.zeros((4, len(self._ids)))
        self.names = list(self.results())

    def add(self, batch: EvaluatedBatch) -> None:
        for image in batch.images():
            overlaps = mask_iou(image.masks.detections, image.masks.groundtruth, image.is_crowd)
            for k, number in enumerate(self._ids):
                is_of_class = image.classes == number
                class_overlaps = overlaps[image.detection_classes == number]
                ioa = class_overlaps[:, is_of_class & image.is_crowd]
                iou = class_overlaps[:, is_of_class & ~image.is_crowd]
                columns = greedy_match(iou, [self._iou_threshold])[0, 0]
                matched = columns >= 0
                unmatched = ~matched & ~(ioa >= self._ioa_threshold).any(axis=1)
                counts = matched.sum(), unmatched.sum(), iou.shape[1] - matched.sum()
                self._sums[:, k] += iou[matched, columns[matched]].sum(), *counts

    def results(self) -> Dict[str, float]:
        iou, matched, unmatched, missed = self._sums
        weight = matched + unmatched / 2 + missed / 2
        valid = weight > 0
        segmentation = np.divide(iou, matched, out=np.zeros_like(iou), where=matched > 0)
        recognition = np.divide(matched, weight, out=np.zeros_like(iou), where=valid)
        qualities = (segmentation * recognition, segmentation, recognition)
        nothing = float("nan")
        results = {
            name: float(values[valid].mean()) if valid.any() else nothing
            for name, values in zip(self._summary_names, qualities)
        }
        results["NumValidClasses"] = float(valid.sum())
        results["NumTotalClasses"] = float(len(self._ids))
        category_qualities = np.where(valid, qualities[0], nothing).tolist()
        results.update(zip(self._category_names, category_qualities))
        return results


@register("coco_panoptic_metrics", eval_fields=("include_metrics_per_category",))
def _make(
    eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
) -> CocoPanopticMetrics:
    return CocoPanopticMetrics(categories, per_category=eval_config.include_metrics_per_category)

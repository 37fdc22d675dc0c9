"""Anchors of a starter configuration, from the sizes and shapes of the boxes."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

from estimator_det.config.printing import counted
from estimator_det.programs.starter import Choice, Draft, apply, model_part, object_sides
from inputs.checks.statistics import Columns
from model_fn.checks import data_check
from model_fn.checks.anchor_coverage import Coverage

BETTER_IOU = 0.02  # by which anchors of the data must be better than published ones
MANY_UNMATCHED = 0.05  # share of boxes for which new anchors are worth new heads


def decide_anchors(draft: Draft, columns: Columns, *, has_heads: bool) -> Optional[Coverage]:
    """Takes anchors that follow from the data, if they fit its boxes better.

    Args:
        has_heads: Heads are restored, which have learned the present anchors; they are kept unless
            many boxes match none of them.
    """
    coverage = data_check.coverage_of(draft.config, columns, progress=False)
    candidate = anchor_candidate(draft.config, columns)
    if coverage is None or candidate is None:
        return coverage
    # In one fine-tuning on 160 photographs restored heads were worth .09 of mAP@.50.
    if has_heads and (coverage.best_iou < 0.5).mean() < MANY_UNMATCHED:
        reason = "Those of the weights, whose heads have learned them; the boxes match them."
        draft.reasons[candidate.field] = reason
        return coverage
    changed = apply(draft.config, [candidate])
    fit = data_check.coverage_of(changed, columns, progress=False)
    if fit is None or fit.best_iou.mean() < coverage.best_iou.mean() + BETTER_IOU:
        return coverage
    reason = (
        "From the sizes and shapes of the boxes, which overlap their best anchor by "
        f"{fit.best_iou.mean():.2f} on average; without that by {coverage.best_iou.mean():.2f}."
    )
    draft.decide([candidate._replace(reason=reason)])
    return fit


def findings(coverage: Optional[Coverage]) -> List[str]:
    """Lines about how well anchors cover the boxes."""
    if coverage is None:
        return []
    below = int(coverage.below.sum())
    lines = [
        f"anchors: boxes overlap their best anchor by {coverage.best_iou.mean():.2f} on average; "
        f"{counted(below, 'box overlaps', 'boxes overlap')} none by half"
    ]
    unused = [part for part in coverage.maps if not part.num_best]
    if unused:
        sizes = ", ".join(f"{part.size[0]}x{part.size[1]}" for part in unused)
        lines.append(f"no box matches the anchors of the feature maps of {sizes} cells")
    return lines


def anchor_candidate(config: Any, columns: Columns) -> Optional[Choice]:
    """Anchors whose sizes and shapes follow from the boxes; None for other generators."""
    kind = config.model.WhichOneof("model")
    generator = "anchor_generator" if kind == "ssd" else "first_stage_anchor_generator"
    anchors = getattr(model_part(config), generator)
    which = anchors.WhichOneof("anchor_generator_oneof")
    sides, ratios = object_sides(columns), aspect_ratios(columns)
    # The rarest sizes are left to the matcher, which gives each box its best anchor.
    low, high = (float(np.percentile(sides, share)) for share in (4, 96))
    if which == "ssd_anchor_generator":
        message = anchors.ssd_anchor_generator
        # Random crops and flips make objects a little smaller and larger than the records say.
        fields = {"num_layers": message.num_layers, "min_scale": f"{max(0.85 * low, 0.03):.3g}",
                  "max_scale": f"{min(max(high, 2 * low, 0.3), 0.95):.3g}",
                  "aspect_ratios": _listed(_with_same_number(ratios, message.aspect_ratios)),
                  "reduce_boxes_in_lowest_layer": "false"}  # fmt: skip
    elif which == "multiscale_anchor_generator":
        message = anchors.multiscale_anchor_generator
        height = model_part(config).image_resizer.fixed_shape_resizer.height
        # The finest map has anchors of this many strides.
        scale = low * height / 2**message.min_level
        fields = {"min_level": message.min_level, "max_level": message.max_level,
                  "anchor_scale": f"{min(max(scale, 1.5), 4.0):.2g}",
                  "aspect_ratios": _listed(_with_same_number(ratios, message.aspect_ratios)),
                  "scales_per_octave": message.scales_per_octave}  # fmt: skip
    elif which == "grid_anchor_generator" and columns.num_boxes:
        message = anchors.grid_anchor_generator
        side = model_part(config).image_resizer.keep_aspect_ratio_resizer.min_dimension or 600
        # Scale 1 is 256 pixels of the resized image.
        scales = np.geomspace(low, max(high, 2 * low), len(message.scales)) * side / 256
        fields = {"scales": _listed(np.maximum(scales, 0.05)),
                  "aspect_ratios": _listed(_with_same_number(ratios, message.aspect_ratios)),
                  "height_stride": message.height_stride,
                  "width_stride": message.width_stride}  # fmt: skip
    else:
        return None
    text = " ".join(f"{field}: {value}" for field, value in fields.items())
    return Choice(f"model.{kind}.{generator}", f"{{ {which} {{ {text} }} }}", "")


def aspect_ratios(columns: Columns) -> np.ndarray:
    """Widths over heights of boxes in images that are resized to a square: float [M], sorted."""
    # Records may have boxes without area, which `check-data` reports.
    extents = np.maximum(columns.boxes[:, 2:] - columns.boxes[:, :2], 1e-4)
    return np.sort(extents[:, 1] / extents[:, 0])


def _with_same_number(ratios: np.ndarray, present: Sequence[float]) -> List[float]:
    """As many ratios as now, so that heads of a checkpoint fit: 1 and quantiles of the boxes."""
    number = max(len(present), 1)
    # Quantiles put ratios where boxes are; 1 stays, since generators treat it in a special way.
    spread = [float(np.quantile(ratios, (i + 0.5) / (number - 1))) for i in range(number - 1)]
    return [1.0, *(min(max(value, 0.2), 5.0) for value in spread)]


def _listed(values: Any) -> str:
    return "[" + ", ".join(f"{float(value):.3g}" for value in values) + "]"

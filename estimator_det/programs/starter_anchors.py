"""Anchors of a starter configuration, from the sizes and shapes of the boxes."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional

import numpy as np

from estimator_det.config import pipeline
from estimator_det.config.printing import counted
from estimator_det.programs.starter import Draft, model_part, object_sides
from inputs.checks.statistics import Columns
from model_fn.checks import data_check
from model_fn.checks.anchor_coverage import Coverage

BETTER_IOU = 0.02  # by which anchors of the data must be better than published ones
MANY_UNMATCHED = 0.05  # share of boxes for which new anchors are worth new heads


def set_anchors(draft: Draft, columns: Columns, *, has_heads: bool) -> Optional[Coverage]:
    """Takes anchors that follow from the data, if they fit its boxes better.

    Args:
        has_heads: Heads are restored, which have learned the present anchors; they are kept unless
            many boxes match none of them.
    """
    coverage = data_check.coverage_of(draft.config, columns, progress=False)
    anchors = anchors_of(columns, model_part(draft.config))
    if coverage is None or anchors is None:
        return coverage
    field = f"{draft.model_path}.{'' if draft.is_ssd else 'first_stage_'}anchor_generator"
    # In one fine-tuning on 160 photographs restored heads were worth .09 of mAP@.50.
    if has_heads and (coverage.best_iou < 0.5).mean() < MANY_UNMATCHED:
        reason = "Those of the weights, whose heads have learned them; the boxes match them."
        draft.reasons[field] = reason
        return coverage
    changed = pipeline.apply_overrides(draft.config, [f"{field}={anchors}"])
    fit = data_check.coverage_of(changed, columns, progress=False)
    if fit is None or fit.best_iou.mean() < coverage.best_iou.mean() + BETTER_IOU:
        return coverage
    reason = (
        "From the sizes and shapes of the boxes, which overlap their best anchor by "
        f"{fit.best_iou.mean():.2f} on average; without that by {coverage.best_iou.mean():.2f}."
    )
    draft.set(field, anchors, reason)
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


def anchors_of(columns: Columns, model: Any) -> Optional[str]:
    """Text form of a generator with anchors like the boxes; None for generators of other kinds."""
    is_ssd = hasattr(model, "anchor_generator")
    generator = model.anchor_generator if is_ssd else model.first_stage_anchor_generator
    kind = generator.WhichOneof("anchor_generator_oneof")
    message = getattr(generator, kind)
    # The rarest sizes are left to the matcher, which gives each box its best anchor.
    low, high = (float(np.percentile(object_sides(columns), share)) for share in (4, 96))
    high = max(high, 2 * low)
    if kind == "ssd_anchor_generator":
        # Random crops and flips make objects a little smaller and larger than the records say.
        text = (
            f"num_layers: {message.num_layers} min_scale: {max(0.85 * low, 0.03):.3g} "
            f"max_scale: {min(max(high, 0.3), 0.95):.3g} reduce_boxes_in_lowest_layer: false"
        )
    elif kind == "multiscale_anchor_generator":
        # The finest map has anchors of this many strides.
        scale = low * model.image_resizer.fixed_shape_resizer.height / 2**message.min_level
        text = (
            f"min_level: {message.min_level} max_level: {message.max_level} "
            f"anchor_scale: {min(max(scale, 1.5), 4.0):.2g} "
            f"scales_per_octave: {message.scales_per_octave}"
        )
    elif kind == "grid_anchor_generator":
        side = model.image_resizer.keep_aspect_ratio_resizer.min_dimension or 600
        # Scale 1 is 256 pixels of the resized image.
        scales = np.geomspace(low, high, len(message.scales)) * side / 256
        text = (
            f"scales: {_listed(np.maximum(scales, 0.05))} "
            f"height_stride: {message.height_stride} width_stride: {message.width_stride}"
        )
    else:
        return None
    ratios = _listed(_aspect_ratios(columns, len(message.aspect_ratios)))
    return f"{{ {kind} {{ {text} aspect_ratios: {ratios} }} }}"


def _aspect_ratios(columns: Columns, number: int) -> List[float]:
    """1 and quantiles of the boxes' widths over heights, in images resized to a square.

    As many ratios as now, so that heads of a checkpoint fit.
    """
    # Records may have boxes without area, which `check-data` reports.
    extents = np.maximum(columns.boxes[:, 2:] - columns.boxes[:, :2], 1e-4)
    # Quantiles put ratios where boxes are; 1 stays, since generators treat it in a special way.
    places = (np.arange(number - 1) + 0.5) / max(number - 1, 1)
    return [1.0, *np.quantile(extents[:, 1] / extents[:, 0], places).clip(0.2, 5.0)]


def _listed(values: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in values) + "]"

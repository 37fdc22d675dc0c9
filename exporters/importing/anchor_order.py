"""Order of anchors: the interpolated scale is last at each place, but second in models of 2017.

The first release of the TensorFlow Object Detection API put the anchor of the interpolated scale
right after the first anchor of aspect ratio 1. Heads of such models are permuted, which changes no
detection.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.errors import UsageError
from estimator_det.protos import model_pb2

LAST = "last"
ORDER_2017 = "2017"

_HEAD = re.compile(r"BoxPredictor_(\d+)/(BoxEncodingPredictor|ClassPredictor)/(weights|biases)$")
_SAME = 1e-3  # greatest difference of equal anchors, of an image's side


class Layout(NamedTuple):
    """Anchors of one feature map: how many at each place, and where 2017 has ours."""

    num_places: int
    order: List[int]  # position in the order of 2017 of each of our anchors


def layouts_of(model: model_pb2.DetectionModel, places: Sequence[int]) -> Optional[List[Layout]]:
    """Layout of each feature map; None for models whose anchors have one order only.

    Args:
        places: Height times width of each feature map.
    """
    ssd = model.ssd  # empty in other models
    parts = (
        ssd.anchor_generator.WhichOneof("anchor_generator_oneof"),
        ssd.box_predictor.WhichOneof("box_predictor_oneof"),
    )
    if parts != ("ssd_anchor_generator", "convolutional_box_predictor"):
        return None
    message = ssd.anchor_generator.ssd_anchor_generator
    ratios = list(message.aspect_ratios) or [1.0, 2.0, 0.5, 3.0, 1.0 / 3]
    has_interpolated = message.interpolated_scale_aspect_ratio > 0 and 1.0 in ratios
    layouts = []
    for layer, count in enumerate(places):
        if layer == 0 and message.reduce_boxes_in_lowest_layer:
            layouts.append(Layout(count, [0, 1, 2]))
            continue
        order = list(range(len(ratios)))
        if has_interpolated:
            after = ratios.index(1.0) + 1
            order = [each + (each >= after) for each in order] + [after]
        layouts.append(Layout(count, order))
    return layouts


def find_order(
    theirs: np.ndarray, ours: np.ndarray, layouts: Optional[Sequence[Layout]]
) -> Tuple[Optional[str], float]:
    """Compares the anchors of a file, [A, 4], with ours in both orders.

    Returns:
        The order of the file, None if its anchors fit neither order; and their greatest difference
        from ours in the nearer order, as a share of an image's side.
    """
    if theirs.shape != ours.shape:
        return None, float("inf")
    differences = {LAST: float(np.abs(theirs - ours).max())}
    if layouts is not None:
        differences[ORDER_2017] = float(np.abs(_reordered(theirs, layouts) - ours).max())
    order = min(differences, key=lambda each: differences[each])
    return (order if differences[order] <= _SAME else None), differences[order]


def _reordered(anchors: np.ndarray, layouts: Sequence[Layout]) -> np.ndarray:
    """Anchors in the order of 2017 as ours."""
    parts, start = [], 0
    for layout in layouts:
        end = start + layout.num_places * len(layout.order)
        part = anchors[start:end].reshape(layout.num_places, len(layout.order), 4)
        parts.append(part[:, layout.order].reshape(-1, 4))
        start = end
    return np.concatenate(parts) if start == len(anchors) else anchors


def permute_heads(
    variables: Dict[str, np.ndarray], layouts: Optional[Sequence[Layout]]
) -> List[str]:
    """Brings heads in the order of 2017 into ours, in place; returns the names of variables."""
    if layouts is None:
        raise UsageError(
            "--anchor_order 2017: is for models with ssd_anchor_generator and "
            "convolutional_box_predictor; leave it out"
        )
    permuted = []
    for name, values in variables.items():
        head = _HEAD.search(name)
        if head is None or int(head.group(1)) >= len(layouts):
            continue
        order = layouts[int(head.group(1))].order
        rows = values.reshape(*values.shape[:-1], len(order), -1)
        variables[name] = rows[..., order, :].reshape(values.shape)
        if order != sorted(order):
            permuted.append(name)
    return permuted

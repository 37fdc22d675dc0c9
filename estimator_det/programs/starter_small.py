"""Small objects of a starter configuration: a model that sees them, or a line with remedies."""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, Tuple

import numpy as np

from estimator_det.console.printing import quoted
from estimator_det.images.tiles import OVERLAP
from estimator_det.programs.starter_models import (
    DEFAULT_MODEL,
    DEFAULT_STRIDE,
    FINER_MODEL,
    FINER_STRIDE,
    find_starter,
)
from inputs.checks.statistics import Columns, box_sizes
from inputs.conversion.tiles import LEAST_SHARE
from model_fn.checks.data_problems import FEW_BOXES

MIN_CELLS = 2  # cells of the finest feature map that a box should cover in each direction
MOST_ENLARGED = 2  # a larger input by this factor takes four times as long, which is the most
SMALLEST_TILE = 64  # pixels
# Longer side of a box, as a share of the side of tiles, up to which a tile has it whole in half of
# all places or more.
LONGEST = 1 - (1 - OVERLAP) / 2
UNCUT = 0.9  # the median box in tiles, which cut some boxes off, as a share of it in whole images


def least_side(stride: float) -> float:
    """Pixels of the network's input that the shorter side of a box should have.

    Args:
        stride: Pixels between the cells of the finest feature map.
    """
    # Finer maps do not help where an object of few pixels has no shape.
    return MIN_CELLS * max(stride, FINER_STRIDE)


def median_sides(extents: np.ndarray, class_ids: np.ndarray) -> Dict[int, float]:
    """Class id -> median of the shorter sides of its boxes, whose heights and widths are [M, 2]."""
    shorter = extents.min(axis=1)
    return {i: float(np.median(shorter[class_ids == i])) for i in np.unique(class_ids).tolist()}


def needs_finer_map(columns: Columns) -> bool:
    """True if `FINER_MODEL` sees all classes in less time than `DEFAULT_MODEL` would."""
    ids, counts = np.unique(columns.class_ids, return_counts=True)
    sides = median_sides(columns.boxes[:, 2:] - columns.boxes[:, :2], columns.class_ids)
    # A few boxes may be slips of the annotator.
    smallest = min((sides[i] for i in ids[counts >= FEW_BOXES].tolist()), default=1.0)

    def cost(name: str, stride: int) -> float:
        row = find_starter(name)
        published = int(row.input_size.partition("x")[0])
        enlarged = MIN_CELLS * stride / max(smallest, 1e-6) / published
        return float(row.step_time * max(enlarged, 1.0) ** 2)

    return cost(FINER_MODEL, FINER_STRIDE) < cost(DEFAULT_MODEL, DEFAULT_STRIDE)


def small_classes(
    columns: Columns,
    input_size: Tuple[int, int],
    stride: float,
    names: Mapping[int, str],
    published_side: float = math.inf,
) -> Dict[int, str]:
    """Classes whose median box is below `least_side`, and what to do.

    Args:
        input_size: Height and width of the network's input.
        stride: Pixels between the cells of its finest feature map.
        names: Class id -> name.
        published_side: Height and width of the input of the model's own configuration, if fixed.
    """
    ids, needed = columns.class_ids, least_side(stride)
    fractions = columns.boxes[:, 2:] - columns.boxes[:, :2]
    sides = median_sides(fractions * np.asarray(input_size, np.float32), ids)
    originals = median_sides(box_sizes(columns), ids)
    small = {class_id: side for class_id, side in sides.items() if side < needed}
    # A tile becomes the network's input, so that its objects grow by the same factor. One side of
    # tiles serves all classes. Tiles are more images than before, for which the same time allows
    # no input above the published one; classes that whole images lose do not lower theirs.
    smallest = min((originals[class_id] for class_id in small), default=0.0)
    enlarged = UNCUT * smallest / needed
    side = min(input_size) if math.isinf(published_side) else published_side
    longer = box_sizes(columns).max(axis=1)
    longest = max((float(np.median(longer[ids == class_id])) for class_id in small), default=0.0)
    tile = max(int(side * enlarged), SMALLEST_TILE, math.ceil(longest / LONGEST))
    lost = ", ".join(quoted(names.get(i, i)) for i in _too_large(columns, tile))
    height, width = input_size
    texts = {}
    for class_id, side in small.items():
        remedies = []
        if needed <= MOST_ENLARGED * side:
            size = math.ceil(max(input_size) * needed / side)
            remedies.append(f"more time or memory for an input of {size} pixels")
        if stride > FINER_STRIDE:
            remedies.append(f"--model {FINER_MODEL}, whose finest map has {FINER_STRIDE} pixels")
        if tile < columns.sizes.max():
            remedies.append(f"convert --tiles {tile}, with eval_config.tiles.side={tile}")
        reason = f"{MIN_CELLS} cells of the finest feature map"
        texts[class_id] = (
            f"the shorter side of half of its boxes is below {side:.0f} pixels of the input of "
            f"{width}x{height}; it should be {needed:.0f}, "
            f"{reason if stride >= FINER_STRIDE else 'to have a shape'}. "
            f"Give {', or '.join(remedies) or 'pictures from a shorter distance'}"
        )
        if lost and tile < columns.sizes.max():
            texts[class_id] += f"; most boxes of {lost} are too large for such tiles"
    return texts


def _too_large(columns: Columns, tile: int) -> List[int]:
    """Classes of most of whose boxes no tile shows enough to keep them."""
    sizes = box_sizes(columns)
    is_lost = np.minimum(sizes, tile).prod(axis=1) < LEAST_SHARE * sizes.prod(axis=1)
    ids = columns.class_ids
    return [i for i in np.unique(ids).tolist() if is_lost[ids == i].mean() > 0.5]

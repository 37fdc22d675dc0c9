"""Masks on the host, stored as the rectangle that they fill, and COCO run lengths.

Letters: h x w pixels of a mask that fills its box, H x W pixels of the image.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

Array = np.ndarray[Any, Any]

INSIDE_ABOVE = 0.5  # a pixel belongs to the object if the mask is above this, as in the API


class MaskRegion(NamedTuple):
    """A mask of an image; all pixels outside a rectangle are empty."""

    top: int  # first row of the rectangle
    left: int  # first column
    inside: Array  # bool [rows, columns]


def paste_mask(mask: Array, box: Array, size: Tuple[int, int]) -> MaskRegion:
    """Pastes a mask [h, w] that fills its box [4] into an image of H, W; pixels above 0.5 count.

    `tf.image.crop_and_resize` with the image as a box of the mask has the same result, but here the
    cost depends on the box, not on the image. Boxes are normalized yxyx; parts outside the image
    are cut off.
    """
    low, high = np.asarray(box, np.float32).reshape(2, 2)
    if not (high > low).all() or not np.isfinite([low, high]).all():
        return MaskRegion(0, 0, np.zeros([0, 0], bool))
    rows = _samples(low[0], high[0], mask.shape[0], size[0])
    columns = _samples(low[1], high[1], mask.shape[1], size[1])
    pixels = np.asarray(mask, np.float32)
    above, below = pixels[rows.lower], pixels[rows.upper]
    # Columns first, then rows: `tf.image.crop_and_resize` rounds in this order.
    upper = _between(above[:, columns.lower], above[:, columns.upper], columns.share)
    lower = _between(below[:, columns.lower], below[:, columns.upper], columns.share)
    values = _between(upper, lower, rows.share[:, np.newaxis])
    return MaskRegion(rows.start, columns.start, values > INSIDE_ABOVE)


class _Samples(NamedTuple):
    """Positions of the image's pixels in a mask, along one axis."""

    start: int  # the first pixel inside the box
    lower: Array  # int [n], the mask's pixel before each position
    upper: Array  # int [n], the mask's pixel after it
    share: Array  # float32 [n], weight of `upper`


def _samples(low: np.float32, high: np.float32, mask_size: int, image_size: int) -> _Samples:
    """Positions as in `tf.image.crop_and_resize`, with its rounding; corner pixels are aligned."""
    extent, last = high - low, np.float32(mask_size - 1)
    first, end = -low / extent, (np.float32(1.0) - low) / extent
    pixels = np.arange(image_size, dtype=np.float32)
    if image_size > 1:
        scale = (end - first) * last / np.float32(image_size - 1)
        positions = first * last + pixels * scale
    else:
        # A single pixel lies in the middle, as in TensorFlow's kernel.
        positions = np.float32(0.5) * (first + end) * last + pixels
    indices = np.flatnonzero((positions >= 0) & (positions <= last))
    inside = positions[indices]
    lower = np.floor(inside)
    return _Samples(
        int(indices[0]) if indices.size else 0,
        lower.astype(np.int64),
        np.ceil(inside).astype(np.int64),
        inside - lower,
    )


def _between(first: Array, second: Array, share: Array) -> Array:
    return first + (second - first) * share


def resize_mask(mask: Array, size: Tuple[int, int]) -> MaskRegion:
    """Resizes a mask of a whole image to the nearest pixel; corner pixels are aligned.

    The API resizes groundtruth masks to the original image in this way.
    """
    inside = np.asarray(mask) > INSIDE_ABOVE
    for axis, (old, new) in enumerate(zip(inside.shape, size)):
        if old != new:
            scale = np.float32((old - 1) / (new - 1)) if new > 1 else np.float32(0)
            # Half a pixel is rounded up: np.round rounds to the even number.
            nearest = np.floor(np.arange(new, dtype=np.float32) * scale + np.float32(0.5))
            inside = inside.take(np.minimum(nearest.astype(np.int64), old - 1), axis)
    return MaskRegion(0, 0, inside)


def run_lengths(region: MaskRegion, size: Tuple[int, int]) -> Dict[str, Any]:
    """COCO's compressed run-length encoding: {"size": [H, W], "counts": bytes}."""
    # Imported here, because training does not need pycocotools.
    from pycocotools import mask as coco_mask

    counts = run_counts(region, size)
    encoded: Dict[str, Any] = coco_mask.frPyObjects({"size": list(size), "counts": counts}, *size)
    return encoded


def run_counts(region: MaskRegion, size: Tuple[int, int]) -> List[int]:
    """Lengths of runs down the columns, alternately outside and inside the mask."""
    height, width = size
    num_columns = region.inside.shape[1]
    # Empty rows above and below, so that every run has a start and an end.
    padded = np.zeros([num_columns, region.inside.shape[0] + 2], np.int8)
    padded[:, 1:-1] = region.inside.T
    change = np.diff(padded, axis=1)
    column, row = np.nonzero(change)
    edges = (region.left + column) * height + region.top + row
    # A run that reaches the last row continues in the first row of the next column.
    continues = np.flatnonzero(edges[1:-1:2] == edges[2::2])
    edges = np.delete(edges, np.concatenate([2 * continues + 1, 2 * continues + 2]))
    ends = [] if edges.size and edges[-1] == height * width else [height * width]
    counts: List[int] = np.diff(np.concatenate([[0], edges, ends]).astype(np.int64)).tolist()
    return counts

"""Masks of objects: COCO's polygons and run lengths to pixels and back, and PNG files.

Run lengths count pixels column by column, first those outside of the object (pycocotools,
`maskApi.c`). All counts are checked before pixels are made from them.
"""

from __future__ import annotations

import io
import math
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from PIL import Image, PngImagePlugin
from pycocotools import mask as coco_mask

from estimator_det.files import run_lengths
from estimator_det.files.image_header import PILLOW_ERRORS

MAX_FILE_PIXELS = 100_000_000  # pixels of the file of a mask
_Size = Tuple[int, int]  # height and width


class MaskError(Exception):
    """Polygons, run lengths or a file that cannot become a mask; the text says why."""


def from_polygons(polygons: Sequence[Sequence[float]], size: _Size) -> np.ndarray:
    """Bool [h, w] of one object's polygons x, y, x, y, … in pixels, as pycocotools fills them."""
    height, width = size
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2:
            raise MaskError(f"a polygon has {len(polygon)} coordinates, not 3 or more pairs")
        for values, side in ((polygon[0::2], width), (polygon[1::2], height)):
            # A polygon may extend beyond each edge by the length of the image.
            if not all(-side <= value <= 2 * side for value in values):
                raise MaskError(
                    f"a polygon has coordinates from {min(values):.6g} to {max(values):.6g} in an "
                    f"image of {width} x {height} pixels"
                )
    if not polygons:
        raise MaskError("there is no polygon")
    encoded = coco_mask.frPyObjects([list(map(float, polygon)) for polygon in polygons], *size)
    return np.asarray(coco_mask.decode(coco_mask.merge(encoded)), bool)


def from_run_lengths(annotation: Dict[str, Any], size: _Size) -> np.ndarray:
    """Bool [h, w] of {"size": [h, w], "counts": …}, compressed or a list."""
    if annotation.get("size") != list(size):
        size_text = annotation.get("size")
        raise MaskError(f"run lengths of size {size_text} in an image of size {list(size)}")
    try:
        counts = run_lengths.parse(annotation.get("counts"), size)
    except run_lengths.RunLengthError as error:
        raise MaskError(f"run lengths: counts {error}") from None
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(size[1], size[0]).T


def from_file(path: str, size: _Size) -> np.ndarray:
    """Bool [h, w] of a PNG file, whose pixels are 0 outside of the object.

    A file of another size is scaled to the size of the image, by nearest pixels.
    """
    try:
        with PngImagePlugin.PngImageFile(path) as image:
            if image.width * image.height > MAX_FILE_PIXELS:
                raise MaskError(
                    f"a file of {image.width} x {image.height} pixels; allowed: {MAX_FILE_PIXELS:,}"
                )
            pixels = np.asarray(image)
    except PILLOW_ERRORS as error:
        raise MaskError(f"a file that is no PNG image: {error}") from None
    inside = pixels.any(axis=2) if pixels.ndim == 3 else pixels != 0
    rows, columns = (
        (np.arange(side) * 2 + 1) * extent // (2 * side) for side, extent in zip(size, inside.shape)
    )
    return inside[rows[:, np.newaxis], columns]


def to_run_lengths(mask: np.ndarray) -> Dict[str, Any]:
    """{"size": [h, w], "counts": compressed text} of bool [h, w]."""
    encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {"size": [int(side) for side in mask.shape], "counts": encoded["counts"].decode()}


def extent(mask: np.ndarray) -> List[float]:
    """ymin, xmin, ymax, xmax in pixels of bool [h, w]; zeros for an empty mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return [0.0] * 4
    edges = (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1)
    return [float(edge) for edge in edges]


def polygon_extent(polygons: Sequence[Sequence[float]]) -> List[float]:
    """ymin, xmin, ymax, xmax of the points of polygons x, y, x, y, …; NaN unless all are finite."""
    x = [value for polygon in polygons for value in polygon[0::2]]
    y = [value for polygon in polygons for value in polygon[1::2]]
    if not (x and y and all(map(math.isfinite, (*x, *y)))):
        return [math.nan] * 4
    return [min(y), min(x), max(y), max(x)]


def to_png(mask: np.ndarray) -> bytes:
    """A PNG file of one bit for each pixel of bool [h, w]."""
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()

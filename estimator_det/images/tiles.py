"""Overlapping tiles of an image, as detection on tiles and their conversion to records cut them."""

from __future__ import annotations

import itertools
from typing import List, NamedTuple

import numpy as np

OVERLAP = 0.2  # share of a tile that the next one repeats, unless another one is given


class Tile(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def tiles_of(height: int, width: int, side: int, overlap: float) -> List[Tile]:
    """The tiles of an image: as few as possible, of one size, in equal distances.

    Args:
        side: Height and width of a tile; smaller where the image is.
        overlap: Least share of a tile that the next one repeats, 0 to below 1.
    """
    tops, lefts = (_starts(length, side, overlap) for length in (height, width))
    size = min(side, height), min(side, width)
    return [Tile(top, left, *size) for top, left in itertools.product(tops, lefts)]


def _starts(length: int, side: int, overlap: float) -> List[int]:
    if length <= side:
        return [0]
    count = 1 + int(np.ceil((length - side) / (side * (1 - overlap))))
    return np.linspace(0, length - side, count).round().astype(int).tolist()

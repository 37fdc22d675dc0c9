"""Cuts an image and its boxes into overlapping tiles, each of which becomes a record."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from estimator_det.images.tiles import OVERLAP, tiles_of
from inputs.conversion import images
from inputs.conversion.images import Checked
from inputs.conversion.objects import RecordOptions, SoundObject

# A tile that shows less of a box has no object there: training would learn its sides as objects.
LEAST_SHARE = 0.5


class Part(NamedTuple):
    """A whole image, or a tile of it."""

    encoded: bytes
    size: Tuple[int, int]  # height and width
    objects: Sequence[SoundObject]
    place: str = ""  # left and top of a tile, as the end of a name


class Cut(NamedTuple):
    """The tiles of an image, and what they leave out."""

    parts: List[Part]
    num_cut: int = 0  # parts of boxes, below LEAST_SHARE, at the sides of tiles
    num_lost: int = 0  # boxes that no tile has


def cut(checked: Checked, objects: Sequence[SoundObject], options: RecordOptions) -> Cut:
    """The tiles of an image; one part, with the image's own bytes, if it is not larger than one."""
    places = tiles_of(*checked.size, options.tiles, OVERLAP) if options.tiles else []
    if len(places) <= 1:
        return Cut([Part(checked.encoded, checked.size, objects)])
    corners = np.reshape([each.box for each in objects], [-1, 2, 2]) * checked.size
    areas = np.prod(corners[:, 1] - corners[:, 0], axis=1)
    parts, num_cut, is_found = [], 0, np.zeros(len(objects), bool)
    for place, encoded in zip(places, images.cut_out(checked.encoded, places, options.image)):
        size = (place.height, place.width)
        inside = np.clip(corners - (place.top, place.left), 0, size)
        shares = np.prod(inside[:, 1] - inside[:, 0], axis=1) / areas
        is_kept = shares >= LEAST_SHARE
        num_cut += int(((shares > 0) & ~is_kept).sum())
        is_found |= is_kept
        shown = [
            _shown(objects[i], (inside[i] / size).ravel(), shares[i] < 1)
            for i in np.flatnonzero(is_kept)
        ]
        parts.append(Part(encoded, size, shown, f"_{place.left}_{place.top}"))
    return Cut(parts, num_cut, int((~is_found).sum()))


def _shown(sound: SoundObject, box: np.ndarray, is_cut: bool) -> SoundObject:
    """An object in a tile; values of the source describe it in its image."""
    annotated = sound.annotated._replace(fields=None)
    if is_cut:
        annotated = annotated._replace(area=None)
    return sound._replace(annotated=annotated, box=box)

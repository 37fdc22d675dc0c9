"""Detection on overlapping tiles of large images: for objects that a resized image would lose.

A model resizes its image, so that an object of 20 pixels in an image of 4,000 becomes one of two.
On tiles it keeps its size. The whole image is seen, too, for objects larger than a tile.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from estimator_det.images.tiles import Tile, tiles_of
from exporters.detector import Detections, Detector
from exporters.loaded_model import LoadedModel

BATCH_SIZE = 8  # tiles that run together
# Detections of an image that are merged; time and memory grow with the square of their number.
MOST_DETECTIONS = 2000
SAME_OBJECT_IOU = 0.5  # two detections of a class that overlap this much are of one object
# A worse detection, such as one that its tile cuts off, is dropped if a kept box of its class
# covers this share of it.
COVERED_SHARE = 0.5
# A box that ends this near to a side of its tile is cut off there; as a share of the tile, since a
# box around a part of an object is not exact.
_BORDER = 0.03


class TiledDetector(Detector):
    """A detector that looks at each tile of an image, and at the whole image.

    Args:
        side: Height and width of a tile in pixels of the image.
        overlap: Least share of a tile that the next one repeats. Objects up to this part of a tile
            are whole in one of them.
    """

    def __init__(self, model: Union[str, LoadedModel], side: int, overlap: float = 0.2) -> None:
        super().__init__(model)
        if side < 1 or not 0 <= overlap < 1:
            raise ValueError(
                f"side is {side} and overlap is {overlap}; give a side of at least 1 pixel and an "
                "overlap of 0 to below 1"
            )
        self._side, self._overlap = side, overlap

    def detect_batch(
        self, images: np.ndarray, image_size: Optional[Tuple[int, int]] = None
    ) -> List[Detections]:
        """As `Detector.detect_batch`."""
        _, height, width, _ = images.shape
        untiled = super().detect_batch(images, image_size)
        tiles = tiles_of(height, width, self._side, self._overlap)
        if len(tiles) == 1:
            return untiled
        return [self._merged(image, tiles, each) for image, each in zip(images, untiled)]

    def _merged(self, image: np.ndarray, tiles: Sequence[Tile], untiled: Detections) -> Detections:
        size = (image.shape[0], image.shape[1])
        # A tile shows all of these, larger: its box is better, even at a lower score.
        sides = np.diff(untiled.normalized_boxes.reshape(-1, 2, 2), axis=1)[:, 0] * size
        parts, is_worse = [untiled], [(sides <= self._overlap * self._side).all(axis=1)]
        for start in range(0, len(tiles), BATCH_SIZE):
            batch = tiles[start : start + BATCH_SIZE]
            pixels = [image[t.top : t.top + t.height, t.left : t.left + t.width] for t in batch]
            for tile, detections in zip(batch, super().detect_batch(np.stack(pixels))):
                parts.append(_moved(detections, tile, size, untiled.image_size))
                is_worse.append(_is_cut(detections, tile, size))
        joined = _joined(parts)
        # Tiles without objects have detections of the lowest scores, as many as all others.
        best = np.argsort(-joined.scores, kind="stable")[:MOST_DETECTIONS]
        joined = joined.select(best)
        kept = kept_detections(joined, np.concatenate(is_worse)[best])
        return joined.select(kept)


def kept_detections(detections: Detections, is_worse: np.ndarray) -> np.ndarray:
    """Indices of one detection for each object, by falling score.

    Args:
        is_worse: Bool [n], True for boxes that a side of their tile cuts off, and for small boxes
            of the whole image. All others go before these, regardless of scores.
    """
    boxes = detections.normalized_boxes.astype(np.float64)
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    kept: List[int] = []
    for i in np.lexsort((-detections.scores, is_worse)):
        same = [k for k in kept if detections.classes[k] == detections.classes[i]]
        low = np.maximum(boxes[same, :2], boxes[i, :2])
        high = np.minimum(boxes[same, 2:], boxes[i, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        is_same = shared >= SAME_OBJECT_IOU * np.maximum(areas[same] + areas[i] - shared, 1e-12)
        if is_worse[i]:
            is_same |= shared >= COVERED_SHARE * max(areas[i], 1e-12)
        if not is_same.any():
            kept.append(int(i))
    return np.array(sorted(kept, key=lambda i: -detections.scores[i]), np.int64)


def _is_cut(detections: Detections, tile: Tile, size: Tuple[int, int]) -> np.ndarray:
    """Bool [n], True for boxes that end at a side of their tile which is inside of the image."""
    top, left, bottom, right = detections.normalized_boxes.T
    height, width = size
    return (
        ((top < _BORDER) & (tile.top > 0))
        | ((left < _BORDER) & (tile.left > 0))
        | ((bottom > 1 - _BORDER) & (tile.top + tile.height < height))
        | ((right > 1 - _BORDER) & (tile.left + tile.width < width))
    )


def _moved(
    detections: Detections, tile: Tile, size: Tuple[int, int], image_size: Tuple[int, int]
) -> Detections:
    """Detections of a tile as detections of its image.

    Args:
        size: Height and width of the image that was cut into tiles.
        image_size: Height and width in whose pixels the boxes are.
    """
    scale = np.array([tile.height, tile.width], np.float32) / size
    start = np.array([tile.top, tile.left], np.float32) / size
    keypoints = detections.keypoints
    return dataclasses.replace(
        detections,
        normalized_boxes=detections.normalized_boxes * np.tile(scale, 2) + np.tile(start, 2),
        keypoints=None if keypoints is None else keypoints * scale + start,
        image_size=image_size,
    )


def _joined(parts: Sequence[Detections]) -> Detections:
    """The detections of several tiles of one image together."""
    arrays: Dict[str, Any] = {}
    for name in ("normalized_boxes", "scores", "classes", "masks", "keypoints", "keypoint_scores"):
        values = [getattr(part, name) for part in parts]
        arrays[name] = None if values[0] is None else np.concatenate(values)
    names = tuple(itertools.chain.from_iterable(part.names for part in parts))
    return dataclasses.replace(parts[0], names=names, **arrays)

"""Which pictures to label next: those from which a detector would learn most.

A picture is worth the sum over its detections of doubt, of disagreement with its mirror image, and
of how few boxes their class has. Of pictures that look the same, only the first is suggested.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image

from estimator_det.compat import failures, tf
from exporters.detector import ClassThresholds, Detections, Detector
from exporters.image_files import read_image
from model_fn.evaluation import score_thresholds
from model_fn.evaluation.metrics.overlaps import box_iou

LOWEST = 0.5  # share of its threshold below which a detection is no candidate
MOST_RARE = 3.0  # largest weight of a class; its inverse is the smallest
HASH_SIDE = 8  # rows and columns of a perceptual hash
SAME_BITS = 6  # two pictures whose hashes differ in so few of 64 bits look the same
CHUNK = 4  # batches whose images are in memory


class Worth(NamedTuple):
    """The worth of a picture; each field is a sum over its detections."""

    doubt: float
    disagreement: float
    total: float  # their sum, weighted by class


class Picture(NamedTuple):
    """A picture that was looked at."""

    path: str
    worth: Worth
    hash: np.ndarray  # uint8 [HASH_SIDE]
    error: Optional[str] = None  # why it cannot be used


def doubts(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """1 for a score at its threshold, falling to 0 at LOWEST of it, and at 1."""
    low, high = scores - LOWEST * thresholds, 1 - scores
    below = low / np.maximum((1 - LOWEST) * thresholds, 1e-6)
    above = high / np.maximum(1 - thresholds, 1e-6)
    return np.clip(np.minimum(below, above), 0, 1)


def disagreements(detections: Detections, others: Detections) -> np.ndarray:
    """0 for a detection that the other view has, too, with this box and score, to 1 for none."""
    agreement = box_iou(detections.normalized_boxes, others.normalized_boxes)
    scores, other_scores = detections.scores[:, np.newaxis], others.scores
    agreement *= np.minimum(scores, other_scores) / np.maximum(scores, other_scores).clip(1e-6)
    agreement *= detections.classes[:, np.newaxis] == others.classes
    return 1 - agreement.max(axis=1, initial=0)


def class_weights(detector: Detector) -> Dict[int, float]:
    """Weight of each class by its boxes in the evaluation of the export; none without one."""
    path = detector.model.thresholds_file
    rows = score_thresholds.read(path).classes if tf.io.gfile.exists(path) else ()
    return rarity({row.class_id: row.num_boxes for row in rows if row.class_id is not None})


def rarity(boxes_of_class: Mapping[int, int]) -> Dict[int, float]:
    """Weight of each class by its number of boxes: 1 for the mean, more for a rare one."""
    counts = np.array(list(boxes_of_class.values()), float)
    weights = np.sqrt(counts.mean() / np.maximum(counts, 1)) if len(counts) else counts
    weights = weights.clip(1 / MOST_RARE, MOST_RARE).tolist()
    return dict(zip(boxes_of_class, weights))


def worth(
    detections: Detections,
    mirrored: Detections,
    thresholds: ClassThresholds,
    weights: Mapping[int, float],
) -> Worth:
    """The worth of a picture, from detections in it and in its mirror image.

    Args:
        mirrored: Boxes are in the mirror image.
        weights: By class id; 1 for others.
    """
    top, left, bottom, right = mirrored.normalized_boxes.T
    boxes = np.stack([top, 1 - right, bottom, 1 - left], axis=1)
    views = [detections, dataclasses.replace(mirrored, normalized_boxes=boxes)]
    lowest = ClassThresholds(
        LOWEST * thresholds.default, {k: LOWEST * t for k, t in thresholds.per_class.items()}
    )
    sums = np.zeros(3)
    for view, opposite in (views, views[::-1]):
        chosen = view.above(lowest)
        doubt = doubts(chosen.scores, thresholds.of(chosen.classes))
        disagreement = disagreements(chosen, opposite)
        weight = np.array([weights.get(int(k), 1.0) for k in chosen.classes])
        sums += [doubt.sum(), disagreement.sum(), (weight * (doubt + disagreement)).sum()]
    return Worth(*(sums / 2).round(4).tolist())


def perceptual_hash(pixels: np.ndarray) -> np.ndarray:
    """uint8 [h, w, 3] -> uint8 [HASH_SIDE]: bits that say where a small copy becomes brighter.

    Copies that are resized, compressed or a little brighter differ in few bits.
    """
    small = Image.fromarray(pixels).convert("L").resize((HASH_SIDE + 1, HASH_SIDE))
    return np.packbits(np.diff(np.asarray(small, np.int16), axis=1) > 0)


def choose(pictures: Sequence[Picture], number: int) -> List[Picture]:
    """The pictures of most worth, without any that looks like a better one."""
    chosen: List[Picture] = []
    for picture in sorted(pictures, key=lambda each: -each.worth.total):
        if len(chosen) == number:
            break
        hashes = np.array([each.hash for each in chosen], np.uint8).reshape(-1, HASH_SIDE)
        differ = np.unpackbits(hashes ^ picture.hash, axis=1).sum(axis=1)
        if differ.min(initial=8 * HASH_SIDE) > SAME_BITS:
            chosen.append(picture)
    return chosen


def look_at(
    detector: Detector,
    paths: Iterable[str],
    thresholds: ClassThresholds,
    weights: Mapping[int, float],
    batch_size: int,
) -> Iterator[Picture]:
    """The worth of each image file; images of one size run in batches, with their mirror images."""
    remaining = iter(paths)
    nothing = Worth(0, 0, 0)
    while chunk := list(itertools.islice(remaining, CHUNK * batch_size)):
        sizes: Dict[Tuple[int, ...], List[Tuple[str, np.ndarray, np.ndarray]]] = {}
        for path in chunk:
            try:
                pixels = read_image(path).pixels
            except OSError as error:
                yield Picture(path, nothing, np.zeros(HASH_SIDE, np.uint8), str(error))
                continue
            fitted = detector.fit(pixels)
            sizes.setdefault(fitted.shape, []).append((path, fitted, perceptual_hash(pixels)))
        batches = (
            each[start : start + batch_size]
            for each in sizes.values()
            for start in range(0, len(each), batch_size)
        )
        for batch in batches:
            images = np.stack([fitted for _, fitted, _ in batch])
            try:
                size = (images.shape[1], images.shape[2])
                views = detector.detect_batch(np.concatenate([images, images[:, :, ::-1]]), size)
            except tf.errors.OpError as error:
                reason = f"the model fails: {failures.reason(error)}"
                for path, _, bits in batch:
                    yield Picture(path, nothing, bits, f"{path}: {reason}")
                continue
            for (path, _, bits), view, mirrored in zip(batch, views, views[len(batch) :]):
                yield Picture(path, worth(view, mirrored, thresholds, weights), bits)

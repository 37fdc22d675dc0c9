"""Mosaic: four records around a centre. Source: Bochkovskiy et al., YOLOv4 (2020), section 3.3.

The first record is at the top left, its partners are at the top right, bottom left and bottom
right. Each image is scaled, cropped at a random place to its part of the canvas, and lies at the
centre if it is smaller than its part.
"""

from __future__ import annotations

from typing import Any, Iterator, Sequence

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import preprocessor_pb2
from inputs.augment.base import AUGMENTATIONS, image_size, random_between, split_seed, uniform
from inputs.augment.mixing import merge, mixes
from inputs.augment.pad import extend, mean_color, read_color
from inputs.augment.placing import fit, largest_scale, place
from inputs.sample import Sample

NUM_RECORDS = 4


def arrange(
    samples: Sequence[Sample],
    canvas: tf.Tensor,
    center: tf.Tensor,
    scales: tf.Tensor,
    positions: tf.Tensor,
    overlap_thresh: float,
    color: Any = None,
) -> Sample:
    """Arranges four samples on a canvas, in reading order.

    Args:
        center: int32 [2], row and column at which the four parts meet; within 1 and `canvas` - 1.
        scales: float32 [4], relative to the largest scale at which an image fits the canvas.
        positions: float32 [4, 2] in [0, 1): visible part of an image larger than its part.
        color: float32 [C] or [1], around images; None for the mean colour of each.
    """
    parts = []
    for number, sample in enumerate(samples):
        is_far = tf.constant([number >= 2, number % 2 == 1])  # beyond the centre
        corner = tf.where(is_far, center, 0)
        area = tf.where(is_far, canvas - center, center)
        size = image_size(sample.image)
        scale = scales[number] * largest_scale(size, canvas)
        placement = fit(size, area, scale, positions[number])
        offset = tf.where(is_far, 0, area - placement.target)
        fill_color = mean_color(sample.image) if color is None else color
        part = place(sample, placement, offset, overlap_thresh, fill_color)
        parts.append(extend(part, canvas, corner))
    rows = [tf.concat([parts[k].image, parts[k + 1].image], axis=1) for k in (0, 2)]
    return merge(parts)._replace(image=tf.concat(rows, axis=0))


@rules(preprocessor_pb2.Mosaic)
def _check(config: preprocessor_pb2.Mosaic, at: str) -> Iterator[Problem]:
    if config.HasField("height") != config.HasField("width"):
        message = "only one of height and width is set"
        yield error(f"{at}.height", message, "set both or neither")
    for side in ("height", "width"):
        if config.HasField(side) and getattr(config, side) < 2:
            yield error(f"{at}.{side}", f"is {getattr(config, side)}", "set it to 2 or more")


@AUGMENTATIONS.register("mosaic")
@mixes(NUM_RECORDS)
def mosaic(samples: Sequence[Sample], seed: tf.Tensor, config: preprocessor_pb2.Mosaic) -> Sample:
    """Arranges four images around a random centre."""
    color = read_color(config.pad_color)
    canvas = tf.maximum(image_size(samples[0].image), 2)
    if config.HasField("height"):
        canvas = tf.constant([config.height, config.width])
    center_seed, scale_seed, position_seed = split_seed(seed, 3)
    share = uniform([2], center_seed)
    share = config.min_center + share * (config.max_center - config.min_center)
    center = tf.cast(tf.round(share * tf.cast(canvas, tf.float32)), tf.int32)
    center = tf.clip_by_value(center, 1, canvas - 1)
    scales = random_between(scale_seed, config.min_scale, config.max_scale, [NUM_RECORDS])
    positions = uniform([NUM_RECORDS, 2], position_seed)
    return arrange(samples, canvas, center, scales, positions, config.overlap_thresh, color)

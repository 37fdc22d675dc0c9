"""RandAugment with boxes: random operations, all of one magnitude.

Source: Cubuk et al., RandAugment: Practical Automated Data Augmentation with a Reduced Search Space
(2020). Its 14 operations, the identity among them, have equal probability. Operations that move
pixels also move boxes, masks and keypoints.

A larger magnitude always changes more. The tables of AutoAugment do not have this property: its
level 5 of brightness changes nothing, and its level 0 of posterize and solarize changes most.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs.augment import operations
from inputs.augment.base import (
    AUGMENTATIONS,
    image_size,
    random_integers,
    scale_area,
    split_seed,
    uniform,
)
from inputs.sample import Sample, keep_boxes

MAX_MAGNITUDE = 10

# Strength of each operation at the largest magnitude.
MAX_ENHANCEMENT = 0.9  # factors 0.1 and 1.9
MAX_LOST_BITS = 4
MAX_SHIFT = 0.3  # share of the image's height or width
MAX_SHEAR = 0.3
MAX_DEGREES = 30.0

# (sample with a uint8 image, signed strength from -1 to 1) -> changed sample.
Operation = Callable[[Sample, tf.Tensor], Sample]


def _pixels(change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Operation:
    return functools.partial(operations.change_pixels, change)


def _enhance(change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Operation:
    return _pixels(lambda rgb, strength: change(rgb, 1.0 + MAX_ENHANCEMENT * strength))


def _posterize(rgb: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    num_lost = tf.cast(tf.round(MAX_LOST_BITS * tf.abs(strength)), tf.int32)
    return operations.posterize(rgb, 8 - num_lost)


def _solarize(rgb: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    return operations.solarize(rgb, 256 - tf.cast(tf.round(256.0 * tf.abs(strength)), tf.int32))


def _shift(sample: Sample, strength: tf.Tensor, axis: int) -> tf.Tensor:
    """Pixels of a move along an axis."""
    side = tf.cast(image_size(sample.image)[axis], tf.float32)
    return tf.round(MAX_SHIFT * strength * side)


OPERATIONS: Dict[str, Operation] = {
    "identity": lambda sample, _: sample,
    "auto_contrast": _pixels(lambda rgb, _: operations.auto_contrast(rgb)),
    "equalize": _pixels(lambda rgb, _: operations.equalize(rgb)),
    "rotate": lambda sample, strength: operations.rotate(sample, MAX_DEGREES * strength),
    "solarize": _pixels(_solarize),
    "color": _enhance(operations.color),
    "posterize": _pixels(_posterize),
    "contrast": _enhance(operations.contrast),
    "brightness": _enhance(operations.brightness),
    "sharpness": _enhance(operations.sharpness),
    "shear_x": lambda sample, strength: operations.shear_x(sample, MAX_SHEAR * strength),
    "shear_y": lambda sample, strength: operations.shear_y(sample, MAX_SHEAR * strength),
    "translate_x": lambda sample, x: operations.translate_x(sample, _shift(sample, x, 1)),
    "translate_y": lambda sample, x: operations.translate_y(sample, _shift(sample, x, 0)),
}


def apply_operations(
    sample: Sample, numbers: tf.Tensor, strengths: tf.Tensor, overlap_thresh: float
) -> Sample:
    """Applies the `OPERATIONS` of these numbers, int32 [k], one after the other.

    The sign of `strengths`, float32 [k], -1 to 1, is the direction of a move or an enhancement.
    A box is dropped if less than `overlap_thresh` of it, or nothing, stays in the image.
    """
    # With an area of 1, the resulting area is the share of the box that stays.
    measured = sample._replace(area=tf.ones_like(sample.weights), image_level=None)

    def branch(operation: Operation) -> Callable[[Sample, tf.Tensor], Sample]:
        return lambda current, position: operation(current, strengths[position])

    branches = [branch(operation) for operation in OPERATIONS.values()]
    change = operations.choose_change(lambda position: numbers[position], branches)
    moved = operations.apply_in_turn(measured, tf.size(numbers), change)
    share = moved.area
    assert share is not None
    moved = moved._replace(area=scale_area(sample.area, share), image_level=sample.image_level)
    return keep_boxes(moved, tf.where((share > 0) & (share >= overlap_thresh))[:, 0])


@AUGMENTATIONS.register("rand_augment")
def rand_augment(sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandAugment) -> Sample:
    """Applies `num_operations` operations; pixel values become whole numbers from 0 to 255."""
    dtype = sample.image.dtype
    sample = sample._replace(image=tf.saturate_cast(sample.image, tf.uint8))
    number_seed, sign_seed = split_seed(seed, 2)
    count = tf.fill([config.num_operations], len(OPERATIONS))
    numbers = random_integers(number_seed, tf.zeros_like(count), count)
    is_negative = uniform(tf.shape(count), sign_seed) < 0.5
    strengths = tf.where(is_negative, -1.0, 1.0) * config.magnitude / MAX_MAGNITUDE
    sample = apply_operations(sample, numbers, strengths, config.overlap_thresh)
    return sample._replace(image=tf.cast(sample.image, dtype))

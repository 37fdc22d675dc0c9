"""The learned policies of `autoaugment_image`.

Source: Zoph et al., Learning Data Augmentation Strategies for Object Detection (2019); the tables
equal the Object Detection API's. A policy is a list of sub-policies, and each image draws one of
them; a sub-policy is a list of (operation, probability, level 0 to 10) that are applied in order.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.config.text import nearest
from estimator_det.console.printing import quoted
from estimator_det.errors import Problem, error
from estimator_det.protos import preprocessor_pb2
from inputs.augment import operations
from inputs.augment.base import (
    AUGMENTATIONS,
    image_size,
    random_integer,
    random_integers,
    split_seed,
    uniform,
)
from inputs.sample import Sample

Step = Tuple[str, float, int]  # operation, probability, level
Policy = Tuple[Tuple[Step, ...], ...]

_V0: Policy = (
    (("TranslateX_BBox", 0.6, 4), ("Equalize", 0.8, 10)),
    (("TranslateY_Only_BBoxes", 0.2, 2), ("Cutout", 0.8, 8)),
    (("Sharpness", 0.0, 8), ("ShearX_BBox", 0.4, 0)),
    (("ShearY_BBox", 1.0, 2), ("TranslateY_Only_BBoxes", 0.6, 6)),
    (("Rotate_BBox", 0.6, 10), ("Color", 1.0, 6)),
)
_V1: Policy = (
    *_V0,
    (("Color", 0.0, 0), ("ShearX_Only_BBoxes", 0.8, 4)),
    (("ShearY_Only_BBoxes", 0.8, 2), ("Flip_Only_BBoxes", 0.0, 10)),
    (("Equalize", 0.6, 10), ("TranslateX_BBox", 0.2, 2)),
    (("Color", 1.0, 10), ("TranslateY_Only_BBoxes", 0.4, 6)),
    (("Rotate_BBox", 0.8, 10), ("Contrast", 0.0, 10)),
    (("Cutout", 0.2, 2), ("Brightness", 0.8, 10)),
    (("Color", 1.0, 6), ("Equalize", 1.0, 2)),
    (("Cutout_Only_BBoxes", 0.4, 6), ("TranslateY_Only_BBoxes", 0.8, 2)),
    (("Color", 0.2, 8), ("Rotate_BBox", 0.8, 10)),
    (("Sharpness", 0.4, 4), ("TranslateY_Only_BBoxes", 0.0, 4)),
    (("Sharpness", 1.0, 4), ("SolarizeAdd", 0.4, 4)),
    (("Rotate_BBox", 1.0, 8), ("Sharpness", 0.2, 8)),
    (("ShearY_BBox", 0.6, 10), ("Equalize_Only_BBoxes", 0.6, 8)),
    (("ShearX_BBox", 0.2, 6), ("TranslateY_Only_BBoxes", 0.2, 10)),
    (("SolarizeAdd", 0.6, 8), ("Brightness", 0.8, 10)),
)
_V2: Policy = (
    (("Color", 0.0, 6), ("Cutout", 0.6, 8), ("Sharpness", 0.4, 8)),
    (("Rotate_BBox", 0.4, 8), ("Sharpness", 0.4, 2), ("Rotate_BBox", 0.8, 10)),
    (("TranslateY_BBox", 1.0, 8), ("AutoContrast", 0.8, 2)),
    (("AutoContrast", 0.4, 6), ("ShearX_BBox", 0.8, 8), ("Brightness", 0.0, 10)),
    (("SolarizeAdd", 0.2, 6), ("Contrast", 0.0, 10), ("AutoContrast", 0.6, 0)),
    (("Cutout", 0.2, 0), ("Solarize", 0.8, 8), ("Color", 1.0, 4)),
    (("TranslateY_BBox", 0.0, 4), ("Equalize", 0.6, 8), ("Solarize", 0.0, 10)),
    (("TranslateY_BBox", 0.2, 2), ("ShearY_BBox", 0.8, 8), ("Rotate_BBox", 0.8, 8)),
    (("Cutout", 0.8, 8), ("Brightness", 0.8, 8), ("Cutout", 0.2, 2)),
    (("Color", 0.8, 4), ("TranslateY_BBox", 1.0, 6), ("Rotate_BBox", 0.6, 6)),
    (("Rotate_BBox", 0.6, 10), ("BBox_Cutout", 1.0, 4), ("Cutout", 0.2, 8)),
    (("Rotate_BBox", 0.0, 0), ("Equalize", 0.6, 6), ("ShearY_BBox", 0.6, 8)),
    (("Brightness", 0.8, 8), ("AutoContrast", 0.4, 2), ("Brightness", 0.2, 2)),
    (("TranslateY_BBox", 0.4, 8), ("Solarize", 0.4, 6), ("SolarizeAdd", 0.2, 10)),
    (("Contrast", 1.0, 10), ("SolarizeAdd", 0.2, 8), ("Equalize", 0.2, 4)),
)
_V3: Policy = (
    (("Posterize", 0.8, 2), ("TranslateX_BBox", 1.0, 8)),
    (("BBox_Cutout", 0.2, 10), ("Sharpness", 1.0, 8)),
    (("Rotate_BBox", 0.6, 8), ("Rotate_BBox", 0.8, 10)),
    (("Equalize", 0.8, 10), ("AutoContrast", 0.2, 10)),
    (("SolarizeAdd", 0.2, 2), ("TranslateY_BBox", 0.2, 8)),
    (("Sharpness", 0.0, 2), ("Color", 0.4, 8)),
    (("Equalize", 1.0, 8), ("TranslateY_BBox", 1.0, 8)),
    (("Posterize", 0.6, 2), ("Rotate_BBox", 0.0, 10)),
    (("AutoContrast", 0.6, 0), ("Rotate_BBox", 1.0, 6)),
    (("Equalize", 0.0, 4), ("Cutout", 0.8, 10)),
    (("Brightness", 1.0, 2), ("TranslateY_BBox", 1.0, 6)),
    (("Contrast", 0.0, 2), ("ShearY_BBox", 0.8, 0)),
    (("AutoContrast", 0.8, 10), ("Contrast", 0.2, 10)),
    (("Rotate_BBox", 1.0, 10), ("Cutout", 1.0, 10)),
    (("SolarizeAdd", 0.8, 6), ("Equalize", 0.8, 8)),
)
_TEST: Policy = ((("TranslateX_BBox", 1.0, 4), ("Equalize", 1.0, 10)),)

POLICIES: Dict[str, Policy] = {"v0": _V0, "v1": _V1, "v2": _V2, "v3": _V3, "test": _TEST}

BOX_SHARE = 1 / 3  # share of an operation's probability with which each box is changed

# (sample, seed, magnitude) -> sample; the magnitude is a scalar tensor, float32.
Apply = Callable[[Sample, tf.Tensor, tf.Tensor], Sample]


class PolicyOperation(NamedTuple):
    """An operation of a policy."""

    apply: Apply
    magnitude: Callable[[float], float]  # level, 0 to 10 -> magnitude
    is_on_boxes: bool = False  # changes the content of each box separately


def _pixels(change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Apply:
    return lambda sample, seed, magnitude: operations.change_pixels(change, sample, magnitude)


def _integer(change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Apply:
    return _pixels(lambda rgb, magnitude: change(rgb, tf.cast(magnitude, tf.int32)))


_equalize = _pixels(lambda rgb, _: operations.equalize(rgb))


def _signed(change: Callable[[Sample, tf.Tensor], Sample]) -> Apply:
    """Makes an operation apply in one direction or the other, both equally likely."""

    def apply(sample: Sample, seed: tf.Tensor, magnitude: tf.Tensor) -> Sample:
        is_negative = uniform([], seed) < 0.5
        return change(sample, tf.where(is_negative, -magnitude, magnitude))

    return apply


def _cutout(sample: Sample, seed: tf.Tensor, magnitude: tf.Tensor) -> Sample:
    size = image_size(sample.image)
    center = random_integers(seed, tf.zeros_like(size), size)
    half_size = tf.repeat(tf.cast(magnitude, tf.int32), 2)
    return sample._replace(image=operations.cutout(sample.image, center, half_size))


def _cutout_in_box(sample: Sample, seed: tf.Tensor, magnitude: tf.Tensor) -> Sample:
    """Covers a part of a random box; nothing without boxes."""
    box_seed, center_seed = split_seed(seed, 2)
    count = tf.shape(sample.boxes)[:1]
    index = random_integers(box_seed, tf.zeros_like(count), count)[0]
    # The added row makes the index valid in images without boxes.
    box = tf.pad(sample.boxes, [[0, 1], [0, 0]])[index]
    first, last = operations.pixel_rectangle(box, image_size(sample.image))
    center = random_integers(center_seed, first, last + 1)
    # A fraction of 0 covers nothing.
    fraction = tf.where(count[0] > 0, magnitude, 0.0)
    image = operations.cutout_in_box(sample.image, box, center, fraction)
    return sample._replace(image=image)


def _factor(level: float) -> float:
    # Levels 0 to 10 become factors 0.1 to 1.9, by the AutoAugment paper.
    return level / 10.0 * 1.8 + 0.1


def _per_level(step: float) -> Callable[[float], float]:
    return lambda level: level / 10.0 * step


def _truncated(step: float) -> Callable[[float], float]:
    return lambda level: float(int(level / 10.0 * step))


OPERATIONS: Dict[str, PolicyOperation] = {
    "AutoContrast": PolicyOperation(_pixels(lambda rgb, _: operations.auto_contrast(rgb)), float),
    "Equalize": PolicyOperation(_equalize, float),
    "Posterize": PolicyOperation(_integer(operations.posterize), _truncated(4)),
    "Solarize": PolicyOperation(_integer(operations.solarize), _truncated(256)),
    "SolarizeAdd": PolicyOperation(_integer(operations.solarize_add), _truncated(110)),
    "Color": PolicyOperation(_pixels(operations.color), _factor),
    "Contrast": PolicyOperation(_pixels(operations.contrast), _factor),
    "Brightness": PolicyOperation(_pixels(operations.brightness), _factor),
    "Sharpness": PolicyOperation(_pixels(operations.sharpness), _factor),
    "Cutout": PolicyOperation(_cutout, _truncated(100)),
    "BBox_Cutout": PolicyOperation(_cutout_in_box, _per_level(0.75)),
    "TranslateX_BBox": PolicyOperation(_signed(operations.translate_x), _per_level(250)),
    "TranslateY_BBox": PolicyOperation(_signed(operations.translate_y), _per_level(250)),
    "ShearX_BBox": PolicyOperation(_signed(operations.shear_x), _per_level(0.3)),
    "ShearY_BBox": PolicyOperation(_signed(operations.shear_y), _per_level(0.3)),
    "Rotate_BBox": PolicyOperation(_signed(operations.rotate), _per_level(30)),
    "TranslateY_Only_BBoxes": PolicyOperation(
        _signed(operations.translate_y), _per_level(120), True
    ),
    "ShearX_Only_BBoxes": PolicyOperation(_signed(operations.shear_x), _per_level(0.3), True),
    "ShearY_Only_BBoxes": PolicyOperation(_signed(operations.shear_y), _per_level(0.3), True),
    "Equalize_Only_BBoxes": PolicyOperation(_equalize, float, True),
    "Cutout_Only_BBoxes": PolicyOperation(_cutout, _truncated(50), True),
}


def apply_policy(sample: Sample, seed: tf.Tensor, policy: Policy) -> Sample:
    """Applies one sub-policy of the policy, all equally likely; the image is uint8.

    An operation on the whole image is applied with its probability; an operation on boxes changes
    each box with a third of its probability. Masks and keypoints follow the pixels; no box is
    dropped.
    """
    draw_seed, step_seed = split_seed(seed, 2)
    names, kinds, probabilities, magnitudes = _tables(policy)
    row_index = random_integer(draw_seed, 0, len(policy))
    kind, probability, magnitude = (
        tf.gather(tf.constant(table), row_index) for table in (kinds, probabilities, magnitudes)
    )

    def seeds(position: tf.Tensor) -> List[tf.Tensor]:
        # By position, so that the same step draws other numbers each time.
        return split_seed(tf.random.fold_in(step_seed, position), 2)

    def choose(position: tf.Tensor) -> tf.Tensor:
        # An operation on boxes draws for each box, not for the image.
        is_selected = uniform([], seeds(position)[0]) < probability[position]
        is_selected |= tf.gather(is_on_boxes, kind[position])
        return tf.where(is_selected, kind[position], len(names))

    def branch_of(operation: PolicyOperation) -> Callable[[Sample, tf.Tensor], Sample]:
        def branch(current: Sample, position: tf.Tensor) -> Sample:
            change_seed = seeds(position)[1]
            if not operation.is_on_boxes:
                return operation.apply(current, change_seed, magnitude[position])
            share = probability[position] * BOX_SHARE
            return _apply_to_boxes(operation, current, change_seed, share, magnitude[position])

        return branch

    is_on_boxes = tf.constant([OPERATIONS[name].is_on_boxes for name in names])
    branches = [branch_of(OPERATIONS[name]) for name in names]
    change = operations.choose_change(choose, [*branches, lambda current, _: current])
    return operations.apply_in_turn(sample, kinds.shape[1], change)


def _apply_to_boxes(
    operation: PolicyOperation,
    sample: Sample,
    seed: tf.Tensor,
    probability: tf.Tensor,
    magnitude: tf.Tensor,
) -> Sample:
    """Applies the operation to some boxes, in random order."""
    order_seed, chance_seed, change_seed = split_seed(seed, 3)
    count = tf.shape(sample.boxes)[:1]
    is_selected = uniform(count, chance_seed) < probability
    # Boxes overlap: the order decides which change is on top.
    order = tf.argsort(uniform(count, order_seed))
    return operations.change_boxes(
        sample,
        tf.boolean_mask(order, tf.gather(is_selected, order)),
        lambda region, index: operation.apply(
            region, tf.random.fold_in(change_seed, index), magnitude
        ),
    )


def _tables(policy: Policy) -> Tuple[List[str], np.ndarray, np.ndarray, np.ndarray]:
    """Tables of a policy: names of all operations that may be applied, and arrays of steps.

    The arrays are kind, probability and magnitude, [sub-policies, steps]; a step that is never
    applied has probability 0.
    """
    # Each name is a branch of the graph, so operations that are never applied are left out.
    names = sorted({name for steps in policy for name, probability, _ in steps if probability > 0})
    shape = (len(policy), max(len(steps) for steps in policy))
    kinds = np.zeros(shape, np.int32)
    probabilities, magnitudes = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for row, steps in enumerate(policy):
        for column, (name, probability, level) in enumerate(steps):
            if probability > 0:
                kinds[row, column] = names.index(name)
                probabilities[row, column] = probability
                magnitudes[row, column] = OPERATIONS[name].magnitude(level)
    return names, kinds, probabilities, magnitudes


@rules(preprocessor_pb2.AutoAugmentImage)
def _check_policy(config: preprocessor_pb2.AutoAugmentImage, at: str) -> Iterator[Problem]:
    name = config.policy_name
    if name not in POLICIES:
        message = f"{quoted(name)} is not known{nearest(name, list(POLICIES))}"
        yield error(f"{at}.policy_name", message, f"use one of {sorted(POLICIES)}")


@AUGMENTATIONS.register("autoaugment_image")
def autoaugment_image(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.AutoAugmentImage
) -> Sample:
    """Applies the policy `policy_name`; pixel values become whole numbers from 0 to 255."""
    uint8_sample = sample._replace(image=tf.saturate_cast(sample.image, tf.uint8))
    changed = apply_policy(uint8_sample, seed, POLICIES[config.policy_name])
    return changed._replace(image=tf.cast(changed.image, sample.image.dtype))

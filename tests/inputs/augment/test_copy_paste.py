from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs import schema
from inputs.augment import AUGMENTATIONS
from inputs.augment.copy_paste import paste
from inputs.schema import Sample
from tests.inputs.augment.helpers import config_of

EXISTING = np.array(
    [
        [[1, 1, 0, 0]] * 4,  # the left half
        [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],  # one pixel
        [[0, 0, 0, 0]] * 4,  # no mask; its box are the two rows and columns in the middle of above
        [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]],
    ],
    np.float32,
)
BOXES = [[0, 0, 1, 0.5], [0, 0.25, 0.25, 0.5], [0, 0.25, 0.5, 0.75], [0, 0.5, 0.75, 0.75]]
PASTED = np.array([[[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]], np.float32)


def sample_of(value: float, masks: np.ndarray, boxes: Any, level: Optional[dict] = None) -> Sample:
    count = len(masks)
    return Sample(
        image=tf.fill([4, 4, 3], value),
        boxes=tf.constant(boxes, tf.float32, [count, 4]),
        classes=tf.range(1, count + 1, dtype=tf.int64),
        weights=tf.fill([count], value),
        masks=tf.constant(masks),
        area=tf.constant(masks.sum((1, 2)) * 10),
        is_crowd=tf.fill([count], False),
        group_of=tf.fill([count], False),
        image_level=level,
    )


def pasted(overlap_thresh: float = 0.1) -> Sample:
    first = sample_of(50.0, EXISTING, BOXES)
    second = sample_of(90.0, PASTED, [[0, 0.25, 0.5, 0.75]])
    return paste(first, second, overlap_thresh)


def test_covered_objects_lose_what_is_covered() -> None:
    """6 of 8 pixels remain of the first object, none of the next two, 1 of 3 of the last."""
    result = pasted()
    np.testing.assert_array_equal(result.classes, [1, 4, 1])
    np.testing.assert_array_equal(result.weights, [50, 50, 90])
    masks = np.stack([EXISTING[0], EXISTING[3], PASTED[0]])
    masks[:2] *= 1 - PASTED
    np.testing.assert_array_equal(result.masks, masks)
    boxes = [[0, 0, 1, 0.5], [0.5, 0.5, 0.75, 0.75], [0, 0.25, 0.5, 0.75]]
    np.testing.assert_allclose(result.boxes, boxes)
    np.testing.assert_allclose(result.area, [60, 10, 40], rtol=1e-6)
    np.testing.assert_array_equal(result.image[..., 0], np.where(PASTED[0] > 0, 90, 50))


def test_mostly_covered_objects_are_dropped() -> None:
    np.testing.assert_array_equal(pasted(0.33).classes, [1, 4, 1])
    np.testing.assert_array_equal(pasted(0.34).classes, [1, 1])
    np.testing.assert_array_equal(pasted(0.76).classes, [1])


def test_an_object_without_a_mask_is_covered_as_its_box_is() -> None:
    first = sample_of(50.0, EXISTING[2:3], [[0, 0, 1, 0.5]])  # 2 of its 8 pixels are covered
    second = sample_of(90.0, PASTED, [[0, 0.25, 0.5, 0.75]])
    result = paste(first, second, 0.75)
    np.testing.assert_allclose(result.boxes[0], [0, 0, 1, 0.5])
    np.testing.assert_array_equal(paste(first, second, 0.76).weights, [90])


def test_untouched_boxes_keep_their_annotation() -> None:
    """Even where they are not those of the mask."""
    first = sample_of(50.0, EXISTING[:1], [[0, 0, 0.9, 0.4]])
    result = paste(first, sample_of(90.0, PASTED[:0], np.zeros((0, 4))), 0.1)
    np.testing.assert_allclose(result.boxes, [[0, 0, 0.9, 0.4]])
    np.testing.assert_array_equal(result.image, first.image)


def test_labels_of_the_image() -> None:
    level = {
        schema.IMAGE_CLASSES: tf.constant([1, 3], tf.int64),
        schema.IMAGE_CONFIDENCES: tf.constant([0.0, 0.0]),
        schema.VERIFIED_NEG_CLASSES: tf.constant([1, 4], tf.int64),
        schema.SOURCE_ID: tf.constant("first"),
    }
    first = sample_of(50.0, EXISTING[:1], BOXES[:1], level)
    second = sample_of(90.0, PASTED, BOXES[2:3], {**level, schema.SOURCE_ID: tf.constant("b")})
    found = paste(first, second, 0.1).image_level  # the pasted class is 1
    np.testing.assert_array_equal(found[schema.IMAGE_CLASSES], [1, 3])
    np.testing.assert_array_equal(found[schema.IMAGE_CONFIDENCES], [1, 0])
    np.testing.assert_array_equal(found[schema.VERIFIED_NEG_CLASSES], [4])
    assert found[schema.SOURCE_ID].numpy() == b"first"


ALL = "object_probability: 1 min_scale: 1 max_scale: 1"


def step(first: Sample, second: Sample, seed: int = 1, settings: str = ALL) -> Sample:
    config = config_of(f"copy_paste {{ {settings} }}")
    return AUGMENTATIONS.get("copy_paste")([first, second], tf.constant([seed, 1]), config)


def test_the_step_pastes_objects_where_they_were() -> None:
    """At scale 1 an image of the same size has one place."""
    nothing = sample_of(50.0, EXISTING[:0], np.zeros((0, 4)))
    second = sample_of(90.0, PASTED, [[0, 0, 1, 1]])
    result = step(nothing, second)
    np.testing.assert_array_equal(result.masks, PASTED)
    np.testing.assert_allclose(result.boxes, [[0, 0.25, 0.5, 0.75]])  # of the mask
    assert step(nothing, second, settings="object_probability: 0").boxes.shape == (0, 4)
    for flag in ("is_crowd", "group_of"):
        flagged = second._replace(**{flag: tf.constant([True])})
        assert step(nothing, flagged).boxes.shape == (0, 4), flag
    blank = second._replace(masks=tf.zeros([1, 4, 4]))
    assert step(nothing, blank).boxes.shape == (0, 4)


def test_scaled_objects_have_random_places() -> None:
    nothing = sample_of(50.0, EXISTING[:0], np.zeros((0, 4)))
    whole = sample_of(90.0, np.ones((1, 4, 4), np.float32), [[0, 0, 1, 1]])
    half = "object_probability: 1 min_scale: 0.5 max_scale: 0.5"
    boxes = {tuple(np.array(step(nothing, whole, k, half).boxes)[0]) for k in range(12)}
    assert len(boxes) > 4
    for ymin, xmin, ymax, xmax in boxes:
        assert (ymax - ymin, xmax - xmin) == (0.5, 0.5) and min(ymin, xmin) >= 0


def test_masks_are_needed() -> None:
    bare = sample_of(50.0, EXISTING, BOXES)._replace(masks=None)
    with pytest.raises(ConfigError, match=r"set train_input_reader\.load_instance_masks"):
        step(bare, bare)

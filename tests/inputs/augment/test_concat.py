from __future__ import annotations

from typing import List

import numpy as np
import pytest

from inputs.augment.concat import repeat_image
from tests.inputs.augment.helpers import sample_of, small_sample


@pytest.mark.parametrize(
    ("axis", "boxes"),
    [
        (0, [[0.05, 0.2, 0.25, 0.6], [0.55, 0.2, 0.75, 0.6]]),
        (1, [[0.1, 0.1, 0.5, 0.3], [0.1, 0.6, 0.5, 0.8]]),
    ],
)
def test_repeat_by_hand(axis: int, boxes: List[List[float]]) -> None:
    sample = small_sample()
    twice = repeat_image(sample, axis)
    image, mask = np.array(sample.image), np.array(sample.masks)[0]
    np.testing.assert_array_equal(twice.image, np.concatenate([image, image], axis))
    np.testing.assert_allclose(twice.boxes, boxes, atol=1e-6)
    # The keypoints are the corners of the box.
    np.testing.assert_allclose(np.reshape(twice.keypoints, [2, 4]), boxes, atol=1e-6)
    empty = np.zeros_like(mask)
    np.testing.assert_array_equal(twice.masks[0], np.concatenate([mask, empty], axis))
    np.testing.assert_array_equal(twice.masks[1], np.concatenate([empty, mask], axis))


def test_other_fields_are_repeated() -> None:
    sample = sample_of("full")
    twice = repeat_image(sample, 0)
    for name in ("classes", "weights", "confidences", "area", "is_crowd", "keypoint_visibilities"):
        value = np.array(getattr(sample, name))
        np.testing.assert_array_equal(getattr(twice, name), np.concatenate([value, value]))
    assert twice.image_level is sample.image_level

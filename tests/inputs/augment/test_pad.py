from __future__ import annotations

from typing import Any, Set, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment.pad import pad, random_pad, random_pad_to_aspect_ratio
from tests.inputs.augment.helpers import (
    make_augmentation,
    run_in_dataset,
    run_step,
    sample_of,
    small_sample,
    step,
)


def test_pad_without_color_is_black() -> None:
    padded = pad(small_sample(), tf.constant([3, 4]), tf.constant([1, 0]))
    np.testing.assert_array_equal(padded.image[0], np.zeros((4, 3)))
    np.testing.assert_array_equal(padded.image[1:], small_sample().image)


def test_random_pad_sizes_and_places() -> None:
    sample = small_sample()
    shapes, offsets = set(), set()
    for i in range(60):
        result = random_pad(
            sample, tf.constant([i, 1]), tf.constant([1, 6]), tf.constant([5, 6]), tf.zeros([1])
        )
        shapes.add(tuple(result.image.shape[:2]))
        box = np.array(result.boxes)[0] * (list(result.image.shape[:2]) * 2)
        offsets.add((round(box[0] - 0.2), round(box[1] - 0.8)))
    # Heights of 2 up to 5, 5 excluded; the width is fixed; an offset excludes the far end.
    assert shapes == {(2, 6), (3, 6), (4, 6)}
    assert {column for _, column in offsets} == {0, 1} and {row for row, _ in offsets} == {0, 1}


def test_random_pad_image_takes_the_mean_color() -> None:
    image = tf.constant([[[0, 10, 20], [100, 30, 20]]], tf.uint8)
    sample = sample_of("bare")._replace(image=image)
    text = (
        "random_pad_image { min_image_height: 6 min_image_width: 6 "
        "max_image_height: 6 max_image_width: 6 }"
    )
    padded = np.array(run_step(text, sample).image)
    assert padded.shape == (6, 6, 3)
    assert (padded == [50, 20, 20]).all(axis=-1).sum() == 34


def _sizes(change: Any) -> Set[Tuple[int, ...]]:
    """Heights and widths that an image of 2 x 4 pixels gets."""
    seeds = [[i, 0] for i in range(60)]
    results = run_in_dataset(change, small_sample(), seeds)
    return {result["image"].shape[:2] for result in results}


def test_sizes_of_padding_to_an_aspect_ratio() -> None:
    def square(sample: Any, seed: Any) -> Any:
        return random_pad_to_aspect_ratio(sample, seed, 1.0, (1.0, 1.0), (4.0, 2.0))

    # From the smallest square to 8 x 8, four times as high and twice as wide.
    assert _sizes(square) == {(side, side) for side in (4, 5, 6, 7, 8)}


def test_sizes_of_random_pad_image() -> None:
    """Of 2 x 4 pixels; maxima are excluded unless they are the minima."""
    given = "min_image_height: 5 min_image_width: 7 max_image_height: 5 max_image_width: 7"
    sample, augment = small_sample(), "random_pad_image { pad_color: 0 %s }"
    assert run_step(augment % given, sample).image.shape == (5, 7, 3)
    least = run_step(augment % "min_image_height: 4 min_image_width: 8", sample)
    assert least.image.shape == (4, 8, 3)  # as large as the default maximum
    most = run_step(augment % "max_image_height: 2 max_image_width: 5", sample)
    assert most.image.shape == (2, 4, 3)
    assert _sizes(make_augmentation([step(augment % "")])) == {
        (height, width) for height in (2, 3) for width in (4, 5, 6, 7)
    }


def test_sizes_of_random_absolute_pad_image() -> None:
    text = "random_absolute_pad_image { max_height_padding: 1 max_width_padding: 3 pad_color: 0 }"
    assert _sizes(make_augmentation([step(text)])) == {(2, 4), (2, 5), (2, 6)}


def test_pad_color_must_suit_the_channels() -> None:
    with pytest.raises(ConfigError, match="2 numbers for images of 3 channels"):
        run_step("random_pad_image { pad_color: [1, 2] }", small_sample())

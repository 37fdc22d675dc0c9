from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment.patches import add_noise, blacken
from tests.inputs.augment.helpers import run_step, sample_of


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_black_squares_by_hand(dtype: Any) -> None:
    image = tf.constant(np.full((10, 20, 5), 7, dtype))
    places = tf.constant([[0.2, 0.1], [0.5, 0.75], [0.0, 0.0]])
    covered = np.array(blacken(image, places, tf.constant([True, True, False]), 0.25))
    expected = np.full((10, 20, 5), 7, dtype)
    expected[2:4, 2:4] = 0
    expected[5:7, 15:17] = 0
    np.testing.assert_array_equal(covered, expected)
    assert covered.dtype == dtype


def test_patches_that_always_or_never_come() -> None:
    sample = sample_of()
    whole = "size_to_image_ratio: 1 max_black_patches: 1"
    covered = run_step(f"random_black_patches {{ probability: 1 {whole} }}", sample)
    assert not np.array(covered.image)[:24, :24].any() and np.array(covered.image)[:, 24:].any()
    for none in ("probability: 0", "max_black_patches: 0"):
        same = run_step(f"random_black_patches {{ {none} }}", sample)
        np.testing.assert_array_equal(same.image, sample.image)


def test_noise_by_hand() -> None:
    image = tf.constant(np.full((4, 5, 1), 200.0, np.float32))
    noise = tf.constant([[[0.1], [1.0]], [[-0.2], [-2.0]]])
    noisy = np.array(add_noise(image, tf.constant([1, 3]), noise))[..., 0]
    np.testing.assert_allclose(noisy[1:3, 3:], [[225.5, 255.0], [149.0, 0.0]], atol=1e-4)
    assert (noisy[[0, 3]] == 200).all() and (noisy[:, :3] == 200).all()


def test_noise_stays_in_its_square() -> None:
    sample = sample_of(dtype=np.float32)
    settings = "min_patch_size: 6 max_patch_size: 7 min_gaussian_stddev: 0.5"
    noisy = run_step(f"random_patch_gaussian {{ {settings} }}", sample)
    changed = np.argwhere((np.array(noisy.image) != np.array(sample.image)).any(axis=-1))
    assert (np.ptp(changed, axis=0) <= 5).all() and len(changed) > 5
    same = run_step(f"random_patch_gaussian {{ {settings} random_coef: 1 }}", sample)
    np.testing.assert_array_equal(same.image, sample.image)

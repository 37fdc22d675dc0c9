from __future__ import annotations

import numpy as np

from tests.inputs.augment.helpers import run_step, sample_of


def test_patches_that_always_or_never_come() -> None:
    sample = sample_of()
    whole = "size_to_image_ratio: 1 max_black_patches: 1"
    covered = run_step(f"random_black_patches {{ probability: 1 {whole} }}", sample)
    assert not np.array(covered.image)[:24, :24].any() and np.array(covered.image)[:, 24:].any()
    for none in ("probability: 0", "max_black_patches: 0"):
        same = run_step(f"random_black_patches {{ {none} }}", sample)
        np.testing.assert_array_equal(same.image, sample.image)


def test_noise_stays_in_its_square() -> None:
    sample = sample_of(dtype=np.float32)
    settings = "min_patch_size: 6 max_patch_size: 7 min_gaussian_stddev: 0.5"
    noisy = run_step(f"random_patch_gaussian {{ {settings} }}", sample)
    changed = np.argwhere((np.array(noisy.image) != np.array(sample.image)).any(axis=-1))
    assert (np.ptp(changed, axis=0) <= 5).all() and len(changed) > 5
    same = run_step(f"random_patch_gaussian {{ {settings} random_coef: 1 }}", sample)
    np.testing.assert_array_equal(same.image, sample.image)

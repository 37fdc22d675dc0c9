"""Steps on labels, patches and squares, beside their golden results."""

from __future__ import annotations

import numpy as np

from estimator_det.compat import tf
from inputs.augment.square import Frame, border_size, to_square
from inputs.schema import Sample
from tests.inputs.augment.helpers import run_step, sample_of, small_sample


def test_jitter_touches_boxes_alone() -> None:
    sample = sample_of("full")
    moved = run_step("random_jitter_boxes { ratio: 0.5 }", sample)
    assert (np.array(moved.boxes) != np.array(sample.boxes)).any()
    for name in sample._fields:
        if name != "boxes":
            assert getattr(moved, name) is getattr(sample, name)


def test_drop_label_always() -> None:
    left = run_step("drop_label_probabilistically { label: 2 }", sample_of("full"))
    np.testing.assert_array_equal(left.classes, [1, 3])
    same = run_step("drop_label_probabilistically { label: 9 }", sample_of("full"))
    np.testing.assert_array_equal(same.classes, [1, 2, 3])


def test_remap_labels_does_not_chain() -> None:
    text = "remap_labels { original_labels: [1, 2] new_label: 2 }"
    np.testing.assert_array_equal(run_step(text, sample_of()).classes, [2, 2, 3])
    text = "remap_labels { original_labels: [1, 3] new_label: 1 }"
    changed = run_step(text, sample_of())
    np.testing.assert_array_equal(changed.classes, [1, 2, 1])
    assert changed.classes.dtype == tf.int64


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


def _pair(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int32)


def test_boxes_outside_the_frame_are_dropped() -> None:
    sample = small_sample()
    frame = Frame(tf.constant(2), _pair(0, 3), _pair(0, 3), _pair(2, 4))
    outside = to_square(sample, frame)
    assert outside.boxes.shape == (0, 4) and outside.masks.shape == (0, 2, 2)


def test_border_shrinks_with_the_image() -> None:
    for size, border in ((1000, 128), (257, 128), (255, 64), (100, 32), (24, 8), (1, 1)):
        np.testing.assert_array_equal(border_size(_pair(size, 600), 128), [border, 128])
    np.testing.assert_array_equal(border_size(_pair(24, 32), 0), [0, 0])


def test_scale_crop_and_pad_keeps_the_shape() -> None:
    """An image of 2 x 4 at scale 1 becomes 5 x 10 on a canvas of 10 x 10."""
    text = "random_scale_crop_and_pad_to_square { output_size: 10 scale_min: 1 scale_max: 1 }"
    square: Sample = run_step(text, small_sample())
    assert square.image.shape == (10, 10, 3)
    assert not np.array(square.image)[5:].any()
    np.testing.assert_allclose(square.boxes, [[0.05, 0.2, 0.25, 0.6]], atol=1e-6)
    np.testing.assert_allclose(square.area, [8 * 50 / 8])

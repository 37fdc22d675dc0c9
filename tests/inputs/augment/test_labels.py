from __future__ import annotations

import numpy as np

from estimator_det.compat import tf
from tests.inputs.augment.helpers import run_step, sample_of


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

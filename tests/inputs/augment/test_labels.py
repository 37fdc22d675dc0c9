from __future__ import annotations

from typing import List

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs.augment.labels import drop_label, jitter
from tests.inputs.augment.helpers import run_step, sample_of

Modes = preprocessor_pb2.RandomJitterBoxes
BOX = [0.4, 0.2, 0.6, 0.8]  # centre 0.5, 0.5; 0.2 x 0.6


@pytest.mark.parametrize(
    ("mode", "fractions", "expected"),
    [
        (Modes.DEFAULT, [0.5, 0.5, 0.5, 0.5], BOX),
        (Modes.DEFAULT, [1.0, 0.0, 0.0, 1.0], [0.35, 0.35, 0.55, 0.95]),
        (Modes.EXPAND, [0.0, 0.0, 1.0, 1.0], [0.4, 0.2, 0.65, 0.95]),
        (Modes.SHRINK, [0.0, 1.0, 0.0, 1.0], [0.45, 0.2, 0.55, 0.8]),
        (Modes.EXPAND_SYMMETRIC, [1.0, 0.5], [0.35, 0.125, 0.65, 0.875]),
        (Modes.SHRINK_SYMMETRIC, [1.0, 0.0], [0.4, 0.35, 0.6, 0.65]),
        (Modes.EXPAND_SYMMETRIC_XY, [0.5, 0.9], [0.375, 0.125, 0.625, 0.875]),
        (Modes.SHRINK_SYMMETRIC_XY, [0.0, 0.9], [0.45, 0.35, 0.55, 0.65]),
    ],
)
def test_jitter_by_hand(mode: int, fractions: List[float], expected: List[float]) -> None:
    """Sides move by up to a quarter of height and width: ratio 0.5."""
    moved = jitter(tf.constant([BOX]), tf.constant([fractions]), 0.5, mode)
    np.testing.assert_allclose(moved, [expected], atol=1e-6)


def test_symmetric_jitter_stops_at_the_edge() -> None:
    box = tf.constant([[0.1, 0.3, 0.5, 0.7]])  # may grow by half in y, to 2.5 times in x
    for mode, right in ((Modes.EXPAND_SYMMETRIC, 0.9), (Modes.EXPAND_SYMMETRIC_XY, 0.8)):
        moved = jitter(box, tf.constant([[1.0, 1.0]]), 1.0, mode)
        np.testing.assert_allclose(moved, [[0.0, 1.0 - right, 0.6, right]], atol=1e-6)


def test_jitter_touches_boxes_alone() -> None:
    sample = sample_of("full")
    moved = run_step("random_jitter_boxes { ratio: 0.5 }", sample)
    assert (np.array(moved.boxes) != np.array(sample.boxes)).any()
    for name in sample._fields:
        if name != "boxes":
            assert getattr(moved, name) is getattr(sample, name)


def test_drop_label_by_hand() -> None:
    sample = sample_of("full")._replace(classes=tf.constant([2, 2, 3], tf.int64))
    kept = drop_label(sample, tf.constant([0.5, 0.51, 0.1]), 2, 0.5)
    np.testing.assert_array_equal(kept.classes, [2, 3])
    np.testing.assert_array_equal(kept.masks, np.array(sample.masks)[1:])
    np.testing.assert_array_equal(kept.difficult, np.array(sample.difficult)[1:])


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

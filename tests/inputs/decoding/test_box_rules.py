"""Rules for boxes by hand, in both libraries."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.bad_records.kinds import BOX_FAULTS, CLIP, FAIL
from inputs.decoding.box_rules import (
    NUMPY,
    TENSORFLOW,
    MaskExtents,
    RecordBoxes,
    box_flags,
    correct_boxes,
    mask_extents,
)

ROWS = [
    ([0.1, 0.2, 0.5, 0.6], set()),
    ([0.0, 0.0, 1.00005, 1.0], set()),  # within the tolerance
    ([-0.1, 0.2, 0.5, 0.6], {"box_outside"}),
    ([0.1, 0.2, 0.5, 1.001], {"box_outside"}),
    ([0.5, 0.2, 0.1, 0.6], {"box_inverted"}),
    ([0.1, 0.6, 0.5, 0.6], {"box_degenerate"}),
    ([0.1, np.nan, 0.5, 0.6], {"box_nan"}),
]
# Masks of an image of 10 x 100 pixels; sides may differ by 2 pixels and a quarter of the box.
BOX = [0.2, 0.2, 0.6, 0.6]
MASKS = [
    (BOX, set()),
    ([0.45, 0.2, 0.6, 0.6], set()),
    ([0.55, 0.2, 0.6, 0.6], {"mask_mismatch"}),
    ([0.2, 0.07, 0.6, 0.6], {"mask_mismatch"}),
    ([0.2, 0.2, 0.25, 0.6], {"mask_mismatch"}),
    ([0.2, 0.2, 0.6, 0.73], {"mask_mismatch"}),
    ([0.6, 0.2, 0.6, 0.6], {"mask_empty"}),
]


@pytest.mark.parametrize("ops", [NUMPY, TENSORFLOW], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("of_masks", [False, True])
def test_flags(ops, of_masks):
    array = np.asarray if ops is NUMPY else tf.constant
    rows = MASKS if of_masks else ROWS
    sides = np.float32([row for row, _ in rows])
    masks = None
    if of_masks:
        masks = MaskExtents(array(sides), array(np.float32([0.1, 0.01])))
        sides = np.float32([BOX] * len(rows))
    ids, size = np.arange(1, len(rows) + 1), array(np.int64([10, 100]))
    boxes = RecordBoxes(array(sides), array(ids), array(ids), array(False), size, size, masks)
    flags = {kind: np.asarray(flag) for kind, flag in box_flags(boxes, len(rows), ops).items()}
    found = [{kind for kind in flags if flags[kind][number]} for number in range(len(rows))]
    assert found == [faults for _, faults in rows]


@pytest.mark.parametrize("ops", [NUMPY, TENSORFLOW], ids=["numpy", "tensorflow"])
def test_extents_of_masks(ops):
    masks = np.zeros([2, 4, 10], np.float32)
    masks[0, 1:3, 2:7] = 1.0
    found = mask_extents(masks if ops is NUMPY else tf.constant(masks), ops)
    np.testing.assert_allclose(found.boxes, [[0.25, 0.2, 0.75, 0.7], [1, 1, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(found.pixel, [0.25, 0.1])


@pytest.mark.parametrize("ops", [NUMPY, TENSORFLOW], ids=["numpy", "tensorflow"])
def test_clipping_drops_boxes_of_which_nothing_is_left(ops):
    sides = np.float32([[-0.1, 0.2, 0.5, 1.2], [1.1, 0.2, 1.5, 0.6], [0.1, 0.6, 0.5, 0.6]])
    array = np.asarray if ops is NUMPY else tf.constant
    flags = {kind: array(np.zeros(3, bool)) for kind in BOX_FAULTS}
    actions = {**dict.fromkeys(BOX_FAULTS, FAIL), "box_outside": CLIP}
    boxes, dropped = correct_boxes(array(sides), flags, actions, ops)
    np.testing.assert_allclose(boxes[0], [0, 0.2, 0.5, 1])
    assert np.asarray(dropped).tolist() == [False, True, False]  # the last one was empty before

"""Rows of regions are compared with the recorded region in the same place."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from benchmarks.conformance import two_stage
from benchmarks.conformance.compare import Check

BOXES = np.array([[[0, 0, 32, 32], [4, 4, 16, 20], [8, 2, 12, 30], [1, 2, 3, 4]]], np.float32)
CODES = np.arange(4.0, dtype=np.float32).reshape(4, 1, 1) * np.ones([4, 2, 4], np.float32)
LOGITS = np.arange(12.0, dtype=np.float32).reshape(4, 3)
RECORDED = {
    "refined_box_encodings": {"shape": [4, 2, 4], "max_abs": 3.0},
    "class_predictions_with_background": {"shape": [4, 3], "max_abs": 11.0},
}
ARRAYS: Dict[str, Any] = {
    "proposal_boxes": BOXES,
    "refined_box_encodings": CODES,
    "class_predictions_with_background": LOGITS,
    **{f"{key}__idx": np.arange(4) for key in ("proposal_boxes", *RECORDED)},
}


def compared(boxes: np.ndarray, codes: np.ndarray, logits: np.ndarray) -> Check:
    ours = {
        "proposal_boxes": boxes,
        "refined_box_encodings": codes,
        "class_predictions_with_background": logits,
    }
    check = Check()
    two_stage.compare_rows(check, ours, RECORDED, ARRAYS, 1e-3)
    return check


def test_another_order_agrees():
    order = [2, 0, 3, 1]
    assert compared(BOXES[:, order], CODES[order], LOGITS[order]).ok
    assert not compared(BOXES[:, order], CODES, LOGITS).ok


def test_another_row_is_a_difference():
    logits = LOGITS.copy()
    logits[2, 1] += 0.1
    assert "class_predictions" in str(compared(BOXES, CODES, logits))


def test_a_region_at_the_border_counts_where_it_is_exact():
    logits = LOGITS.copy()
    logits[0] += 1.0
    assert not compared(BOXES, CODES, logits).ok
    near = BOXES.copy()
    near[0, 0, 0] = 0.001
    assert compared(near, CODES, logits).ok


def test_other_regions_are_a_difference():
    assert "recorded regions are not among ours" in str(compared(BOXES + 5.0, CODES, LOGITS))

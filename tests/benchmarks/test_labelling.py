"""Faults that are planted in labels, and the count of those that are suspected."""

from __future__ import annotations

import numpy as np

from benchmarks.labelling import drawn, faults


def test_planted_faults(monkeypatch):
    monkeypatch.setattr(faults, "SHARE", 1.0)
    (image,) = drawn.draw("train", 1, seed=7)
    wrong, planted = faults.plant(image, np.random.default_rng(2))
    assert [fault.kind for fault in planted] == ["missing", "extra", "shifted"]
    np.testing.assert_array_equal(wrong.boxes[0], image.boxes[1])  # an object without its own fault
    assert len(wrong.boxes) == len(image.boxes) == 3
    assert wrong.boxes.min() >= 0 and wrong.boxes.max() <= 1

    def suspect(fault: faults.Fault) -> dict:
        return {"name": fault.file, "label": {"box": fault.boxes[0]}, "detection": None}

    counts = faults.count(planted, [suspect(planted[0])] * 3)
    assert sum(hits for _, hits in counts.values()) == 1
    assert sum(total for total, _ in counts.values()) == 3

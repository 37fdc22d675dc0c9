"""COCO's text of run lengths against pycocotools."""

from __future__ import annotations

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from estimator_det.files.run_lengths import RunLengthError, from_text


@pytest.mark.parametrize("counts", [[24], [0, 24], [3, 2, 1, 4, 14], [1] * 24, [5, 3, 900, 1, 91]])
def test_counts_are_those_that_pycocotools_writes(counts: list[int]) -> None:
    size = [sum(counts), 1]
    encoded = coco_mask.frPyObjects({"size": size, "counts": counts}, *size)
    assert from_text(encoded["counts"].decode()) == counts


def test_masks_at_random() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        mask = (random.random((31, 17)) < random.random()).astype(np.uint8)
        counts = from_text(coco_mask.encode(np.asfortranarray(mask))["counts"].decode())
        values = np.repeat(np.arange(len(counts)) % 2, counts)
        np.testing.assert_array_equal(values.reshape(17, 31).T, mask)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oooo", "ends within a number"),
        ("o" * 100, "has the character 'o', not COCO's compressed form"),
        ("8 3", "has the character ' '"),
        ("\x7f", r"has the character '\\x7f'"),
        ("€", "has the character"),
    ],
)
def test_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(RunLengthError, match=message):
        from_text(text)

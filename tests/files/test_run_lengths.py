"""COCO's run lengths against pycocotools."""

import pytest
from pycocotools import mask as coco_mask

from estimator_det.files.run_lengths import RunLengthError, parse


@pytest.mark.parametrize("counts", [[24], [0, 24], [3, 2, 1, 4, 14], [1] * 24, [5, 3, 900, 1, 91]])
def test_counts_are_those_that_pycocotools_writes(counts):
    size = [sum(counts), 1]
    encoded = coco_mask.frPyObjects({"size": size, "counts": counts}, *size)
    assert parse(encoded["counts"].decode(), (size[0], 1)) == parse(counts, (size[0], 1)) == counts


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([8, 3.5], "it must be lengths of runs"),
        ("83", "has 11 pixels"),
        ("8@", "it must be lengths of runs"),
        ("o" * 100, "has the character 'o', not COCO's compressed form"),
    ],
)
def test_other_counts_are_refused(counts, message):
    with pytest.raises(RunLengthError, match=message):
        parse(counts, (6, 4))

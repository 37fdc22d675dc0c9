"""The SSD family against numbers measured on the reference, as far as it takes little time.

All of it, with gradients, optimizer steps and large images, is the command's part:
`python -m benchmarks.conformance`.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks.conformance import checks, goldens
from benchmarks.conformance.compare import Check

# A configuration of each kind of predictor and anchors, the quickest to build.
HEADS = (
    "ssd_mobilenet_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync",
)


def assert_agrees(shared: pathlib.Path, name: str) -> None:
    case = goldens.read(shared / "golden", shared / "data" / "configs", name)
    cells = {column: Check() for column in checks.COLUMNS}
    checks.check_graph(case, cells)
    for column in ("variables", "anchors"):
        assert cells[column].ok, f"{name}: {cells[column]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_variables_counts_and_anchors(shared, name):
    assert_agrees(shared, name)


@pytest.mark.exhaustive
def test_all_single_shot_detectors(shared):
    """The same heads on networks that tests/extractors/test_golden_extractors.py compares."""
    num_compared = 0
    for path in sorted((shared / "golden" / "configs").glob("*.json")):
        record = json.loads(path.read_text())
        if record.get("model_type") == "ssd" and record.get("builds_train"):
            assert_agrees(shared, path.stem)
            num_compared += 1
    assert num_compared == 22

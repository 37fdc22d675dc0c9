"""The SSD family against numbers of the Object Detection API, as far as it takes little time.

All of it, with gradients, optimizer steps and large images, is the command's part:
`python -m benchmarks.conformance`.
"""

from __future__ import annotations

import json
from typing import Any, Sequence

import pytest

from benchmarks.conformance import checks, goldens
from benchmarks.conformance.compare import Check
from tests.conftest import MODELS

# A predictor that other whole networks of every day, here and in two more files, do not have.
SHARED_HEADS = "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync"
TWO_STAGES = "faster_rcnn_inception_v2_coco"
MORE_TWO_STAGES = (
    "faster_rcnn_resnet50_coco",
    "faster_rcnn_resnet101_atrous_coco",
    "faster_rcnn_inception_resnet_v2_atrous_coco",
)


def assert_agrees(
    name: str, check: Any = checks.check_graph, columns: Sequence[str] = ("variables", "anchors")
) -> None:
    cells = {column: Check() for column in checks.COLUMNS}
    check(goldens.read(MODELS, name), cells)
    for column in columns:
        assert cells[column].ok, f"{name}: {cells[column]}"


@pytest.mark.slow
def test_variables_counts_and_anchors():
    assert_agrees(SHARED_HEADS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [TWO_STAGES, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE_TWO_STAGES)],
)
def test_a_whole_network_of_two_stages(name):
    assert_agrees(name, checks.check_evaluation, ("predictions", "detections"))


@pytest.mark.exhaustive
def test_all_single_shot_detectors():
    """The same heads on networks that tests/extractors/test_golden_extractors.py compares."""
    num_compared = 0
    for path in sorted((MODELS / "configs").glob("*.json")):
        record = json.loads(path.read_text())
        if record.get("model_type") == "ssd" and record.get("builds_train"):
            assert_agrees(path.stem)
            num_compared += 1
    assert num_compared == 22

"""The SSD family against numbers measured on the reference, as far as it takes little time.

All of it, with gradients, optimizer steps and large images, is the command's part:
`python -m benchmarks.conformance`.
"""

from __future__ import annotations

import json
import pathlib
from typing import List

import pytest

from benchmarks.conformance import checks, goldens
from benchmarks.conformance.compare import Check

# A configuration of each kind of predictor and anchors, the quickest to build.
HEADS = (
    "ssd_mobilenet_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync",
)
# The same heads on networks that tests/extractors/test_golden_extractors.py compares.
MORE = (
    "embedded_ssd_mobilenet_v1_coco",
    "ssd_inception_v2_coco",
    "ssd_inception_v2_pets",
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_coco14_sync",
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_pets_sync",
    "ssd_mobilenet_v1_300x300_coco14_sync",
    "ssd_mobilenet_v1_coco",
    "ssd_mobilenet_v1_focal_loss_pets_inference",
    "ssd_mobilenet_v1_pets",
    "ssd_mobilenet_v2_coco",
    "ssd_mobilenet_v2_mnasfpn_shared_box_predictor_320x320_coco_sync",
    "ssd_mobilenet_v2_quantized_300x300_coco",
    "ssd_resnet50_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    "ssdlite_mobiledet_cpu_320x320_coco_sync_4x4",
    "ssdlite_mobiledet_dsp_320x320_coco_sync_4x4",
    "ssdlite_mobiledet_edgetpu_320x320_coco_sync_4x4",
    "ssdlite_mobilenet_edgetpu_320x320_coco",
    "ssdlite_mobilenet_v1_coco",
    "ssdlite_mobilenet_v2_coco",
    "ssdlite_mobilenet_v3_large_320x320_coco",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*HEADS, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE)]
)
def test_variables_counts_and_anchors(shared: pathlib.Path, name: str) -> None:
    case = goldens.read(shared / "golden", shared / "data" / "configs", name)
    cells = {column: Check() for column in checks.COLUMNS}
    checks.check_graph(case, cells)
    assert cells["variables"].ok, str(cells["variables"])
    assert cells["anchors"].ok, str(cells["anchors"])


def test_every_single_shot_record_is_among_them(shared: pathlib.Path) -> None:
    found: List[str] = []
    for path in (shared / "golden" / "configs").glob("*.json"):
        record = json.loads(path.read_text())
        if record.get("model_type") == "ssd" and record.get("builds_train"):
            found.append(path.stem)
    assert sorted(found) == sorted(HEADS + MORE)

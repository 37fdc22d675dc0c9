"""A detector with masks, from its export to the lines of `detect`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image
from pycocotools import mask as coco_mask

from estimator_det.files.mask_regions import paste_mask
from exporters import Detector, export_saved_model
from exporters.detect_files import Filter, detect_files
from tests import small_extractor
from tests.detectors.two_stage import configs
from tests.exporters.conftest import save_checkpoint, small_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Detector:
    folder = tmp_path_factory.mktemp("masks")
    config = small_config()
    text_format.Merge(f"model {{ {configs.SMALL} faster_rcnn {{ {configs.MASKS} }} }}", config)
    with pytest.MonkeyPatch.context() as patch:
        small_extractor.use(patch)
        checkpoint = save_checkpoint(config, str(folder / "model.ckpt"))
        export_saved_model(config, checkpoint, str(folder / "exported"))
    return Detector(folder / "exported")


def test_masks_of_an_export_in_lines_and_drawings(model, pictures, tmp_path):
    output = model.model._outputs["detection_masks"]
    assert output.dtype.name == "float32" and output.shape.as_list() == [None, 5, 6, 5]
    Image.fromarray(pictures[0]).save(tmp_path / "a.png")
    (result,) = detect_files(model, [str(tmp_path / "a.png")], str(tmp_path / "out"), Filter(0.0))
    found = result.detections
    assert found is not None and found.masks is not None and len(found.masks) > 0
    line = json.loads((tmp_path / "out" / "detections.jsonl").read_text())
    for i, detection in enumerate(line["detections"]):
        region = paste_mask(found.masks[i], found.normalized_boxes[i], (50, 70))
        drawn = coco_mask.decode(detection["segmentation"])
        assert drawn.shape == (50, 70) and drawn.sum() == np.count_nonzero(region.inside)
    assert sum(coco_mask.area(one["segmentation"]) for one in line["detections"]) > 0
    with Image.open(tmp_path / "out" / "a_detections.jpg") as image:
        changed = (np.asarray(image) != pictures[0]).any(axis=2)
    best = paste_mask(found.masks[0], found.normalized_boxes[0], (50, 70))
    rows, columns = best.inside.shape
    inside = changed[best.top : best.top + rows, best.left : best.left + columns][best.inside]
    assert inside.mean() > 0.9


def test_run_lengths_of_a_large_mask_are_whole(model, tmp_path, monkeypatch):
    outputs = {
        "num_detections": np.array([1.0], np.float32),
        "detection_boxes": np.array([[[0, 0, 1, 1]]], np.float32),
        "detection_scores": np.ones([1, 1], np.float32),
        "detection_classes": np.ones([1, 1], np.float32),
        "detection_masks": (np.indices([28, 28]).sum(0) % 2)[np.newaxis, np.newaxis].astype("f4"),
    }
    monkeypatch.setattr(model.model, "run", lambda images: outputs)
    Image.new("RGB", (2000, 100)).save(tmp_path / "a.png")
    (result,) = detect_files(model, [str(tmp_path / "a.png")], str(tmp_path), Filter(), "none")
    (detection,) = json.loads((tmp_path / "detections.jsonl").read_text())["detections"]
    assert len(detection["segmentation"]["counts"]) > 5_000
    mask = result.detections.whole_masks()[0]
    np.testing.assert_array_equal(coco_mask.decode(detection["segmentation"]), mask)

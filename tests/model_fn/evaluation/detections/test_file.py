"""Detections of both formats, and every fault of their entries."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from estimator_det.errors import RunError
from model_fn.evaluation.detections import file as detection_file
from model_fn.evaluation.detections.file import DetectionFile, Wanted, read_detections

BOXES = Wanted()
NAMES = {1: "cat", 2: "dog"}


def result(**changes: Any) -> dict[str, Any]:
    return {"image_id": 7, "category_id": 1, "bbox": [10, 20, 30, 40], "score": 0.5, **changes}


BOX = {"ymin": 0.1, "xmin": 0.2, "ymax": 0.5, "xmax": 0.6}
DETECTION = {"class_id": 1, "name": "cat", "score": 0.9, "box": BOX, "box_pixels": {}}


def line(**changes: Any) -> dict[str, Any]:
    return {"file": "photos/a.jpg", "height": 4, "width": 5, "detections": [DETECTION], **changes}


def read(folder: pathlib.Path, entries: Any, wanted: Wanted = BOXES) -> DetectionFile:
    """Detections of COCO results, or of lines of `detect`."""
    path, lines = folder / "found.json", any("file" in entry for entry in entries)
    path.write_text("\n".join(map(json.dumps, entries)) if lines else json.dumps(entries))
    return read_detections(str(path), NAMES, wanted)


def test_coco_results(tmp_path):
    masked = result(score=0.75, bbox=[0, 0, 100, 200.5], segmentation={"counts": "", "size": []})
    other = result(image_id="b.jpg", score=0.25, category_id=2)
    entries = [result(), other, masked, result(category_id=90), result(score=1)]
    detections = read(tmp_path, entries)
    assert detections.is_coco
    assert detections.names == ["7", "b.jpg"]
    assert (len(detections), detections.num_read) == (4, 5)
    assert detections.unknown_classes == {90: 1}
    first = detections.image_detections(0, 400, 200)
    assert first.scores.tolist() == [1.0, 0.75, 0.5]
    assert first.class_ids.tolist() == [1, 1, 1]
    # [x, y, width, height] in pixels becomes yxyx as fractions.
    expected = [[0.05, 0.05, 0.15, 0.2], [0, 0, 200.5 / 400, 0.5], [0.05, 0.05, 0.15, 0.2]]
    np.testing.assert_allclose(first.boxes, expected, rtol=1e-6)
    assert detections.image_detections(1, 400, 200).class_ids.tolist() == [2]


def test_lines_of_detect(tmp_path):
    lines = [
        line(),
        line(file="other/a.jpg", detections=[]),
        {"file": "b.c.png", "error": "it cannot be read"},
    ]
    detections = read(tmp_path, lines)
    assert not detections.is_coco
    assert detections.names == ["photos/a.jpg", "other/a.jpg", "b.c.png"]
    assert (len(detections), detections.num_failed) == (1, 1)
    first = detections.image_detections(0, 999, 999)
    np.testing.assert_allclose(first.boxes, [[0.1, 0.2, 0.5, 0.6]])
    assert detections.image_detections(1, 4, 5).scores.size == 0
    aliases = detections.aliases()
    assert aliases["photos/a.jpg"] == [0] and aliases["b.c"] == [2]
    assert aliases["a.jpg"] == aliases["a"] == [0, 1]


MASK = np.zeros([6, 4], np.uint8)
MASK[2:5, 1:3] = 1
RUNS = {"size": [6, 4], "counts": [8, 3, 3, 3, 7]}  # down the columns
MASKS = Wanted(masks=True)


def compressed() -> dict[str, Any]:
    encoded = coco_mask.encode(np.asfortranarray(MASK))
    return {"size": encoded["size"], "counts": encoded["counts"].decode()}


@pytest.mark.parametrize("segmentation", [RUNS, compressed()])
def test_masks(segmentation, tmp_path):
    entries = [result(segmentation=segmentation), result(segmentation=segmentation, score=0.75)]
    del entries[0]["bbox"]
    detections = read(tmp_path, entries, MASKS)
    image = detections.image_detections(0, 6, 4)
    decoded = [coco_mask.decode({"size": [6, 4], "counts": one}) for one in image.masks]
    np.testing.assert_array_equal(decoded, [MASK, MASK])
    # The box around the mask replaces a missing one.
    np.testing.assert_allclose(image.boxes[1], [2 / 6, 1 / 4, 5 / 6, 3 / 4], rtol=1e-6)
    with pytest.raises(RunError, match=r"a mask of image '7' has the size \[6, 4\], and "):
        detections.image_detections(0, 4, 6)
    lines = read(tmp_path, [line(detections=[{**DETECTION, "segmentation": segmentation}])], MASKS)
    assert lines.image_detections(0, 6, 4).masks[0] == compressed()["counts"].encode()


def test_keypoints(tmp_path):
    entries = [
        result(keypoints=[10, 20, 2, 30, 5, 0], score=0.9),
        result(keypoints=[1, 2, 2, 3, 4, 2], score=0.8),
        result(),
    ]
    del entries[1]["bbox"]
    detections = read(tmp_path, entries, Wanted(num_keypoints=2))
    image = detections.image_detections(0, 40, 50)
    expected = [[[0.5, 0.2], [0.125, 0.6]], [[0.05, 0.02], [0.1, 0.06]]]
    np.testing.assert_allclose(image.keypoints[:2], expected, rtol=1e-6)
    assert np.isnan(image.keypoints[2]).all()
    np.testing.assert_allclose(image.boxes[1], [2 / 40, 1 / 50, 4 / 40, 3 / 50], rtol=1e-6)
    assert detections.nothing().keypoints.shape == (0, 2, 2)


FAULTS_OF_RESULTS = [
    (result(image_id=True), "image_id is 'True'; it must be a number or a text"),
    (result(image_id="x" * 5000), "the name of the image has 5,000 characters"),
    (result(category_id="cat"), "category_id is 'cat'; it must be an id of the label map"),
    (result(category_id=-1), "category_id is '-1'"),
    (result(bbox=[1, 2, 3]), "bbox is '[1, 2, 3]'; it must be [x, y, width, height]"),
    (result(bbox=[1, 2, -3, 4]), "bbox has the width -3 and the height 4; 0 or more"),
    (result(bbox=[1, "2", 3, 4]), "bbox (y) is '2', not a number"),
    (result(bbox=[1, 2, 3, float("nan")]), "bbox (height) is nan; it must be finite"),
    (result(bbox=[1, 2, 3, 1e30]), "(yxyx), more than 10,000,000 pixels"),
    (result(score=10**39), "score is 1e+39; it must be finite"),
    (result(score="\x1b[2J" * 1000), "score is '\\x1b[2J"),
    ({"image_id": 1}, "has no category_id; it has ['image_id']"),
]
FAULTS_OF_LINES = [
    (result(), "is a COCO result outside of a list"),
    ({"images": [], "annotations": []}, "so it is a COCO data set; give a list of results"),
    ({"detections": []}, "has no file; it has ['detections']"),
    (line(file=3), "file is '3'; it must be a path"),
    (line(), "file 'photos/a.jpg' has a line before"),
    (line(file="b", detections={}), "detections is '{}'; it must be a list"),
    (line(file="b", detections=[5]), "detections[0]: is '5', not an object"),
    (line(file="b", detections=[{**DETECTION, "name": "owl"}]), "[0]: class 1 is 'owl', and 'cat'"),
    (line(file="b", detections=[{**DETECTION, "box": {"ymin": 0}}]), "no xmin; it has ['ymin']"),
    (line(file="b", detections=[{**DETECTION, "box": {**BOX, "ymin": 0.7}}]), "ymin <= ymax and"),
]
FAULTS_OF_MASKS = [
    ([[1, 2, 3, 4, 5, 6]], "segmentation is a polygon; give run lengths"),
    ("x", "is 'x', not an object"),
    ({**RUNS, "size": [6]}, "segmentation.size is '[6]'; it must be [height, width]"),
    ({**RUNS, "size": [10**6, 10**6]}, "segmentation.size is '[1000000, 1000000]'"),
    ({**RUNS, "size": [0, 4]}, "segmentation.size is '[0, 4]'"),
    ({**RUNS, "counts": [8, -3, 19]}, "it must be lengths of runs"),
    ({**RUNS, "counts": "oooo"}, "segmentation.counts ends within a number"),
]
FAULTS_OF_KEYPOINTS = [
    (result(), "no entry has keypoints, which the metrics need"),
    (result(keypoints=[1, 2, 2]), "keypoints has 3 numbers; 6 are needed"),
    (result(keypoints=7), "keypoints has '7'; 6 are needed"),
]


@pytest.mark.parametrize(
    ("entries", "wanted", "place", "message"),
    [
        *(
            ([result(), entry], BOXES, "\n  entry 2 (line 1): ", m)
            for entry, m in FAULTS_OF_RESULTS
        ),
        *(([line(), entry], BOXES, "\n  line 2: ", m) for entry, m in FAULTS_OF_LINES),
        ([result()], MASKS, "\n  entry 1 (line 1): ", "has no segmentation"),
        *(
            ([result(segmentation=mask)], MASKS, "\n  entry 1 (line 1): ", m)
            for mask, m in FAULTS_OF_MASKS
        ),
        *(([entry], Wanted(num_keypoints=2), "", m) for entry, m in FAULTS_OF_KEYPOINTS),
    ],
)
def test_faults(entries, wanted, place, message, tmp_path):
    if wanted == MASKS:  # Masks are not read unless they are wanted.
        assert len(read(tmp_path, entries)) == 1
    with pytest.raises(RunError) as caught:
        read(tmp_path, entries, wanted)
    text = str(caught.value)
    assert place in text and message in text
    assert "\x1b" not in text and len(text) < 1000


def test_files_that_are_refused(tmp_path, monkeypatch):
    with pytest.raises(RunError) as caught:
        read(tmp_path, [result(score="high")] * 50)
    assert str(caught.value).count("\n") == detection_file.MAX_FAULTS
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(RunError, match="is a named pipe, not a file of detections"):
        read_detections(str(tmp_path / "pipe.json"), NAMES, BOXES)
    with pytest.raises(FileNotFoundError, match=r"no such file of detections: .*none\.json"):
        read_detections(str(tmp_path / "none.json"), NAMES, BOXES)
    (tmp_path / "a.json").write_text(f"[\n{json.dumps(result())},\n{{'a': 1}}]")
    with pytest.raises(RunError, match=r"a\.json, line 3: not valid JSON: Expecting property"):
        read_detections(str(tmp_path / "a.json"), NAMES, BOXES)
    monkeypatch.setattr(detection_file, "MAX_DETECTIONS_OF_IMAGE", 3)
    with pytest.raises(RunError, match="image '7' has 4 detections; at most 3"):
        read(tmp_path, [result()] * 4)
    monkeypatch.setattr(detection_file, "MAX_DETECTIONS", 5)
    with pytest.raises(RunError, match="has more than 5 detections; evaluate it in parts"):
        read(tmp_path, [result(image_id=k) for k in range(6)])

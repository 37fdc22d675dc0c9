"""Detections of both formats, and every fault of their entries."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from model_fn.checkpoints.errors import RunError
from model_fn.evaluation.detections import file as detection_file
from model_fn.evaluation.detections.fields import mask_of
from model_fn.evaluation.detections.file import DetectionFile, Wanted, read_detections

NAMES = {1: "cat", 2: "dog"}


def result(**changes: Any) -> dict[str, Any]:
    return {"image_id": 7, "category_id": 1, "bbox": [10, 20, 30, 40], "score": 0.5, **changes}


def line(**changes: Any) -> dict[str, Any]:
    box = {"ymin": 0.1, "xmin": 0.2, "ymax": 0.5, "xmax": 0.6}
    one = {"class_id": 1, "name": "cat", "score": 0.9, "box": box, "box_pixels": {}}
    return {"file": "photos/a.jpg", "height": 4, "width": 5, "detections": [one], **changes}


def _read(folder: pathlib.Path, entries: Any, lines: bool = False) -> DetectionFile:
    path = folder / "found.json"
    path.write_text("\n".join(map(json.dumps, entries)) if lines else json.dumps(entries))
    return read_detections(str(path), NAMES)


def test_coco_results(tmp_path: pathlib.Path) -> None:
    found = _read(
        tmp_path,
        [
            result(),
            result(image_id="b.jpg", score=0.25, category_id=2),
            result(score=0.75, bbox=[0, 0, 100, 200.5], segmentation={"counts": "", "size": []}),
            result(category_id=90),
            result(score=1),
        ],
    )
    assert found.is_coco
    assert found.names == ["7", "b.jpg"]
    assert (len(found), found.num_read, dict(found.unknown_classes)) == (4, 5, {90: 1})
    first = found.image_detections(0, 400, 200)
    assert first.scores.tolist() == [1.0, 0.75, 0.5]
    assert first.class_ids.tolist() == [1, 1, 1]
    # [x, y, width, height] in pixels becomes yxyx as fractions.
    expected = [[0.05, 0.05, 0.15, 0.2], [0, 0, 200.5 / 400, 0.5], [0.05, 0.05, 0.15, 0.2]]
    np.testing.assert_allclose(first.boxes, expected, rtol=1e-6)
    assert found.image_detections(1, 400, 200).class_ids.tolist() == [2]
    assert [found.count_of(image) for image in (0, 1)] == [3, 1]


def test_lines_of_detect(tmp_path: pathlib.Path) -> None:
    found = _read(
        tmp_path,
        [
            line(),
            line(file="b.jpg", detections=[]),
            {"file": "broken.jpg", "error": "it cannot be read"},
        ],
        lines=True,
    )
    assert not found.is_coco
    assert found.names == ["photos/a.jpg", "b.jpg", "broken.jpg"]
    assert (len(found), found.num_failed) == (1, 1)
    np.testing.assert_allclose(found.image_detections(0, 999, 999).boxes, [[0.1, 0.2, 0.5, 0.6]])
    assert (
        found.image_detections(1, 4, 5).scores.size
        == found.image_detections(2, 4, 5).scores.size
        == 0
    )


def test_names_of_images(tmp_path: pathlib.Path) -> None:
    lines = [line(), line(file="other/a.jpg"), line(file="b.c.png")]
    found = _read(tmp_path, lines, lines=True).aliases()
    assert found["photos/a.jpg"] == [0]
    assert found["a.jpg"] == found["a"] == [0, 1]
    assert found["b.c"] == [2]
    numbers = {
        "COCO_val2014_000000000139.jpg": ["139"],
        "images/000000000139.jpg": ["139"],
        "139": ["139"],
        "img139.jpg": [],
        "000.jpg": ["0"],
        "": [],
    }
    for name, number in numbers.items():
        assert detection_file.number_of_image(name) == number, name


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([1], "is '[1]', not an object"),
        ({"image_id": 1}, "has no category_id; it has ['image_id']"),
        (result(image_id=True), "image_id is 'True'; it must be a number or a text"),
        (result(image_id=1.5), "image_id is '1.5'"),
        (result(image_id="x" * 5000), "the name of the image has 5,000 characters"),
        (result(category_id="cat"), "category_id is 'cat'; it must be an id of the label map"),
        (result(category_id=2**31), "category_id is '2147483648'"),
        (result(category_id=-1), "category_id is '-1'"),
        (result(bbox=[1, 2, 3]), "bbox is '[1, 2, 3]'; it must be [x, y, width, height]"),
        (result(bbox=[1, 2, -3, 4]), "bbox has the width -3 and the height 4; 0 or more"),
        (result(bbox=[1, "2", 3, 4]), "bbox (y) is '2', not a number"),
        (
            result(bbox=[1, 2, 3, float("nan")]),
            "bbox is '[1, 2, 3, nan]'; its numbers must be finite",
        ),
        (result(bbox=[1, 2, float("inf"), 3]), "its numbers must be finite"),
        (result(bbox=[float("nan"), 2.0, 5.0, 3]), "its numbers must be finite"),
        (result(bbox=[1, 2, 3, 1e30]), "(yxyx), more than 10,000,000 pixels"),
        (result(score=float("inf")), "score is inf; it must be finite"),
        (result(score=10**39), "score is 1e+39; it must be finite"),
        (result(score=None), "score is 'None', not a number"),
        (result(score="\x1b[2J" * 1000), "score is '\\x1b[2J"),
    ],
)
def test_faults_of_results(entry: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunError) as caught:
        _read(tmp_path, [result(), entry])
    text = str(caught.value)
    assert "\n  entry 2 (line 1): " in text
    assert message in text
    assert "\x1b" not in text and len(text) < 1000


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (result(), "is a COCO result outside of a list"),
        ({"images": [], "annotations": []}, "so it is a COCO data set; give a list of results"),
        ({"detections": []}, "has no file; it has ['detections']"),
        (line(file=3), "file is '3'; it must be a path"),
        (line(), "file 'photos/a.jpg' has a line before"),
        (line(file="b", detections={}), "detections is '{}'; it must be a list"),
        (line(file="b", detections=[5]), "detections[0]: is '5', not an object"),
        (
            line(file="b", detections=[{**line()["detections"][0], "name": "owl"}]),
            "detections[0]: class 1 is 'owl', and 'cat' in the label map",
        ),
        (
            line(file="b", detections=[{"class_id": 1, "score": 0.5, "box": {"ymin": 0}}]),
            "has no xmin; it has ['ymin']",
        ),
        (
            line(
                file="b",
                detections=[
                    {
                        "class_id": 1,
                        "score": 0.5,
                        "box": {"ymin": 0.5, "xmin": 0, "ymax": 0.4, "xmax": 1},
                    }
                ],
            ),
            "it must be ymin <= ymax and xmin <= xmax",
        ),
    ],
)
def test_faults_of_lines(entry: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunError) as caught:
        _read(tmp_path, [line(), entry], lines=True)
    assert "\n  line 2: " in str(caught.value)
    assert message in str(caught.value)


MASK = np.zeros([6, 4], np.uint8)
MASK[2:5, 1:3] = 1
RUNS = {"size": [6, 4], "counts": [8, 3, 3, 3, 7]}  # down the columns


def _compressed() -> dict[str, Any]:
    encoded = coco_mask.encode(np.asfortranarray(MASK))
    return {"size": encoded["size"], "counts": encoded["counts"].decode()}


@pytest.mark.parametrize("given", [RUNS, _compressed()])
def test_masks_of_results(given: Any, tmp_path: pathlib.Path) -> None:
    entries = [result(segmentation=given), result(segmentation=given, score=0.75)]
    del entries[0]["bbox"]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    found = read_detections(str(tmp_path / "a.json"), NAMES, Wanted(masks=True)).image_detections(
        0, 6, 4
    )
    decoded = [coco_mask.decode({"size": [6, 4], "counts": one}) for one in found.masks]
    np.testing.assert_array_equal(decoded, [MASK, MASK])
    # The box around the mask replaces a missing one.
    np.testing.assert_allclose(found.boxes[1], [2 / 6, 1 / 4, 5 / 6, 3 / 4], rtol=1e-6)
    with pytest.raises(RunError, match=r"a mask of image '7' has the size \[6, 4\], and "):
        read_detections(str(tmp_path / "a.json"), NAMES, Wanted(masks=True)).image_detections(
            0, 4, 6
        )


def test_masks_of_many_shapes_are_read_as_pycocotools_writes_them() -> None:
    random = np.random.default_rng(0)
    for size in ((1, 1), (3, 200), (300, 200)):
        for share in (0.0, 0.01, 0.5, 1.0):
            mask = np.asfortranarray(random.uniform(size=size) < share, np.uint8)
            encoded = coco_mask.encode(mask)
            read = mask_of({"size": list(size), "counts": encoded["counts"].decode()})
            assert read == (size, encoded["counts"])


def test_masks_of_lines(tmp_path: pathlib.Path) -> None:
    one = {**line()["detections"][0], "segmentation": _compressed()}
    (tmp_path / "a.jsonl").write_text(json.dumps(line(detections=[one])))
    found = read_detections(str(tmp_path / "a.jsonl"), NAMES, Wanted(masks=True))
    assert found.image_detections(0, 6, 4).masks[0] == _compressed()["counts"].encode()


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (None, "has no segmentation"),
        ([[1, 2, 3, 4, 5, 6]], "segmentation is a polygon; give run lengths"),
        ("x", "is 'x', not an object"),
        ({"size": [6, 4]}, "has no counts"),
        ({**RUNS, "size": [6]}, "segmentation.size is '[6]'; it must be [height, width]"),
        ({**RUNS, "size": [10**6, 10**6]}, "segmentation.size is '[1000000, 1000000]'"),
        ({**RUNS, "size": [0, 4]}, "segmentation.size is '[0, 4]'"),
        ({**RUNS, "counts": [8, -3, 19]}, "it must be lengths of runs"),
        ({**RUNS, "counts": [8, 3.5]}, "it must be lengths of runs"),
        ({**RUNS, "counts": [8, 3]}, "has 11 pixels, and its size 24; they must be equal"),
        # Text that makes pycocotools read and write beyond its memory.
        ({**RUNS, "counts": "oooo"}, "segmentation.counts ends within a number"),
        ({**RUNS, "counts": "o" * 100}, "segmentation.counts has the character 'o'"),
        ({**RUNS, "counts": "8 3"}, "segmentation.counts has the character ' '"),
        ({**RUNS, "counts": "8@"}, "it must be lengths of runs"),
        ({**RUNS, "counts": "83"}, "has 11 pixels"),
        ({**RUNS, "counts": "\u20ac"}, "has the character"),
    ],
)
def test_faults_of_masks(segmentation: Any, message: str, tmp_path: pathlib.Path) -> None:
    entry = result() if segmentation is None else result(segmentation=segmentation)
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    assert len(read_detections(str(tmp_path / "a.json"), NAMES)) == 1  # where none is wanted
    with pytest.raises(RunError) as caught:
        read_detections(str(tmp_path / "a.json"), NAMES, Wanted(masks=True))
    assert message in str(caught.value)


def test_keypoints(tmp_path: pathlib.Path) -> None:
    entries = [
        result(keypoints=[10, 20, 2, 30, 5, 0], score=0.9),
        result(keypoints=[1, 2, 2, 3, 4, 2], score=0.8),
        result(),
    ]
    del entries[1]["bbox"]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    wanted = Wanted(num_keypoints=2)
    found = read_detections(str(tmp_path / "a.json"), NAMES, wanted).image_detections(0, 40, 50)
    expected = [[[0.5, 0.2], [0.125, 0.6]], [[0.05, 0.02], [0.1, 0.06]]]
    np.testing.assert_allclose(found.keypoints[:2], expected, rtol=1e-6)
    assert np.isnan(found.keypoints[2]).all()
    np.testing.assert_allclose(found.boxes[1], [2 / 40, 1 / 50, 4 / 40, 3 / 50], rtol=1e-6)
    assert read_detections(str(tmp_path / "a.json"), NAMES, wanted).nothing().keypoints.shape == (
        0,
        2,
        2,
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (result(), "no entry has keypoints, which the metrics need"),
        (result(keypoints=[1, 2, 2]), "keypoints has 3 numbers; 6 are needed"),
        (result(keypoints=7), "keypoints has '7'; 6 are needed"),
        (result(keypoints=[1, 2, 2, 3, 4, "x"]), "keypoints is 'x', not a number"),
    ],
)
def test_faults_of_keypoints(entry: Any, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([entry]))
    with pytest.raises(RunError) as caught:
        read_detections(str(tmp_path / "a.json"), NAMES, Wanted(num_keypoints=2))
    assert message in str(caught.value)


def test_a_few_faults_are_listed_at_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunError) as caught:
        _read(tmp_path, [result(score="high")] * 50)
    assert str(caught.value).count("\n") == detection_file.MAX_FAULTS


def test_what_is_no_file_is_refused(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(RunError, match="is a named pipe, not a file of detections"):
        read_detections(str(tmp_path / "pipe.json"), NAMES)
    with pytest.raises(FileNotFoundError, match=r"no such file of detections: .*none\.json"):
        read_detections(str(tmp_path / "none.json"), NAMES)


def test_text_that_is_not_json_is_refused_by_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "found.json"
    path.write_text(f"[\n{json.dumps(result())},\n{{'a': 1}}]")
    with pytest.raises(RunError, match=r"found\.json, line 3: not valid JSON: Expecting property"):
        read_detections(str(path), NAMES)


def test_too_many_detections_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection_file, "MAX_DETECTIONS_OF_IMAGE", 3)
    with pytest.raises(RunError, match="image '7' has 4 detections; at most 3"):
        _read(tmp_path, [result()] * 4)
    monkeypatch.setattr(detection_file, "MAX_DETECTIONS", 5)
    with pytest.raises(RunError, match="has more than 5 detections; evaluate it in parts"):
        _read(tmp_path, [result(image_id=k) for k in range(6)])


def test_unknown_classes_are_counted_within_limits(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection_file, "MAX_UNKNOWN_CLASSES", 2)
    found = _read(tmp_path, [result(category_id=k) for k in range(10, 20)])
    assert dict(found.unknown_classes) == {10: 1, 11: 1, -1: 8}
    assert found.names == ["7"]


@pytest.mark.parametrize("lines", [False, True])
def test_damaged_files_end_in_an_error_of_ours(lines: bool, tmp_path: pathlib.Path) -> None:
    detection = {**line()["detections"][0], "segmentation": _compressed()}
    valid = [line(file=str(k), detections=[detection] * 2) for k in range(3)]
    if not lines:
        valid = [result(segmentation=_compressed(), keypoints=[1, 2, 2]) for _ in range(3)]
    text = "\n".join(map(json.dumps, valid)) if lines else json.dumps(valid)
    content, path = np.frombuffer(text.encode(), np.uint8), tmp_path / "a.json"
    random, refused = np.random.default_rng(0), 0
    for _ in range(200):
        damaged = content[: random.integers(1, len(content) + 1)].copy()
        places = random.integers(0, len(damaged), random.integers(0, 4))
        damaged[places] = random.choice(np.frombuffer(b'{}[]",:0-9eN\xff\x00\\ ', np.uint8))
        path.write_bytes(damaged.tobytes())
        try:
            read_detections(str(path), NAMES, Wanted(masks=True, num_keypoints=0))
        except RunError as error:
            refused += 1
            assert (len(str(error)) < 10_000 and str(error).isprintable()) or "\n" in str(error)
    assert refused > 100

"""What formats in JSON files say of objects, and their faults."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.errors import UsageError
from inputs.datasets import masks
from inputs.datasets.source import AnnotatedImage, ConversionError, SourceOptions
from tests.inputs.conversion import samples
from tests.inputs.datasets.converters.test_formats import faults_of, read

# labelme


def labelme(root: pathlib.Path, shapes: Any, **members: Any) -> AnnotatedImage:
    folder = root / "images" / "json"
    folder.mkdir()
    document: Dict[str, Any] = {"imagePath": "..\\a.png", "shapes": shapes, **members}
    (folder / "a.json").write_text(json.dumps(document, indent=0))
    images = read("labelme", images=str(root / "images"), annotations=str(folder))
    assert len(images) == 1
    return images[0]


def test_labelme_shapes_of_one_group_are_one_object(root):
    triangle, other = [[1, 1], [5, 1], [5, 6]], [[10, 3], [12, 3], [12, 9]]
    shapes = [
        {"label": "cat", "points": triangle, "group_id": 1, "shape_type": "polygon"},
        {"label": "dog", "points": triangle, "group_id": 1, "flags": {"difficult": True}},
        {"label": "cat", "points": other, "group_id": 1},
        {"label": "cat", "points": other, "group_id": None},
    ]
    image = labelme(root, shapes)
    assert image.image == "a.png"
    assert [(one.class_name, len(one.polygons), one.difficult) for one in image.objects] == [
        ("cat", 2, None), ("dog", 1, True), ("cat", 1, None),
    ]  # fmt: skip
    assert image.objects[0].polygons[1] == [10, 3, 12, 3, 12, 9]


def test_labelme_shapes_that_are_no_objects(root):
    places = ([[1, 1], [2, 2]], [[1, 1], [2, "x"], [2, 3]], [[1, 1], [2], [2, 3]])
    line, text, number = ({"label": "cat", "points": points} for points in places)
    point = {"label": "cat", "points": [[1, 1]], "shape_type": "point"}
    unnamed = {"points": [[1, 1], [2, 2]]}
    image = labelme(root, [point, line, unnamed, text, number, {"label": "cat"}, 7])
    assert [fault.kind for fault in image.faults] == [
        "unsupported_shape", "broken_mask", "missing_key", "broken_source", "broken_source",
        "broken_source", "missing_key",
    ]  # fmt: skip
    text = (root / "images" / "json" / "a.json").read_text().split("\n")
    assert all(text[fault.line - 1] in ("{", "7") for fault in image.faults)
    assert not image.objects


def test_labelme_rectangles_are_no_masks(tmp_path):
    conversion = samples.convert(samples.make(tmp_path, "labelme"), tmp_path / "out")
    assert conversion.tally["masks_left_out"] == 0


def test_labelme_without_a_path(root):
    image = labelme(root, [], imagePath=None)
    assert faults_of(image) == [("missing_key", 0)]


# Detections


def test_detections_above_a_score(root):
    mask = np.zeros((20, 32), bool)
    mask[4:14, 8:24] = True
    box = {"ymin": 0.2, "xmin": 0.25, "ymax": 0.7, "xmax": 0.75}
    detections = [
        {"class_id": 3, "name": "cat", "score": 0.875, "box": box,
         "segmentation": masks.to_run_lengths(mask)},
        {"class_id": 3, "name": "cat", "score": 0.25, "box": box},
    ]  # fmt: skip
    cat = {"name": "cat", "box": box}
    wrong = [7, {"box": box}, {**cat, "score": 2}, {**cat, "segmentation": 7}]
    lines: List[Any] = [
        {"file": "a.png", "height": 20, "width": 32, "detections": detections},
        {"file": "b.png", "error": "it is damaged"},
        {"file": "c.png", "detections": [{"class_id": 3, "name": "owl", "score": 1, "box": box}]},
        {"height": 3},
        {"file": "d.png", "detections": 7},
        {"file": "b.png", "detections": wrong},
    ]
    path = root / "d.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n{cut")
    options = SourceOptions(str(root / "images"), str(path), min_score=0.5)
    sample = samples.Sample("detection_jsonl", options, str(path), 1)
    conversion = samples.convert(sample, root / "out", masks=True, on_error="skip")
    found = samples.records(root / "out")["a"]
    assert samples.boxes_of(found) == [("cat", (4.0, 8.0, 14.0, 24.0))]
    assert found["image/object/class/confidence"] == [0.875]
    assert found["image/object/class/label"] == [3] and conversion.names == {3: "cat"}
    assert found["image/object/mask"] == [masks.to_png(mask)]
    assert [(fault["kind"], fault["line"]) for fault in samples.faults(root / "out")] == [
        ("undecodable_image", 2), ("missing_key", 4), ("missing_key", 5), ("broken_source", 7),
        ("label_contradiction", 3), ("missing_key", 6), ("missing_key", 6), ("broken_source", 6),
        ("broken_mask", 6),
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "images/", "./images/../images/", "{root}/images/"])
def test_detections_of_paths_as_detect_was_given_them(root, monkeypatch, prefix):
    """Relative to the current folder, as in `detect images/`, to `--images`, or absolute."""
    monkeypatch.chdir(root)
    sample = samples.make(root, "detection_jsonl")
    path = pathlib.Path(sample.cat_file)
    path.write_text(path.read_text().replace('"file": "', f'"file": "{prefix.format(root=root)}'))
    options = SourceOptions("images", str(path))
    samples.convert(sample._replace(options=options), root / "out")
    assert sorted(samples.records(root / "out")) == sorted(
        path.stem for path in (root / "images").iterdir()
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("{root}/secret.png", "outside_folder"),
        ("secret.png", "no_image"),
        ("images/../secret.png", "outside_folder"),
        ("x/../../y.png", "outside_folder"),
        ("images/link.png", "outside_folder"),
        ("images/folder/secret.png", "no_image"),
        ("folder/secret.png", "outside_folder"),
        ("images/\0.png", "missing_key"),
        ("images/\ud800.png", "missing_key"),
    ],
)
def test_detections_of_no_file_outside_the_images(root, monkeypatch, name, kind):
    monkeypatch.chdir(root)
    (root / "secret.png").write_bytes((root / "images" / "a.png").read_bytes())
    (root / "images" / "link.png").symlink_to(root / "secret.png")
    (root / "images" / "folder").symlink_to(root)
    path = root / "d.jsonl"
    path.write_text(json.dumps({"file": name.format(root=root), "detections": []}))
    sample = samples.Sample(
        "detection_jsonl", SourceOptions(str(root / "images"), str(path)), str(path), 1
    )
    with pytest.raises(ConversionError, match=f"line 1: {kind}: "):
        samples.convert(sample, root / "out")


# COCO


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"annotations_category_id": 9}, {"unknown_id"}),
        ({"annotations_bbox": [1, 2, 3]}, {"broken_source"}),
        ({"annotations_bbox": "x"}, {"broken_source"}),
        ({"annotations_bbox": None}, {"box_nan"}),
        ({"annotations_area": float("nan")}, {"broken_source"}),
        ({"annotations_iscrowd": 0.5}, {"broken_source"}),
        ({"annotations_image_id": 99}, {"missing_key"}),
        ({"annotations_keypoints": [1, 2]}, {"length_mismatch"}),
        ({"annotations_keypoints": [1, 2, 3]}, {"broken_keypoints"}),
        ({"annotations_segmentation": 5}, {"broken_source", "mask_empty"}),
        ({"annotations_segmentation": []}, {"mask_empty"}),
        ({"annotations_segmentation": {"size": [20, 32], "counts": [640]}}, {"mask_empty"}),
        ({"annotations_segmentation": [[1, 2]]}, {"broken_mask", "mask_empty"}),
        ({"annotations_segmentation": {"size": [20, 32], "counts": "~"}},
         {"broken_mask", "mask_empty"}),
        ({"annotations_segmentation": [[0, 0, 5, 0, 5, 3]]}, {"mask_mismatch", "mask_empty"}),
        ({"images_file_name": 5}, {"broken_source"}),
        ({"images_file_name": "b.png"}, {"duplicate_id"}),
        ({"images_id": 1}, {"duplicate_id", "missing_key"}),
        ({"images_file_name": "\udc80.png"}, {"missing_key"}),
        ({"images_id": None}, {"broken_source", "missing_key"}),
        ({"images_id": 0.0}, set()),  # programs that keep tables of floats write 0.0 for 0
        ({"annotations_image_id": 0.0}, set()),
        ({"images_height": "high"}, {"broken_source"}),
        ({"images_neg_category_ids": [1, 9]}, {"unknown_id"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_coco_faults(changes, kinds, root):
    """Another value in the first annotation or image of the sample."""
    sample = samples.make(root, "coco")
    path = pathlib.Path(sample.cat_file)
    document = json.loads(path.read_text())
    ((key, value),) = changes.items()
    member, _, field = key.partition("_")
    document[member][0][field] = value
    path.write_text(json.dumps(document))
    samples.convert(sample, root / "out", on_error="skip", masks="segmentation" in key)
    assert {fault["kind"] for fault in samples.faults(root / "out")} == kinds


def test_coco_ids_below_one_need_a_label_map(root):
    sample = samples.make(root, "coco")
    path = pathlib.Path(sample.cat_file)
    text = path.read_text()
    path.write_text(text.replace('"category_id": 1', '"category_id": 0').replace(
        '{"id": 1, "name"', '{"id": 0, "name"'
    ))  # fmt: skip
    with pytest.raises(UsageError, match=r"'cat' has id 0, and ids of a label map start"):
        samples.convert(sample, root / "out")
    (root / "map.pbtxt").write_text('item { id: 5 name: "cat" } item { id: 2 name: "dog" }')
    samples.convert(sample, root / "out", label_map=str(root / "map.pbtxt"))
    assert samples.records(root / "out")["a"]["image/object/class/label"] == [5, 2]
    assert (root / "out" / "label_map.pbtxt").read_text() == (root / "map.pbtxt").read_text()


def test_coco_without_categories_is_refused(root):
    (root / "c.json").write_text('{"images": [], "annotations": []}')
    with pytest.raises(UsageError, match=r"c.json: there are no categories; add them"):
        read("coco", images=str(root / "images"), annotations=str(root / "c.json"))

"""COCO -> records -> COCO, field by field; and records of other programs to COCO."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.files import run_lengths
from estimator_det.programs import conversion_report
from inputs.conversion import to_coco
from inputs.conversion.examples import OBJECT_FIELDS
from inputs.conversion.images import ImageOptions
from inputs.datasets import masks, writer
from inputs.datasets.source import ConversionError, SourceOptions
from inputs.label_map import read_label_map
from tests.inputs import examples
from tests.inputs.conversion import samples

H, W = 48, 64
PERSON = ["nose", "left_eye", "right_eye"]
CAT = ["nose", "tail"]


def disc(y: float, x: float, radius: float) -> np.ndarray:
    rows, columns = np.mgrid[0:H, 0:W]
    return (rows - y) ** 2 + (columns - x) ** 2 < radius**2


def box_around(mask: np.ndarray) -> Any:
    ymin, xmin, ymax, xmax = masks.extent(mask)
    return [xmin, ymin, xmax - xmin, ymax - ymin]


def count_runs(mask: np.ndarray) -> List[int]:
    return run_lengths.parse(masks.to_run_lengths(mask)["counts"], mask.shape)


def document() -> Dict[str, Any]:
    """Every kind of annotation that COCO's files have."""
    crowd, compressed = disc(20, 40, 12), disc(30, 20, 9)
    square = [10.25, 5.5, 30.38, 5.5, 30.38, 15.6, 10.25, 15.6]
    parts = [[1, 1, 9, 1, 9, 7, 1, 7], [11.0, 2.0, 20.0, 2.0, 15.0, 9.5]]
    return {
        "info": {"year": 2017, "contributor": "Ä", "version": "1.0"},
        "licenses": [{"id": 3, "name": "by", "url": "http://x"}],
        "images": [
            {
                "id": 397133, "file_name": "sub/a b.jpg", "height": H, "width": W, "license": 3,
                "coco_url": "http://x/1.jpg", "date_captured": "2013-11-14 17:02:52",
                "flickr_url": "http://f/1.jpg",
            },
            {"id": 37777, "file_name": "ü.png", "height": H, "width": W, "license": 3},
            {
                "id": 252219, "file_name": "empty.png", "height": H, "width": W,
                "neg_category_ids": [17], "not_exhaustive_category_ids": [1, 90],
            },
        ],
        "annotations": [
            {
                "id": 82445, "image_id": 397133, "category_id": 17, "iscrowd": 0,
                "bbox": [10.25, 5.5, 20.13, 10.1], "area": 702.1057499999998,
                "segmentation": [square], "keypoints": [11, 6, 2, 0, 0, 0], "num_keypoints": 1,
            },
            {
                "id": 1, "image_id": 397133, "category_id": 1, "iscrowd": 0, "num_keypoints": 2,
                "bbox": [1.0, 1.0, 19.0, 8.5], "area": 81.0, "segmentation": parts,
                "keypoints": [12, 7, 2, 15.5, 8.25, 1, 0, 0, 0],
            },
            {
                "id": 900100, "image_id": 37777, "category_id": 90, "iscrowd": 1,
                "bbox": box_around(crowd), "area": float(crowd.sum()),
                "segmentation": {"size": [H, W], "counts": count_runs(crowd)},
            },
            {
                "id": 7, "image_id": 37777, "category_id": 1, "iscrowd": 0, "num_keypoints": 0,
                "bbox": [0.1 + 0.2 + 11, 21.4567891, 17.123456789, 17.9], "area": 254.1,
                "segmentation": masks.to_run_lengths(compressed), "keypoints": [0] * 9,
                "attributes": {"occluded": True},
            },
        ],
        "categories": [
            {
                "id": 1, "name": "person", "supercategory": "person", "keypoints": PERSON,
                "skeleton": [[1, 2]],
            },
            {"id": 17, "name": "cat", "supercategory": "animal", "keypoints": CAT},
            {"id": 90, "name": 'a "quoted" \\ name', "supercategory": "indoor"},
        ],
    }  # fmt: skip


def write(root: Any, content: Dict[str, Any]) -> samples.Sample:
    folder = root / "images"
    for number, image in enumerate(content["images"]):
        path = folder / image["file_name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = "JPEG" if path.suffix == ".jpg" else "PNG"
        path.write_bytes(samples.png(number, image["height"], image["width"], kind))
    path = root / "instances.json"
    path.write_text(json.dumps(content))
    return samples.Sample("coco", SourceOptions(str(folder), str(path)), str(path), 1)


def export(root: Any, conversion: Any, **options: Any) -> Dict[str, Any]:
    output = root / "back.json"
    given = {"label_map": conversion.label_map, **options}
    records = list(conversion.patterns.values())
    to_coco.export_coco(to_coco.CocoOptions(records, str(output), **given))
    assert [path.name for path in root.glob("back.json*")] == ["back.json"]
    return json.loads(output.read_text())


def by_id(entries: Any) -> Dict[int, Any]:
    return {entry["id"]: entry for entry in entries}


def test_the_round_trip_loses_nothing(tmp_path):
    given = document()
    conversion = samples.convert(write(tmp_path, given), tmp_path / "out", masks=True)
    points = {1: {name: i for i, name in enumerate(PERSON)}, 17: {CAT[0]: 0, CAT[1]: 1}}
    assert read_label_map(conversion.label_map).keypoints == points
    records = samples.records(tmp_path / "out").values()
    texts = [values.get("image/object/keypoint/text") for values in records]
    labelled = [[*CAT, "", *PERSON], ["", "", "", *PERSON]]
    assert sorted(filter(None, texts))[::-1] == [[n.encode() for n in each] for each in labelled]
    back = export(tmp_path, conversion, write_images=str(tmp_path / "written"))
    assert list(back) == ["written_by", "info", "licenses", "images", "annotations", "categories"]
    for key in ("info", "licenses", "categories"):
        assert back[key] == given[key]
    for key in ("images", "annotations"):
        found, expected = by_id(back[key]), by_id(given[key])
        assert list(found) == list(expected)
        for identifier, entry in expected.items():
            assert found[identifier] == entry
    for image in given["images"]:
        name = image["file_name"]
        written = (tmp_path / "written" / name).read_bytes()
        assert written == (tmp_path / "images" / name).read_bytes()


def test_keypoints_that_no_category_names_are_counted(tmp_path):
    given = document()
    del given["categories"][0]["keypoints"]
    conversion = samples.convert(write(tmp_path, given), tmp_path / "out")
    assert conversion.tally["keypoints_without_names"] == 1  # the other object has no place
    assert 1 not in read_label_map(conversion.label_map).keypoints
    (line,) = (x for x in conversion_report.summary_lines(conversion) if "with keypoints" in x)
    assert line.startswith("1 object with keypoints that") and "--label_map" in line


def test_records_of_other_programs(tmp_path):
    """Without ids, sizes and files beside the records."""
    encoded = samples.png(0, 10, 20)
    square = np.zeros((10, 20), bool)
    square[2:5, 4:10] = True
    labels = writer.Annotations(
        np.array([[0.2, 0.2, 0.5, 0.5]]), [2], masks=[masks.to_png(square)], group_of=[True],
        keypoints=np.array([[[0.3, 0.4], [np.nan, np.nan], [0.5, 0.5]]]), confidences=[0.9],
        keypoint_visibilities=np.array([[2, 0, 1]]),
    )  # fmt: skip
    path = str(tmp_path / "x.record")
    names = ("a.png", "b.png")
    writer.write_sharded([writer.make_example(encoded, labels, filename=n) for n in names], path, 1)
    points = {2: ["nose", "ear", "tail"]}
    writer.write_label_map({2: "dog"}, str(tmp_path / "map.pbtxt"), points)
    output = str(tmp_path / "x.json")
    options = to_coco.CocoOptions([path + "-*"], output, str(tmp_path / "map.pbtxt"))
    assert to_coco.export_coco(options) == (2, 2)
    with open(output) as file:
        found = json.load(file)
    assert found["categories"] == [{"id": 2, "name": "dog", "keypoints": points[2]}]
    assert found["images"][1] == {"file_name": "b.png", "height": 10, "width": 20, "id": 2}
    annotation = found["annotations"][1]
    assert annotation.pop("segmentation") == {
        "size": [10, 20], "counts": count_runs(square),
    }  # fmt: skip
    assert annotation == {
        "id": 2, "image_id": 2, "category_id": 2, "bbox": [4, 2, 6, 3], "area": 18, "iscrowd": 1,
        "keypoints": [8, 3, 2, 0, 0, 0, 10, 5, 1], "num_keypoints": 2, "score": 0.9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source_ids", "object_ids", "image_ids", "annotation_ids"),
    [(("7", "8"), (5, 6), [7, 8], [5, 6]), (("7", "7"), (5, 5), [1, 2], [1, 2])],
)
def test_ids_that_repeat_are_not_kept(source_ids, object_ids, image_ids, annotation_ids, tmp_path):
    """Also: categories of a data set, names by ids, and keypoints without visibilities."""
    labels = writer.Annotations(
        np.array([[0.2, 0.2, 0.5, 0.5]]), [1], keypoints=np.array([[[0.3, 0.4], [0.5, 0.5]]])
    )
    records = [
        writer.make_example(
            samples.png(0, 10, 20), labels, filename="", source_id=source_id,
            other={OBJECT_FIELDS: [b'{"id": %d}' % number], "image/neg_category_ids": [1]},
        )
        for source_id, number in zip(source_ids, object_ids)
    ]  # fmt: skip
    writer.write_sharded(records, str(tmp_path / "x.record"), 1)
    writer.write_label_map({1: "dog"}, str(tmp_path / "map.pbtxt"))
    (tmp_path / "facts.json").write_text('{"categories": [{"id": 17, "name": "dog"}]}')
    output = tmp_path / "x.json"
    places = (str(tmp_path / name) for name in ("x.json", "map.pbtxt", "facts.json"))
    to_coco.export_coco(to_coco.CocoOptions([str(tmp_path / "x.record-*")], *places))
    found = json.loads(output.read_text())
    assert [image["id"] for image in found["images"]] == image_ids
    assert [image["file_name"] for image in found["images"]] == list(source_ids)
    assert [image["neg_category_ids"] for image in found["images"]] == [[17]] * 2
    annotations = found["annotations"]
    assert [annotation["id"] for annotation in annotations] == annotation_ids
    assert [annotation["image_id"] for annotation in annotations] == image_ids
    assert [annotation["category_id"] for annotation in annotations] == [17] * 2
    assert annotations[0]["keypoints"] == [8, 3, 2, 10, 5, 2]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({}, "the file name '../../x.png' leads out of"),
        ({"image/object/class/label": [1, 1]}, "lists of boxes differ in length"),
        ({"image/object/class/label": [2]}, r"class 2 \(''\) does not fit .*/map.pbtxt"),
        ({"image/object/class/text": [b"cat"]}, r"class 1 \('cat'\) does not fit .*/map.pbtxt"),
        ({"image/object/mask": [samples.png(0, 4, 4)]}, "a mask is no PNG of the image's size"),
        ({"image/encoded": [b"x"]}, "image/encoded is not an image"),
        (None, "fail their checksum"),
    ],
)
def test_faults_of_records_are_reported_by_file_and_number(features, message, tmp_path):
    labels = writer.Annotations(np.array([[0.2, 0.2, 0.5, 0.5]]), [1])
    example = writer.make_example(samples.png(0, 10, 20), labels, filename="../../x.png")
    for key, values in (features or {}).items():
        example.features.feature[key].CopyFrom(examples.feature(values))
    writer.write_sharded([example], str(tmp_path / "x.record"), 1)
    path = tmp_path / "x.record-00000-of-00001"
    if features is None:
        path.write_bytes(path.read_bytes()[:-9] + b"damage...")
    writer.write_label_map({1: "dog", 3: "cat"}, str(tmp_path / "map.pbtxt"))
    options = to_coco.CocoOptions(
        [str(path)], str(tmp_path / "x.json"), str(tmp_path / "map.pbtxt"),
        write_images="" if features else str(tmp_path / "images"),
    )  # fmt: skip
    with pytest.raises(ConversionError, match=f"^{path}, record 0: .*{message}"):
        to_coco.export_coco(options)
    assert not list(tmp_path.glob("x.json*"))


def test_fields_that_no_longer_agree_with_the_record_are_not_used(tmp_path):
    """Somebody has changed the boxes and masks of the records."""
    given = document()
    conversion = samples.convert(
        write(tmp_path, given), tmp_path / "out", masks=True, image=ImageOptions(verify="header")
    )
    changed = []
    for values in samples.records(tmp_path / "out").values():
        count = len(values["image/object/bbox/ymin"])
        for side, value in (("ymin", 0.0), ("xmin", 0.0), ("ymax", 0.5), ("xmax", 0.5)):
            values[f"image/object/bbox/{side}"] = [value] * count
        values["image/object/mask"] = [masks.to_png(disc(3, 3, 3))] * count
        values["image/object/area"] = [7.5] * count
        features = {key: examples.feature(found) for key, found in values.items()}
        changed.append(tf.train.Example(features=tf.train.Features(feature=features)))
    writer.write_sharded(changed, str(tmp_path / "out" / "train.record"), 1)
    back = export(tmp_path, conversion)
    for annotation in back["annotations"]:
        assert annotation["bbox"] == [0, 0, W / 2, H / 2] and annotation["area"] == 7.5
        found = masks.from_run_lengths(annotation["segmentation"], (H, W))
        np.testing.assert_array_equal(found, disc(3, 3, 3))

"""What single formats have beyond boxes, with answers worked by hand."""

from __future__ import annotations

import io
import json
import math
import pathlib
from typing import Any, List

import numpy as np
import pytest
from PIL import Image

from estimator_det.errors import UsageError
from inputs.datasets import masks
from inputs.datasets.converters import open_source, yolo
from inputs.datasets.source import AnnotatedImage, SourceOptions
from tests.inputs.conversion import samples


def read(name: str, **options: Any) -> List[AnnotatedImage]:
    return list(open_source(name, SourceOptions(**options)).images)


def faults_of(image: AnnotatedImage) -> List[Any]:
    return [(fault.kind, fault.line) for fault in image.faults]


# PASCAL VOC


def voc(root: pathlib.Path, text: str) -> AnnotatedImage:
    (root / "xml").mkdir()
    (root / "xml" / "a.xml").write_text(text)
    options = {"images": str(root / "images"), "annotations": str(root / "xml")}
    (image,) = read("pascal_voc", **options)
    return image


def test_voc_has_difficult_objects(root):
    image = voc(
        root,
        "<annotation><folder>f</folder><filename>a.png</filename>\n"
        "<size><width>32</width><height>20</height></size>\n<object>\n<name> cat </name>"
        "<difficult>1</difficult><bndbox><xmin>8</xmin><ymin>4.5</ymin><xmax>24</xmax>"
        "<ymax>14</ymax></bndbox><part><name>head</name></part></object>\n"
        "<object><name>dog</name><bndbox><xmin>0</xmin><ymin>0</ymin><xmax>1</xmax>"
        "<ymax>2</ymax></bndbox></object></annotation>",
    )
    assert (image.image, image.height, image.width, image.line) == ("a.png", 20, 32, 1)
    cat, dog = image.objects
    assert (cat.class_name, cat.box, cat.difficult, cat.line) == ("cat", [4.5, 8, 14, 24], True, 3)
    assert (dog.class_name, dog.box, dog.difficult, dog.line) == ("dog", [0, 0, 2, 1], None, 5)


BOMB = """<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>
<annotation><filename>&b;</filename></annotation>"""


@pytest.mark.parametrize(
    ("text", "kind", "line", "message"),
    [
        (BOMB, "broken_source", 1, "a document type, which could define entities"),
        ("<annotation>\n<filename>a", "broken_source", 2, "not valid XML"),
        ("", "broken_source", 1, "not valid XML: no element found"),
        ("<a>" * 100_000 + "</a>" * 100_000, "missing_key", 1, "<a> has no <filename>"),
        ("<annotation>\n</annotation>", "missing_key", 1, "<annotation> has no <filename>"),
        (
            "<annotation><filename>a.png</filename>\n<size><height>x</height></size></annotation>",
            "broken_source", 2, "<height> is 'x', not a number",
        ),
    ],
)  # fmt: skip
def test_voc_faults_of_files(text, kind, line, message, root):
    image = voc(root, text)
    assert not image.image
    (fault,) = image.faults
    assert (fault.kind, fault.line) == (kind, line) and message in fault.message


def test_voc_faults_of_objects_leave_the_others(root):
    image = voc(
        root,
        "<annotation><filename>a.png</filename>\n<object><name>x</name></object>\n"
        "<object><name>x</name><bndbox>\n<xmin>1</xmin><ymin>e</ymin></bndbox></object>\n"
        "<object><name></name><bndbox/></object></annotation>",
    )
    assert faults_of(image) == [("missing_key", 2), ("broken_source", 4), ("missing_key", 5)]


# KITTI


def test_kitti_words(root):
    folder = root / "labels"
    folder.mkdir()
    car = "Car 0.88 3 -0.69 0.00 192.37 402.31 374.00 1.60 1.57 3.23 -2.70 1.74 3.68 -1.29"
    (folder / "a.txt").write_text(f"{car}\n{car} 0.5\nDontCare 1 2\n\nCar 1 2\nBig {car}")
    (folder / "zz.txt").write_text("")
    image, missing = read("kitti", images=str(root / "images"), annotations=str(folder))
    first, second = image.objects
    assert first[:3] == ("Car", [192.37, 0.0, 374.0, 402.31], 1) and first.score is None
    assert second.score == 0.5
    assert faults_of(image) == [("broken_source", 5), ("broken_source", 6)]
    assert faults_of(missing) == [("no_image", 0)]


# Open Images


def test_open_images_labels_and_groups(root):
    (root / "b.csv").write_text(
        "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf\n"
        "a,/m/1,0.25,0.75,0.2,0.7,1\nb,/m/2,0,1,0,1,-1\na,/m/2,0,0.5,0,0.5,0\n"
        "a,/m/2,0,0.5\nzz,/m/2,0,0.5,0,0.5,0\n"
    )
    (root / "l.csv").write_text(
        "ImageID,Source,LabelName,Confidence\nc,x,/m/1,0\na,x,/m/2,1\nc,x,/m/2,1\nc,x,/m/1,y\nb,x,/m/1,0.5\n"
    )
    (root / "names.csv").write_text('/m/1,Cat\n/m/2,"Dog, small"\n')
    a, b, zz, c = read(
        "open_images", images=str(root / "images"), annotations=str(root / "b.csv"),
        image_labels=str(root / "l.csv"), classes=str(root / "names.csv"),
    )  # fmt: skip
    assert [(one.class_name, one.box, one.group_of) for one in a.objects] == [
        ("Cat", [0.2, 0.25, 0.7, 0.75], True), ("Dog, small", [0, 0, 0.5, 0.5], False),
    ]  # fmt: skip
    assert b.image_classes == [("Cat", 0.5)] and b.absent_classes == []  # neither is certain
    assert b.objects[0].group_of is None and a.source_id == "a" and a.normalized
    assert faults_of(a) == [("broken_source", 5)] and a.image_classes == [("Dog, small", 1.0)]
    assert faults_of(zz) == [("no_image", 6)]
    assert c.image_classes == [("Cat", 0.0), ("Dog, small", 1.0)] and c.absent_classes == ["Cat"]
    assert faults_of(c) == [("broken_source", 5)]


SEGMENTATIONS = (
    "MaskPath,ImageID,LabelName,BoxID,BoxXMin,BoxXMax,BoxYMin,BoxYMax,PredictedIoU,Clicks\n"
)


def open_images_masks(root, rows):
    """The sample, with masks of its cat at full size and of the dog of `a` at half its size."""
    sample = samples.make(root, "open_images")
    folder = root / "masks"
    folder.mkdir()
    cat, dog = np.zeros([20, 32], bool), np.zeros([10, 16], np.uint8)
    cat[5:14, 8:24] = True
    dog[:, 1:] = 255
    (folder / "cat.png").write_bytes(masks.to_png(cat))
    Image.fromarray(dog).save(folder / "dog.png")
    (root / "m.csv").write_text(SEGMENTATIONS + "".join(row + "\n" for row in rows))
    names = {"segmentations": str(root / "m.csv"), "mask_images": str(folder)}
    options = SourceOptions(**{**sample.options.__dict__, **names})
    return sample._replace(options=options), cat


CAT_ROW = "cat.png,a,/m/01yrx,1,0.250000,0.750000,0.200000,0.700000,0.9,"


def test_open_images_masks(root):
    rows = ["dog.png,a,/m/0bt9lr,2,0,1,0,1,0.8,0.1 0.2 1;", CAT_ROW.replace("0.25", "0.25004")]
    sample, cat = open_images_masks(root, rows)
    samples.convert(sample, root / "out", masks=True, on_error="skip")
    found = samples.records(root / "out")
    pixels = [
        np.asarray(Image.open(io.BytesIO(png))) for png in found["a"]["image/object/mask"]
    ]  # fmt: skip
    np.testing.assert_array_equal(pixels[0], cat)
    np.testing.assert_array_equal(pixels[1], np.arange(32)[np.newaxis].repeat(20, 0) >= 2)
    assert samples.boxes_of(found["a"]) == samples.OBJECTS["a"]
    assert "image/object/source_fields" not in found["a"]
    # The dog of b has no mask.
    assert samples.boxes_of(found["b"]) == []
    reported = [(fault["kind"], fault["line"]) for fault in samples.faults(root / "out")]
    assert reported == [("mask_empty", 4)]
    left_out = samples.convert(sample, root / "boxes")
    assert left_out.tally["masks_left_out"] == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (CAT_ROW.replace("cat.png", "none.png"), "the mask 'none.png' cannot be opened: No such"),
        (CAT_ROW.replace("cat.png", "../out.png"), "the mask is '../out.png'"),
        (CAT_ROW.replace("cat.png", "link.png"), "the mask 'link.png' is a symbolic link to"),
        (CAT_ROW.replace("0.75", "0.76"), "no box of class 'cat' without a mask has the sides"),
        (CAT_ROW.replace("01yrx", "0bt9lr"), "no box of class 'dog' without a mask has the sides"),
        (CAT_ROW.replace("0.75", "x"), "BoxXMax is 'x0000', not a number"),
        (CAT_ROW.replace("cat.png", "bmp.png"), "a file that is no PNG image"),
    ],
)
def test_open_images_faults_of_masks(row, message, root):
    sample, _ = open_images_masks(root, [row])
    (root / "out.png").write_bytes(samples.png(1))
    (root / "masks" / "link.png").symlink_to(root / "out.png")
    (root / "masks" / "bmp.png").write_bytes(samples.png(1, kind="BMP"))
    samples.convert(sample, root / "out", masks=True, on_error="skip")
    fault = samples.faults(root / "out")[0]
    place = (str(root / "m.csv"), 2) if "PNG" not in message else (sample.cat_file, 2)
    assert (fault["file"], fault["line"]) == place and message in fault["message"]


@pytest.mark.parametrize("given", ["segmentations", "mask_images"])
def test_open_images_masks_need_both_options(given, root):
    sample, _ = open_images_masks(root, [CAT_ROW])
    options = SourceOptions(**{**sample.options.__dict__, given: ""})
    with pytest.raises(UsageError, match="--segmentations and --mask_images belong together"):
        open_source("open_images", options)
    bare = samples.SAMPLES["open_images"](root, samples.OBJECTS).options
    with pytest.raises(UsageError, match="--masks needs --segmentations with --from open_images"):
        open_source("open_images", bare, masks=True)


# YOLO


@pytest.mark.parametrize(
    "text",
    [
        "names: [cat, 'dog']\n",
        "train: x\nnames:\n  - cat\n  - dog\n",
        "'names' : {1: dog, 0: cat}\ndownload: |\n  import os\n  # names: [x]\n",
    ],
)
def test_yolo_names(text, tmp_path):
    path = tmp_path / "data.yaml"
    path.write_text(text)
    assert yolo.read_classes(str(path)).names == {0: "cat", 1: "dog"}
    lines = tmp_path / "names.txt"
    lines.write_text("cat\n\ndog\n\n")
    assert yolo.read_classes(str(lines)).names == {0: "cat", 2: "dog"}
    path.write_text("names: [no, 1e3, 2020-01-01, null, 'a, b', 'it''s', \"\\u732b\"]\n")
    names = ["no", "1e3", "2020-01-01", "null", "a, b", "it's", "猫"]  # as they are written
    assert list(yolo.read_classes(str(path)).names.values()) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nc: 2\n", "there is no line 'names:'"),
        ("names: {a: b}\n", "is no class of 'names:'"),
        ("names:\nnc: 2\n", "there are no names of classes"),
        ("names: [a]\nkpt_shape: 17\n", "kpt_shape is 17; allowed"),
        ("names: [a]\nkpt_shape: [17, [3]]\n", "kpt_shape is 17, …; allowed"),
        ("names: [a, [b]]\n", "'1' is no class of 'names:'"),
        ("names: [a, ]\n  - b\n", r"data\.yaml, line 2: not valid YAML: .*Or give a text file"),
        ("a: " + "[" * 100_000, "not valid YAML"),
        ("a: 1\nnames: [x]" + " " * 1_000_000, "has 1,000,015 bytes; allowed: 1,000,000"),
        # Some gigabytes, if it were printed.
        (
            "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
            + "names: [*a9]\n",
            "'0' is no class of 'names:'",
        ),
    ],
)
def test_yolo_names_that_cannot_be_read(text, message, tmp_path):
    path = tmp_path / "data.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        yolo.read_classes(str(path))


def test_yolo_boxes_and_polygons(root):
    (root / "labels").mkdir()
    (root / "labels" / "a.TXT").write_text(
        "0 0.5 0.5 0.25 0.5\n1 0 0 0.5 0 0.5 0.5\n\n1 0 0 1\n2 0.5 0.5 1 1\n0.5 0 0 1 1\n"
    )
    (root / "labels" / "zz.txt").write_text("")
    (root / "images" / "b.png").rename(root / "images" / "b.JFIF")
    (root / "labels" / "classes.txt").write_text("cat\ndog\n")  # where LabelImg writes it
    a, b, c, missing = read(
        "yolo", images=str(root / "images"), annotations=str(root / "labels"),
        classes=str(root / "labels" / "classes.txt"),
    )  # fmt: skip
    box, polygon, unknown = a.objects
    assert box.class_name == "cat" and box.box == [0.25, 0.375, 0.75, 0.625]
    assert polygon.box is None and polygon.polygons == [[0, 0, 0.5, 0, 0.5, 0.5]]
    assert (unknown.class_name, unknown.class_id) == ("", 2)
    assert faults_of(a) == [("broken_source", 4), ("broken_source", 6)]
    assert not (b.objects or c.objects or b.faults or c.faults)
    assert not missing.image and missing.faults[0].file.endswith("zz.txt")


def test_yolo_polygons_become_masks(root):
    sample = samples.make(root, "yolo")
    (root / "labels" / "a.txt").write_text("0 0.25 0.2 0.75 0.2 0.75 0.7 0.25 0.7\n")
    samples.convert(sample, root / "out", masks=True, on_error="skip")
    found = samples.records(root / "out")["a"]
    assert samples.boxes_of(found) == [("cat", (4.0, 8.0, 14.0, 24.0))]
    expected = np.zeros((20, 32), bool)
    expected[4:14, 8:24] = True
    assert found["image/object/mask"] == [masks.to_png(expected)]
    (fields,) = (json.loads(text) for text in found["image/object/source_fields"])
    assert fields["segmentation"] == [[8, 4, 24, 4, 24, 14, 8, 14]]


@pytest.mark.parametrize(
    ("shape", "points", "expected"),
    [
        ("[2, 2]", "0.5 0.25 0 0", [2, 0]),
        ("[2, 3]", "0.5 0.25 1 0.75 0.5 2", [1, 2]),
        ("[2, 2]", "0.5 0.25 0 0.5", [2, 2]),  # on the border of the image, not absent
    ],
)
def test_yolo_keypoints(shape, points, expected, root):
    sample = samples.make(root, "yolo")
    for name in "ab":
        (root / "labels" / f"{name}.txt").write_text(f"0 0.5 0.45 0.5 0.5 {points}\n")
    (root / "data.yaml").write_text(f"names: [cat, dog]\nkpt_shape: {shape}\n")
    conversion = samples.convert(sample, root / "out")
    found = samples.records(root / "out")["a"]
    assert found["image/object/keypoint/visibility"] == expected
    assert conversion.tally["keypoints_without_names"] == 2
    label_map = root / "label_map.pbtxt"
    points = 'keypoints { id: 1 label: "tail" } keypoints { id: 0 label: "nose" }'
    label_map.write_text(f'item {{ id: 1 name: "cat" {points} }} item {{ id: 2 name: "dog" }}')
    named = samples.convert(sample, root / "named", label_map=str(label_map))
    assert named.tally["keypoints_without_names"] == 0
    texts = samples.records(root / "named")["a"]["image/object/keypoint/text"]
    assert texts == [b"nose", b"tail"]
    assert (found["image/object/keypoint/x"][0], found["image/object/keypoint/y"][0]) == (0.5, 0.25)
    if not expected[1]:
        assert math.isnan(found["image/object/keypoint/x"][1])


# CSV


def test_csv_rows_in_any_order(root):
    path = root / "boxes.csv"
    path.write_text(
        "class,xmin,ymin,xmax,ymax,filename,is_crowd,difficult,area,height\n"
        'cat,1,2,3,4,a.png,1,,12.5,20\n"a, ""b""",5,6,7,8,b.png,,1,,\ndog,1,2,3,4,a.png,,,,\n'
        "dog,1,2,3,4,a.png,,,,21\ndog,1,2,3\n,1,2,3,4,a.png,,,,\ndog,1,2,3,x,b.png,,,,\n"
    )
    a, b, nameless = read("csv", images=str(root / "images"), annotations=str(path))
    assert [one[:3] for one in a.objects] == [("cat", [2, 1, 4, 3], 2), ("dog", [2, 1, 4, 3], 4)]
    assert (a.objects[0].is_crowd, a.objects[0].area, a.height) == (True, 12.5, 20)
    assert b.objects[0].class_name == 'a, "b"' and b.objects[0].difficult
    assert faults_of(a) == [("length_mismatch", 5), ("missing_key", 7)]
    assert faults_of(b) == [("broken_source", 8)]
    assert faults_of(nameless) == [("broken_source", 6)] and nameless.image == ""
    path.write_text("filename,label,xmin,ymin,xmax,ymax\n")
    with pytest.raises(UsageError, match=r"boxes.csv, line 1: .*no column class; it has \['file"):
        read("csv", images=str(root / "images"), annotations=str(path))

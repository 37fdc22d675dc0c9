"""One image to one record: what training decodes, and faults beyond single formats."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.conversion.examples import convert_image
from inputs.conversion.images import ImageOptions
from inputs.conversion.objects import RecordOptions
from inputs.datasets.source import AnnotatedImage, AnnotatedObject, SourceFault
from tests.inputs.conversion import samples
from tests.inputs.conversion.test_images import rotated

IDS = {"cat": 1, "dog": 2}


def write(root, **images: bytes) -> str:
    for name, content in images.items():
        (root / f"{name}.png").write_bytes(content)
    return str(root)


def thing(name, box, **values) -> AnnotatedObject:
    return AnnotatedObject(name, box, 2, **values)


def image_of(*things: AnnotatedObject, name: str = "a.png", **values) -> AnnotatedImage:
    return AnnotatedImage(name, "f", 1, objects=things, **values)


def test_exif_rotation_with_boxes_of_the_upright_image(tmp_path):
    folder = write(tmp_path, a=rotated(6))  # 10 x 6 in the file, 6 x 10 upright
    image = image_of(thing("cat", [0, 0, 10, 3]), height=10, width=6)
    options = RecordOptions(folder, IDS, ImageOptions(exif="apply"))
    converted = convert_image(image, options)
    ((_, row),) = converted.records
    assert row.size == (10, 6) and converted.notes["encoded_again"]
    np.testing.assert_array_equal(row.boxes, [[0, 0, 1, 0.5]])
    # An annotation of the pixels as they are in the file does not fit.
    (fault,) = convert_image(image._replace(height=6, width=10), options).faults
    assert fault.kind == "size_mismatch"
    assert "10 x 6 pixels, the image has 6 x 10 once its EXIF rotation" in fault.message
    assert "remove the EXIF orientation from the file" in fault.message
    (fault,) = convert_image(image._replace(height=6, width=9), options).faults
    assert "remove the EXIF orientation" not in fault.message


def test_what_one_object_has_is_written_for_all(tmp_path):
    folder = write(tmp_path, a=samples.png(0, 10, 30))
    things = [thing("cat", [0, 0, 10, 3], area=7.0, difficult=True), thing("dog", [0, 0, 5, 12])]
    ((serialized, _),) = convert_image(image_of(*things), RecordOptions(folder, IDS)).records
    feature = tf.train.Example.FromString(serialized).features.feature
    np.testing.assert_allclose(feature["image/object/area"].float_list.value, [7, 60])
    assert feature["image/object/difficult"].int64_list.value == [1, 0]
    assert feature["image/object/class/text"].bytes_list.value == [b"cat", b"dog"]
    assert feature["image/object/class/label"].int64_list.value == [1, 2]
    np.testing.assert_allclose(feature["image/object/bbox/xmax"].float_list.value, [0.1, 0.4])
    assert "image/object/group_of" not in feature


def test_tiles_have_records_with_the_boxes_of_which_they_show_half(tmp_path):
    folder = write(tmp_path, a=samples.png(0, 10, 60))
    things = [
        thing("cat", [0, 0, 10, 8]),
        thing("dog", [2, 12, 6, 20], area=7.0, fields={"bbox": [12, 2, 8, 4], "id": 3}),
        thing("cat", [0, 0, 10, 60]),  # a third of it in each tile
    ]
    image = image_of(*things, image_classes=[("cat", 1.0)], absent_classes=["dog"])
    converted = convert_image(image, RecordOptions(folder, IDS, tiles=20))
    counts = {"encoded_again": 1, "box_parts_cut": 4, "boxes_in_no_tile": 1}
    assert {k: n for k, n in converted.notes.items() if n} == counts
    # Tiles begin at the columns 0, 13, 27 and 40.
    boxes = [np.reshape(row.boxes, [-1, 4]) * (10, 20, 10, 20) for _, row in converted.records]
    shown = [[[0, 0, 10, 8], [2, 12, 6, 20]], [[2, 0, 6, 7]], [], []]
    for found, expected in zip(boxes, shown, strict=True):
        np.testing.assert_allclose(found, np.reshape(expected, [-1, 4]), atol=1e-9)
    examples = [tf.train.Example.FromString(each).features.feature for each, _ in converted.records]
    whole = tf.io.decode_png((tmp_path / "a.png").read_bytes())
    for left, feature in zip((0, 13, 27, 40), examples):
        assert feature["image/filename"].bytes_list.value == [f"a.png_{left}_0".encode()]
        pixels = tf.io.decode_png(feature["image/encoded"].bytes_list.value[0])
        np.testing.assert_array_equal(pixels, whole[:, left : left + 20])
        assert "image/class/label" not in feature and "image/neg_category_ids" in feature
        assert "image/object/source_fields" not in feature
    areas = [list(each["image/object/area"].float_list.value) for each in examples[:2]]
    assert areas == [[80, 7], []]


@pytest.mark.parametrize(
    ("image", "kind", "action", "message"),
    [
        (image_of(name="gone.png"), "no_image", "skipped", "'gone.png' cannot be read: No such"),
        (image_of(thing("cat", [1, 1, 5, 5], class_id=2)), "label_contradiction", "dropped", "2"),
        (image_of(thing("cat", [1, 40, 5, 50])), "box_outside", "dropped",
         "'cat' is [1, 40, 5, 50] pixels (ymin, xmin, ymax, xmax) in an image of 32 x 20"),
        (image_of(thing("cat", [0.1, 0.2, 0.75, 1])), "box_fractions", "kept", "0.75, 1] pixels"),
        (image_of(faults=[SourceFault("missing_key", "f", 1, "x")]), "missing_key", "dropped", "x"),
        (image_of(name="j.png"), "corrupt_image", "kept", "its compressed data end too early"),
        (image_of(thing("\x1b[2J\u202e" + "x" * 9_000, [1, 1, 5, 5])), "unknown_text", "dropped",
         "x"),
    ],
)  # fmt: skip
def test_faults(tmp_path, image, kind, action, message):
    jpeg = samples.png(1, 64, 64, "JPEG")
    folder = write(tmp_path, a=samples.png(0), j=jpeg[: len(jpeg) // 2] + b"\xff\xd9")
    converted = convert_image(image, RecordOptions(folder, IDS, clip_boxes=True))
    (fault,) = converted.faults
    assert (fault.kind, fault.action) == (kind, action) and message in fault.message
    assert bool(converted.records) == (kind != "no_image")
    assert any(row.class_ids for _, row in converted.records) == (kind == "box_fractions")
    assert converted.notes["images_left_empty"] == (action == "dropped")
    assert fault.sentence().isprintable() and len(fault.sentence()) < 6_000
    header_alone = RecordOptions(folder, IDS, ImageOptions(verify="header"))
    assert kind != "corrupt_image" or not convert_image(image, header_alone).faults

"""Drafts of labels: `convert` reads in each format what `detect` has found."""

import json

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf
from estimator_det.programs import cli
from exporters import Detections, Detector
from exporters.label_drafts import FORMATS
from exporters.loaded_model import Skeleton
from inputs.datasets import masks, source
from inputs.datasets.converters.base import open_source
from inputs.label_map import read_label_map
from tests.exporters.conftest import NAMES

LEAST = "0.02"  # score


@pytest.fixture(scope="module")
def photos(pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    (folder / "b c").mkdir()
    Image.fromarray(pictures[0]).save(folder / "a.png")
    Image.fromarray(pictures[1]).save(folder / "b c" / "é & ü.png")
    return folder


@pytest.fixture(scope="module")
def detector(exported):
    return Detector(exported)


def _detect(exported, photos, output, *arguments):
    command = ["detect", str(exported), str(photos), "--recursive", "--draw", "none"]
    return cli.main([*command, "--output_dir", str(output), *arguments])


def _objects(name, folder, photos):
    """(image, class, box in pixels) that `convert` reads, in order."""
    files = {"coco": folder / "instances.json"}
    classes = {"yolo": str(folder / "data.yaml")}.get(name, "")
    options = source.SourceOptions(
        images=str(photos), annotations=str(files.get(name, folder)), classes=classes
    )
    return sorted(
        (image.image, each.class_name or read.names[each.class_id], _pixels(image, each))
        for read in [open_source(name, options)]
        for image in read.images
        for each in image.objects
    )


def _pixels(image, annotated):
    box = np.array(annotated.box or masks.polygon_extent(annotated.polygons))
    return (box * [50, 70, 50, 70] if image.normalized else box).tolist()


@pytest.mark.parametrize("name", ["coco", "pascal_voc", "yolo", "labelme"])
def test_convert_reads_the_drafts(exported, detector, photos, tmp_path, capsys, name):
    output = tmp_path / "out"
    assert _detect(exported, photos, output, "--threshold", LEAST, "--save_annotations", name) == 0
    expected = sorted(
        (str(path.relative_to(photos)), NAMES[class_id], np.round(box, 1).tolist())
        for path in photos.rglob("*.png")
        for found in [detector(path).above(float(LEAST))]
        for class_id, box in zip(found.classes, found.boxes.astype(float))
    )
    drafts = _objects(name, output / "annotations", photos)
    assert len(drafts) == len(expected) > 2
    assert [each[:2] for each in drafts] == [each[:2] for each in expected]
    np.testing.assert_allclose(
        [each[2] for each in drafts], [each[2] for each in expected], atol=0.11
    )
    # What a person may have corrected is not replaced.
    assert _detect(exported, photos, output, "--threshold", LEAST, "--save_annotations", name) == 2
    assert "its labels may have been corrected" in capsys.readouterr().err


def test_keypoints_of_drafts(tmp_path):
    found = Detections(
        normalized_boxes=np.float32([[0, 0, 1, 1]] * 2),
        scores=np.float32([0.9, 0.8]),
        classes=np.int64([1, 2]),
        names=("cat", "cup"),
        image_size=(8, 16),
        keypoints=np.float32([[[0.5, 0.25], [0.25, 0.5]], [[0.5, 0.5], [0, 0]]]),
        keypoint_scores=np.float32([[0.9, 0.8], [0.7, 0]]),
        skeleton=Skeleton({1: {0: "nose", 1: "tail"}, 2: {0: "top"}}, ((0, 1),)),
    )
    image_path = tmp_path / "images" / "a.png"
    image_path.parent.mkdir()
    Image.fromarray(np.zeros([8, 16, 3], np.uint8)).save(image_path)
    for name in ("coco", "yolo", "tfrecord"):
        drafts = FORMATS.get(name)(str(tmp_path / name), str(image_path.parent), {})
        drafts.add(str(image_path), found)
        drafts.close()
        assert drafts.has_keypoints
    assert not any(FORMATS.get(name).has_keypoints for name in ("pascal_voc", "labelme"))
    path = tmp_path / "coco" / "instances.json"
    assert json.loads(path.read_text())["categories"] == [
        {"id": 1, "name": "cat", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]},
        {"id": 2, "name": "cup", "keypoints": ["top"], "skeleton": []},
    ]
    images = str(image_path.parent)
    read = open_source("coco", source.SourceOptions(images=images, annotations=str(path)))
    (image,) = read.images
    assert read.keypoints == {"cat": ["nose", "tail"], "cup": ["top"]}
    assert [each.keypoints for each in image.objects] == [[4, 4, 2, 8, 2, 2], [8, 4, 2]]

    yolo = str(tmp_path / "yolo")
    options = {"annotations": yolo, "classes": f"{yolo}/data.yaml"}
    (image,) = open_source("yolo", source.SourceOptions(images=images, **options)).images
    cat, cup = image.objects
    assert cat.keypoints == [0.25, 0.5, 2, 0.5, 0.25, 2] and cup.keypoints[2::3] == [2, 0]

    (record,) = tf.data.TFRecordDataset(str(tmp_path / "tfrecord" / "detections.record"))
    feature = tf.train.Example.FromString(record.numpy()).features.feature
    ys = feature["image/object/keypoint/y"].float_list.value
    np.testing.assert_array_equal(ys, [0.5, 0.25, 0.5, np.nan])
    assert list(feature["image/object/keypoint/visibility"].int64_list.value) == [2, 2, 2, 0]
    texts = feature["image/object/keypoint/text"].bytes_list.value
    assert list(texts) == [b"nose", b"tail", b"top", b""]
    label_map = read_label_map(str(tmp_path / "tfrecord" / "label_map.pbtxt"))
    assert label_map.keypoints == {1: {"nose": 0, "tail": 1}, 2: {"top": 0}}


def test_records(exported, detector, photos, tmp_path):
    output = tmp_path / "out"
    arguments = ("--threshold", LEAST, "--save_annotations", "tfrecord")
    assert _detect(exported, photos, output, *arguments) == 0
    assert read_label_map(str(output / "annotations" / "label_map.pbtxt")).names == NAMES
    records = tf.data.TFRecordDataset(str(output / "annotations" / "detections.record"))
    for record, name in zip(records.as_numpy_iterator(), ("a.png", "b c/é & ü.png")):
        feature = tf.train.Example.FromString(record).features.feature
        assert feature["image/filename"].bytes_list.value[0].decode() == name
        found = detector(photos / name).above(float(LEAST))
        scores = feature["image/object/class/confidence"].float_list.value
        np.testing.assert_allclose(scores, found.scores)
        assert list(feature["image/object/class/label"].int64_list.value) == list(found.classes)


def test_drafts_that_cannot_be_written(exported, photos, tmp_path, capsys):
    assert _detect(exported, photos, tmp_path / "out", "--save_annotations", "coco") == 1
    assert "has no thresholds" in capsys.readouterr().err
    for image in ("b.jpg", "b.png"):
        (tmp_path / image).touch()
    for name in ("pascal_voc", "yolo", "labelme"):
        assert _detect(exported, tmp_path, tmp_path / "out", "--save_annotations", name) == 2
        assert "b.jpg and " in capsys.readouterr().err

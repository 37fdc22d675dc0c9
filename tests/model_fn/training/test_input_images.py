from __future__ import annotations

import io
import pathlib
from typing import Any, List

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Groundtruth
from estimator_det.protos import input_reader_pb2
from inputs import schema
from model_fn.training import input_images
from tests.detectors import configs


def test_pictures_show_pixels_and_boxes(tmp_path: pathlib.Path) -> None:
    labels = tmp_path / "labels.pbtxt"
    labels.write_text("item { id: 1 name: 'cat' } item { id: 2 name: 'dog' }")
    reader = input_reader_pb2.InputReader(label_map_path=str(labels))
    detector = configs.small_detector()
    with tf.Graph().as_default(), tf1.Session() as session:
        pixels = tf.fill([2, 64, 64, 3], 200.0)
        inputs, _ = detector.preprocess(pixels)
        inputs = tf.where(tf.range(2)[:, None, None, None] < 1, inputs, float("nan"))
        summary = input_images.summary(
            {schema.IMAGE: inputs}, configs.groundtruth(padding=2), detector.preprocess, reader
        )
        written = tf1.Summary.FromString(session.run(summary))
    assert [value.tag for value in written.value] == ["Training_Inputs/0", "Training_Inputs/1"]
    picture = np.asarray(Image.open(io.BytesIO(written.value[0].image.encoded_image_string)))
    assert picture.shape == (64, 64, 3)
    assert picture[2, 60].tolist() == [200, 200, 200]  # outside all boxes
    assert picture[20, 6].tolist() != [200, 200, 200]  # left edge of the first, at 0.1 of 63


def test_each_picture_has_the_labels_of_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: List[Any] = []

    def draw(pixels: np.ndarray, boxes: np.ndarray, labels: List[str], **how: Any) -> np.ndarray:
        drawn.append((boxes, labels, how["colors"], how["options"].max_boxes))
        return pixels

    monkeypatch.setattr(input_images, "draw_boxes", draw)
    # 25 boxes of the first class, more than are drawn by default; one of both; padding.
    classes = np.zeros((2, 30, 2), np.float32)
    classes[0, :25, 0] = 1
    classes[1, 0] = 1
    boxes = np.random.default_rng(0).uniform(size=(2, 30, 4)).astype(np.float32)
    groundtruth = Groundtruth(
        boxes=tf.constant(boxes),
        classes=tf.constant(classes),
        valid=tf.sequence_mask([25, 1], 30),
        weights=tf.ones([2, 30]),
    )
    reader = input_reader_pb2.InputReader()
    images = {schema.IMAGE: tf.zeros([2, 8, 8, 3])}
    input_images.summary(
        images, groundtruth, lambda x: (x, tf.constant([[8, 8, 3]] * len(x))), reader
    )
    expected = [(25, ["1"] * 25, [1] * 25), (1, ["1+2"], [1])]
    assert len(drawn) == 2
    for i, (count, labels, colors) in enumerate(expected):
        np.testing.assert_array_equal(drawn[i][0], boxes[i, :count])
        assert drawn[i][1:3] == (labels, colors) and drawn[i][3] >= count

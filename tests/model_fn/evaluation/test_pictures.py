"""Pictures of detections beside groundtruth, with their padding cut off."""

from __future__ import annotations

import io
from typing import Any, List

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf1
from estimator_det.protos import eval_pb2
from model_fn.drawing.boxes import _PALETTE
from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.metrics.run_lengths import ImageSizes
from model_fn.evaluation.pictures import Pictures
from tests.model_fn.evaluation.metrics import hand

PIXELS = np.zeros((1, 40, 60, 3), np.uint8)
SIZES = ImageSizes(None, np.int32([[40, 60]]), np.int32([[40, 60]]))


@pytest.fixture(autouse=True)
def _exact_colors(monkeypatch):
    def png(pixels: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG")
        return buffer.getvalue()

    monkeypatch.setattr("model_fn.evaluation.pictures.jpeg", png)


def drawn(
    batch: EvaluatedBatch, *, images: np.ndarray = PIXELS, masks: Any = (None, None), **options: Any
) -> List[np.ndarray]:
    """The pictures of a batch whose originals have the size of the real image."""
    config = eval_pb2.EvalConfig(skip_labels=True, skip_scores=True, num_visualizations=3)
    config.MergeFrom(eval_pb2.EvalConfig(**options))
    pictures = Pictures(config, [])
    pictures.add(batch, SIZES, images, None, masks)
    return decoded(pictures.summary())


def decoded(summary: bytes) -> List[np.ndarray]:
    values = tf1.Summary.FromString(summary).value
    return [np.asarray(Image.open(io.BytesIO(v.image.encoded_image_string))) for v in values]


def has_color(pixels: np.ndarray, number: int) -> bool:
    return bool((pixels == _PALETTE[number]).all(axis=-1).any())


def test_first_images_are_drawn_without_padding():
    pictures = Pictures(eval_pb2.EvalConfig(num_visualizations=3), [{"id": 1, "name": "cat"}])
    sizes = np.int32([[40, 60], [20, 30]])
    found = hand.image([], [(0.9, 1, 4, 6, 36, 54), (0.8, 2, 4, 6, 36, 54)])
    batch = EvaluatedBatch(*(None if x is None else np.repeat(x, 2, 0) for x in found))
    for _ in range(2):
        pictures.add(batch, ImageSizes(None, sizes, sizes), np.ones((2, 40, 60, 3), np.uint8))
    summary = tf1.Summary.FromString(pictures.summary())
    tags = [f"Detections_Left_Groundtruth_Right/{i}" for i in range(3)]
    assert [value.tag for value in summary.value] == tags
    sizes_drawn = [(value.image.width, value.image.height) for value in summary.value]
    assert sizes_drawn == [(120, 40), (60, 20), (120, 40)]


@pytest.mark.parametrize(("channels", "shown"), [(2, [1, 1, 1]), (4, [1, 2, 3])])
def test_additional_channels_are_a_third_picture(channels, shown):
    values = np.arange(1, channels + 1, dtype=np.uint8)
    pictures = Pictures(eval_pb2.EvalConfig(skip_labels=True, num_visualizations=1), [])
    batch = hand.image([(1, 0, 0, 40, 60)], [])
    pictures.add(batch, SIZES, PIXELS, np.broadcast_to(values, (1, 40, 60, channels)))
    (pixels,) = decoded(pictures.summary())
    assert pixels.shape == (40, 180, 3)
    assert pixels[20, 150].tolist() == shown
    np.testing.assert_array_equal(pixels[0, 60:120], pixels[0, 120:])  # the same box


def test_masks_of_a_batch():
    """Masks of detections fill their boxes; masks of groundtruth fill the padded image."""
    true = np.zeros((1, 2, 50, 70), np.float32)
    true[0, 0, 30:, 50:] = 1
    true[0, 1] = 1  # of no box
    batch = hand.image([(1, 30, 48, 40, 60)], [(0.9, 1, 10, 30, 30, 60)])
    images, masks = np.zeros((1, 50, 70, 3), np.uint8), (np.ones((1, 1, 4, 4), np.float32), true)
    (pixels,) = drawn(batch, images=images, masks=masks)
    color = np.round(0.45 * np.float32(_PALETTE[1]))
    np.testing.assert_array_equal(pixels[20, 45], color)
    np.testing.assert_array_equal(pixels[35, 60 + 55], color)
    assert not pixels[35, 45].any() and not pixels[20, 60 + 45].any()


def test_all_groundtruth_is_drawn_whatever_number_of_detections_is():
    boxes = [(1, 0, 0, 16, 24), (2, 20, 30, 40, 60)]
    batch = hand.image(boxes, [(0.9, *boxes[0]), (0.8, *boxes[1])])
    for limit in ({"max_num_boxes_to_visualize": 1}, {"min_score_threshold": 0.85}):
        (pixels,) = drawn(batch, **limit)
        assert [has_color(pixels[:, :60], k) for k in (1, 2)] == [True, False]
        assert [has_color(pixels[:, 60:], k) for k in (1, 2)] == [True, True]


def test_keypoints_and_their_edges():
    points = np.float32([[[10, 15], [10, 45]]])
    batch = hand.image([(1, 0, 0, 40, 60)], [], keypoints=points)
    edge = eval_pb2.KeypointEdge(start=1, end=0)
    for edges, has_line in (([], False), ([edge], True)):
        (pixels,) = drawn(batch, keypoint_edge=edges)
        assert has_color(pixels[8:12, 60 + 12 : 60 + 18], 1)
        assert has_color(pixels[8:12, 60 + 25 : 60 + 35], 1) is has_line


def test_keypoints_of_low_scores_are_not_drawn():
    points = np.float32([[[[10, 15], [10, 45]]]])
    batch = hand.image([], [(0.9, 1, 0, 0, 40, 60)])._replace(
        detection_keypoints=points, detection_keypoint_scores=np.float32([[[0.9, 0.1]]])
    )
    (pixels,) = drawn(batch)
    assert has_color(pixels[8:12, 12:18], 1) and not has_color(pixels[8:12, 42:48], 1)

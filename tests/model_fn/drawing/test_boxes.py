from __future__ import annotations

import io
from typing import Any, List, Set, Tuple

import numpy as np
import pytest
from PIL import Image, ImageDraw

from estimator_det.boxes.mask_regions import MaskRegion
from estimator_det.compat import tf, tf1
from model_fn.drawing import boxes as drawing_boxes
from model_fn.drawing.boxes import (
    _PALETTE,
    IMAGES_TAG,
    DrawOptions,
    EvaluatedImage,
    draw_boxes,
    image_ops,
    place_labels,
    sans,
    side_by_side,
    write_label,
)

BLACK = np.zeros((40, 60, 3), np.uint8)


def _colored(image: np.ndarray) -> List[int]:
    """First and last row and column that are not black."""
    rows, columns = np.nonzero(image.any(axis=2))
    return [rows.min(), columns.min(), rows.max(), columns.max()]


def evaluated(**fields: Any) -> EvaluatedImage:
    """Without detections, and with a box around the image."""
    image = EvaluatedImage(
        image=BLACK,
        detection_boxes=np.zeros([0, 4]),
        detection_scores=np.zeros([0]),
        detection_classes=np.zeros([0], int),
        boxes=np.float32([[0, 0, 1, 1]]),
        classes=np.array([1]),
    )
    return image._replace(**fields)


def test_box_lies_where_it_should() -> None:
    drawn = draw_boxes(BLACK, np.array([[0.25, 0.5, 0.75, 1.0]], np.float32))
    assert drawn.shape == BLACK.shape and drawn.dtype == np.uint8
    # 0.25 * 39, 0.5 * 59, 0.75 * 39, 59, rounded half to even.
    assert _colored(drawn) == [10, 30, 29, 59]
    assert not BLACK.any()


def test_score_and_count_decide_what_is_drawn() -> None:
    boxes = np.array([[0, 0, 0.3, 0.3], [0.5, 0.5, 0.9, 0.9]], np.float32)
    scores = np.array([0.4, 0.6], np.float32)
    options = DrawOptions(skip_scores=True)
    drawn = draw_boxes(BLACK, boxes, scores=scores, options=options)
    assert _colored(drawn)[0] > 15
    none = DrawOptions(max_boxes=0)
    assert not draw_boxes(BLACK, boxes, scores=scores, options=none).any()
    with pytest.raises(ValueError, match="max_boxes"):
        DrawOptions(max_boxes=-1)


@pytest.mark.parametrize(
    "box", [[np.nan, 0, 1, 1], [0.9, 0.9, 0.1, 0.1], [-5.0, -5.0, 7.0, np.inf], [2, 2, 3, 3]]
)
def test_odd_boxes_do_no_harm(box: List[float]) -> None:
    boxes = np.array([box], np.float32)
    options = DrawOptions(same_object_iou=0.5)
    scores = np.array([0.9, 0.8], np.float32)
    draw_boxes(BLACK, np.repeat(boxes, 2, 0), ["a name"] * 2, scores, options=options)


def _colors(image: np.ndarray) -> Set[Tuple[int, ...]]:
    """Those of boxes."""
    return set(map(tuple, image.reshape(-1, 3).tolist())) & set(_PALETTE)


def test_a_label_stays_at_its_box() -> None:
    assert place_labels([(20, 10, 60, 50)], [(10, 30)], (100, 100)) == [(10, 10, 19, 39)]
    at_top_right = place_labels([(0, 80, 60, 99)], [(10, 30)], (100, 100))
    assert at_top_right == [(0, 70, 9, 99)]
    too_large = place_labels([(0, 0, 60, 60)], [(10, 130)], (100, 100))
    assert too_large == [None]
    # Above the boxes, inside at the top, below them, and then in the nearest free row.
    places = place_labels([(50, 0, 60, 29)] * 4, [(10, 30)] * 4, (100, 30))
    assert [place and place[0] for place in places] == [40, 50, 61, 30]


def test_first_images_are_drawn_without_padding() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        batch = EvaluatedImage(
            image=tf.ones([2, 40, 60, 3], tf.uint8),
            detection_boxes=tf.constant([[[0.1, 0.1, 0.9, 0.9]] * 2] * 2),
            detection_scores=tf.constant([[0.9, 0.8]] * 2),
            detection_classes=tf.constant([[1, 2]] * 2),
            boxes=tf.zeros([2, 4, 4]),
            classes=tf.ones([2, 4], tf.int32),
        )
        shapes = tf.constant([[40, 60, 3], [20, 30, 3]])
        counts = (tf.constant([2, 1]), tf.constant([0, 4]))
        ops = image_ops(batch, shapes, counts, max_images=3, names={1: "cat"})
        value, update = ops[IMAGES_TAG]
        session.run(update)
        session.run(update)
        summary = tf1.Summary.FromString(session.run(value))
        assert tf1.Summary.FromString(session.run(value)) == tf1.Summary()
    sizes = []
    for i, page in enumerate(summary.value):
        assert page.tag == f"Detections_Left_Groundtruth_Right/{i}"
        sizes.append(Image.open(io.BytesIO(page.image.encoded_image_string)).size)
    assert sizes == [(120, 40), (60, 20), (120, 40)]


def test_keypoints_and_their_edges() -> None:
    box = np.float32([[0, 0, 1, 1]])
    points = np.array([[[0.5, 0.25], [0.5, 0.75], [np.nan, np.nan]]], np.float32)

    def drawn(edges: Tuple[Tuple[int, int], ...]) -> np.ndarray:
        options = DrawOptions(keypoint_edges=edges)
        return draw_boxes(BLACK, box, keypoints=points, options=options)[1:-1, 1:-1]

    # Round to even: rows 0.5 * 39 = 19.5, columns 0.25 * 59 = 14.75 and 44.25, less the border.
    dots = drawn(())
    assert _colored(dots) == [18, 13, 20, 44]
    assert not dots[:, 20:40].any()
    assert drawn(((0, 1),))[19, 13:44].any(axis=1).all()
    np.testing.assert_array_equal(drawn(((0, 2), (2, 1))), dots)


@pytest.mark.parametrize(("channels", "shown"), [(2, [1, 1, 1]), (4, [1, 2, 3])])
def test_additional_channels_are_a_third_picture(channels: int, shown: List[int]) -> None:
    values = np.arange(1, channels + 1, dtype=np.uint8)
    image = evaluated(additional_channels=np.broadcast_to(values, (40, 60, channels)))
    options = DrawOptions(skip_labels=True)
    pixels = side_by_side(image, {}, options)
    assert pixels.shape == (40, 180, 3)
    assert pixels[20, 150].tolist() == shown
    np.testing.assert_array_equal(pixels[0, 60:120], pixels[0, 120:])  # the same box
    assert side_by_side(evaluated(), {}, options).shape[1] == 120


def test_masks_are_translucent_and_the_first_is_on_top() -> None:
    grey = np.full((40, 60, 3), 100, np.uint8)
    boxes = np.float32([[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    inside = np.zeros((8, 10), bool)
    inside[2:, :5] = True
    regions = [MaskRegion(4, 6, inside), MaskRegion(4, 6, np.ones((8, 10), bool))]
    drawn = draw_boxes(grey, boxes, colors=[0, 1], mask_of=lambda i: regions[i])
    below = np.round(0.55 * 100 + 0.45 * np.float32(_PALETTE[1]))
    above = np.round(0.55 * below + 0.45 * np.float32(_PALETTE[0]))
    np.testing.assert_array_equal(drawn[5, 7:15], np.broadcast_to(below, (8, 3)))
    np.testing.assert_array_equal(drawn[7:11, 7:10], np.broadcast_to(above, (4, 3, 3)))
    for outline, color in ((drawn[4, 6:16], _PALETTE[1]), (drawn[6, 6:11], _PALETTE[0])):
        assert (outline == color).all()
    assert (drawn[12, 6:16] == 100).all() and (grey == 100).all()


def test_evaluated_masks_of_a_batch() -> None:
    """Those of detections fill their boxes, those of groundtruth the padded image."""
    masks = np.zeros((1, 2, 50, 70), np.float32)
    masks[0, 0, 30:, 50:] = 1
    masks[0, 1] = 1  # of no box
    batch = EvaluatedImage(
        image=tf.zeros([1, 50, 70, 3], tf.uint8),
        detection_boxes=tf.constant([[[0.25, 0.5, 0.75, 1.0]]]),
        detection_scores=tf.constant([[0.9]]),
        detection_classes=tf.constant([[1]]),
        boxes=tf.constant([[[0.75, 0.8, 1.0, 1.0], [0, 0, 0, 0]]]),
        classes=tf.constant([[1, 0]]),
        detection_masks=tf.ones([1, 1, 4, 4]),
        masks=tf.constant(masks),
    )
    options = DrawOptions(skip_labels=True, skip_scores=True)
    shapes, counts = tf.constant([[40, 60, 3]]), (tf.constant([1]), tf.constant([1]))
    ops = image_ops(batch, shapes, counts, max_images=1, names={}, options=options)
    summary = tf1.Summary.FromString(ops[IMAGES_TAG][0].numpy())
    pixels = np.asarray(Image.open(io.BytesIO(summary.value[0].image.encoded_image_string)))
    color = np.round(0.45 * np.float32(_PALETTE[1]))
    np.testing.assert_array_equal(pixels[20, 45], color)
    np.testing.assert_array_equal(pixels[35, 60 + 55], color)
    assert not pixels[35, 45].any() and not pixels[20, 60 + 45].any()


def test_one_box_for_each_object() -> None:
    """Limits of scores and overlaps belong to what is above."""
    # The whole image, and its upper half.
    boxes = np.float32([[0, 0, 1, 1], [0, 0, 19 / 39, 1]])
    for iou, count in ((None, 2), (0.51, 2), (0.5, 1)):
        options = DrawOptions(same_object_iou=iou, skip_scores=True)
        scores = np.float32([0.9, 0.5])
        assert len(_colors(draw_boxes(BLACK, boxes, scores=scores, options=options))) == count


def test_each_label_has_the_score_of_its_box(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: List[str] = []
    monkeypatch.setattr(drawing_boxes, "write_label", lambda _, text, *__: texts.append(text))
    found = np.float32([[0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1]])
    draw_boxes(np.zeros((400, 400, 3), np.uint8), found, ["cat", "dog"], np.float32([0.9, 0.6]))
    assert texts == ["cat 90%", "dog 60%"]


def test_all_groundtruth_is_drawn_whatever_number_of_detections_is() -> None:
    boxes = np.float32([[0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1]])
    evaluated = EvaluatedImage(BLACK, boxes, np.float32([0.9, 0.8]), [1, 2], boxes, [1, 2])
    pixels = side_by_side(evaluated, {}, DrawOptions(max_boxes=1, skip_labels=True))
    assert len(_colors(pixels[:, :60])) == 1 and len(_colors(pixels[:, 60:])) == 2


@pytest.mark.parametrize(("color", "text"), [((255, 255, 0), 0), ((0, 0, 120), 255)])
def test_text_of_labels_is_dark_on_light_colours(color: Tuple[int, ...], text: int) -> None:
    canvas = Image.new("RGB", (60, 30))
    draw = ImageDraw.Draw(canvas)
    write_label(draw, "cat", (0, 0, 29, 59), color, sans(16))
    pixels = np.asarray(canvas).reshape(-1, 3)
    assert (pixels == text).all(axis=1).any() and (pixels == color).all(axis=1).any()
    assert not (pixels == 255 - text).all(axis=1).any()

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest

from estimator_det.files.mask_regions import MaskRegion
from model_fn.drawing import boxes as drawing_boxes
from model_fn.drawing.boxes import _PALETTE, DrawOptions, draw_boxes, place_labels

BLACK = np.zeros((40, 60, 3), np.uint8)


def _colored(image: np.ndarray) -> List[int]:
    """First and last row and column that are not black."""
    rows, columns = np.nonzero(image.any(axis=2))
    return [rows.min(), columns.min(), rows.max(), columns.max()]


def test_box_lies_where_it_should():
    drawn = draw_boxes(BLACK, np.array([[0.25, 0.5, 0.75, 1.0]], np.float32))
    assert drawn.shape == BLACK.shape and drawn.dtype == np.uint8
    # 0.25 * 39, 0.5 * 59, 0.75 * 39, 59, rounded half to even.
    assert _colored(drawn) == [10, 30, 29, 59]
    assert not BLACK.any()


def test_no_box_is_drawn_if_none_may_be():
    box = np.array([[0, 0, 0.3, 0.3]], np.float32)
    assert not draw_boxes(BLACK, box, options=DrawOptions(max_boxes=0)).any()


@pytest.mark.parametrize(
    "box", [[np.nan, 0, 1, 1], [0.9, 0.9, 0.1, 0.1], [-5.0, -5.0, 7.0, np.inf], [2, 2, 3, 3]]
)
def test_odd_boxes_do_no_harm(box):
    """A sound box beside them is drawn, and most of the image stays as it is."""
    boxes = np.array([box, [0.2, 0.2, 0.5, 0.5]], np.float32)
    scores = np.array([0.8, 0.9], np.float32)
    drawn = draw_boxes(BLACK, boxes, scores=scores, options=DrawOptions(skip_scores=True))
    alone = draw_boxes(BLACK, boxes[1:], scores=scores[1:], options=DrawOptions(skip_scores=True))
    assert drawn.shape == BLACK.shape and alone.any()
    assert (drawn == alone).all(axis=-1).mean() > 0.5


def test_a_label_stays_at_its_box():
    assert place_labels([(20, 10, 60, 50)], [(10, 30)], (100, 100)) == [(10, 10, 19, 39)]
    at_top_right = place_labels([(0, 80, 60, 99)], [(10, 30)], (100, 100))
    assert at_top_right == [(0, 70, 9, 99)]
    too_large = place_labels([(0, 0, 60, 60)], [(10, 130)], (100, 100))
    assert too_large == [None]
    # Above the boxes, inside at the top, below them, and then in the nearest free row.
    places = place_labels([(50, 0, 60, 29)] * 4, [(10, 30)] * 4, (100, 30))
    assert [place and place[0] for place in places] == [40, 50, 61, 30]


def test_keypoints_and_their_edges():
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


def test_masks_are_translucent_and_the_first_is_on_top():
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


def test_one_box_for_each_object():
    """Limits of scores and overlaps belong to what is above."""
    # The whole image, and its upper half.
    boxes = np.float32([[0, 0, 1, 1], [0, 0, 19 / 39, 1]])
    for iou, count in ((None, 2), (0.51, 2), (0.5, 1)):
        options = DrawOptions(same_object_iou=iou, skip_scores=True)
        scores = np.float32([0.9, 0.5])
        pixels = draw_boxes(BLACK, boxes, scores=scores, options=options).reshape(-1, 3)
        assert len(set(map(tuple, pixels.tolist())) & set(_PALETTE)) == count


def test_each_label_has_the_score_of_its_box(monkeypatch):
    texts: List[str] = []
    monkeypatch.setattr(drawing_boxes, "write_label", lambda _, text, *__: texts.append(text))
    found = np.float32([[0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1]])
    draw_boxes(np.zeros((400, 400, 3), np.uint8), found, ["cat", "dog"], np.float32([0.9, 0.6]))
    assert texts == ["cat 90%", "dog 60%"]

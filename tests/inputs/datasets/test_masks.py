"""Polygons and run lengths, held against pycocotools and worked by hand."""

import numpy as np
import pytest
from PIL import Image

from inputs.datasets import masks


def test_a_rectangle_as_polygon_fills_its_pixels():
    mask = masks.from_polygons([[2, 1, 6, 1, 6, 4, 2, 4]], (6, 8))
    expected = np.zeros((6, 8), bool)
    expected[1:4, 2:6] = True
    np.testing.assert_array_equal(mask, expected)
    assert masks.extent(mask) == [1, 2, 4, 6]
    assert masks.polygon_extent([[2, 1, 6, 1, 6, 4, 2, 4]]) == [1, 2, 4, 6]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": [3, 2], "counts": [7]}, "counts has 7 pixels, and its size 6; they"),
        ({"size": [2, 3], "counts": [6]}, r"size \[2, 3\] in an image of size \[3, 2\]"),
        ({"size": [3, 2], "counts": "\x7f\x7f"}, "not COCO's compressed form"),
    ],
)
def test_run_lengths_that_no_mask_can_be_made_of(given, message):
    with pytest.raises(masks.MaskError, match=message):
        masks.from_run_lengths(given, (3, 2))


@pytest.mark.parametrize(
    ("polygons", "message"),
    [
        ([], "there is no polygon"),
        ([[1, 2, 3, 4]], "4 coordinates, not 3 or more pairs"),
        ([[0, 0, 1e12, 0, 1, 1]], "coordinates from 0 to 1e.12"),
        ([[0, 0, float("nan"), 0, 1, 1]], "coordinates"),
    ],
)
def test_polygons_that_no_mask_can_be_made_of(polygons, message):
    with pytest.raises(masks.MaskError, match=message):
        masks.from_polygons(polygons, (6, 8))


def test_files_of_masks(tmp_path, monkeypatch):
    path = tmp_path / "m.png"
    Image.fromarray(np.array([[[0, 0, 0], [0, 9, 0]]], np.uint8)).save(path)
    np.testing.assert_array_equal(masks.from_file(str(path), (1, 2)), [[False, True]])
    path.write_bytes(masks.to_png(np.ones([4, 5], bool))[:-30])
    with pytest.raises(masks.MaskError, match="a file that is no PNG image"):
        masks.from_file(str(path), (4, 5))
    path.write_bytes(masks.to_png(np.ones([4, 5], bool)))
    monkeypatch.setattr(masks, "MAX_FILE_PIXELS", 19)
    with pytest.raises(masks.MaskError, match="a file of 5 x 4 pixels; allowed: 19"):
        masks.from_file(str(path), (4, 5))
    with pytest.raises(masks.MaskError, match="No such file"):
        masks.from_file(str(tmp_path / "none.png"), (4, 5))

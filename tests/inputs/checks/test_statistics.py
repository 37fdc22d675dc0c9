from __future__ import annotations

import numpy as np

from inputs.checks import statistics
from inputs.checks.statistics import SCALES, Columns, ImageRow, columns_of


def collect(*images: tuple) -> Columns:
    """Of (height, width, boxes, class ids)."""
    return columns_of([
        ImageRow((height, width), f"image {number}", boxes, class_ids)
        for number, (height, width, boxes, class_ids) in enumerate(images)
    ])  # fmt: skip


def three_images() -> Columns:
    return collect(
        # 20 x 40, 50 x 100 and 100 x 100 pixels.
        (100, 200, [[0, 0, 0.2, 0.2], [0, 0, 0.5, 0.5], [0, 0, 1, 0.5]], [1, 2, 1]),
        (100, 200, [], []),
        (400, 100, [[0.5, 0.0, 0.5, 1.0]], [2]),  # no height
    )


def test_pixels_and_classes_of_area():
    columns = three_images()
    pixels = statistics.box_sizes(columns)
    np.testing.assert_allclose(pixels, [[20, 40], [50, 100], [100, 100], [0, 100]], rtol=1e-6)
    # 800 < 32^2 <= 5000 < 96^2 <= 10000
    np.testing.assert_array_equal(statistics.area_classes(pixels), [0, 1, 2, 0])
    np.testing.assert_array_equal(statistics.count_columns(columns)["areas"], [2, 1, 1])


def test_aspect_ratios():
    boxes = [[0, 0, h / 10, w / 10] for h, w in [(1, 1), (1, 1.9), (10, 1), (0, 1), (1, 5)]]
    columns = collect((100, 100, boxes, [1] * 5))
    found = {"below 1:5": 1, "4:5 to 5:4": 1, "5:4 to 2:1": 1, "5:1 and above": 2}
    counts = statistics.count_columns(columns)["ratios"]
    assert {name: n for name, n in zip(SCALES["ratios"].names, counts) if n} == found


def test_joined_parts_are_as_one():
    whole = three_images()
    first = collect((100, 200, whole.boxes[:3], [1, 2, 1]), (100, 200, [], []))
    last = ImageRow((400, 100), "image 2", whole.boxes[3:], [2])
    joined = statistics.join([first, columns_of([]), columns_of([last])])
    for name, a, b in zip(Columns._fields, joined, whole):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert type(a) is type(b)
    empty = statistics.join([])
    assert (statistics.class_counts(empty), statistics.common_sizes(empty.sizes)) == ({}, [])
    assert not any(any(statistics.count_columns(empty).get(key, ())) for key in SCALES)


def test_images_by_rule():
    cut = statistics.first_boxes(three_images(), 2)
    np.testing.assert_array_equal(cut.images, [0, 0, 2])
    np.testing.assert_array_equal(cut.class_ids, [1, 2, 2])
    assert cut.num_images == 3
    rows = [ImageRow((1, 1), name, [], []) for name in ["a", "", "b", "a", ""]]
    assert statistics.repeated_ids(columns_of(rows)) == {"a": [0, 3]}

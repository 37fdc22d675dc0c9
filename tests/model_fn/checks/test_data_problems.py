from __future__ import annotations

import numpy as np

from inputs.checks.statistics import Columns, ImageRow, columns_of
from inputs.label_map import parse_label_map
from model_fn.checks import data_problems
from model_fn.checks.anchor_coverage import BETWEEN, ELONGATED, LARGE, SMALL, Coverage, MapAnchors

MAP = 'item { id: 1 name: "cat" } item { id: 2 name: "dog" } item { id: 4 name: "owl" }'


def columns(*class_ids: list, names: list = ()) -> Columns:
    """An image for each list, with as many boxes."""
    rows = []
    for number, ids in enumerate(class_ids):
        name = names[number] if names else f"image {number}"
        rows.append(ImageRow((100, 100), name, np.tile([0, 0, 0.5, 0.5], [len(ids), 1]), ids))
    return columns_of(rows)


def check_labels(of: Columns, is_training: bool = True, text: str = MAP):
    label_map = parse_label_map(text, "map.pbtxt")
    return list(data_problems.check_labels("reader", label_map, of, is_training=is_training))


def test_gaps_in_label_maps():
    (gap,) = check_labels(columns(*[[1, 2, 4]] * 10))
    assert gap.severity == "warning" and "1 id below 4 is of no class: 3" in gap.message


def test_unused_and_rare_classes_matter_in_training_alone():
    text = 'item { id: 1 name: "cat" } item { id: 2 name: "dog" }'
    of = columns(*[[1] * 5] * 3)
    (unused,) = check_labels(of, text=text)
    assert "1 of 2 classes has no box in the data: 'dog' (id 2)" in unused.message
    rare = check_labels(columns([1] * 20, [2] * 9), text=text)
    assert ["'dog'" in problem.message for problem in rare] == [True]
    assert "fewer than 10" in rare[0].message
    assert check_labels(of, text=text, is_training=False) == []


def test_content():
    assert list(data_problems.check_content("r", columns([1], [2]))) == []
    (nothing,) = data_problems.check_content("r", columns())
    assert nothing.severity == "error" and "not one record" in nothing.message
    (no_boxes,) = data_problems.check_content("r", columns([], []))
    assert no_boxes.severity == "error" and "none of 2 images" in no_boxes.message
    (empty,) = data_problems.check_content("r", columns([1], [], []))
    assert empty.severity == "warning" and "2 of 3 images" in empty.message
    (repeated,) = data_problems.check_content("r", columns([1], [1], [1], names=["a", "b", "a"]))
    assert "'a' (2 times)" in repeated.message
    assert repeated.message.startswith("1 source_id shared by several records")


def test_duplicates_by_content_with_the_option_that_skips_them():
    rows = []
    for number, content in enumerate([5, 0, 5, 7, 5, 0]):
        rows.append(ImageRow((9, 9), f"image {number}", [[0, 0, 1, 1]], [1], content))
    (copies,) = data_problems.check_content("r", columns_of(rows))
    assert copies.message == (
        "2 duplicates of other images, with the same bytes: 'image 2' of 'image 0', 'image 4' of "
        "'image 0'"
    )
    assert "--duplicates skip" in copies.remedy


def test_images_in_training_and_evaluation():
    train = columns([1], [1], [1], names=["a", "b", ""])
    apart, shared = columns([1], [1], names=["c", ""]), columns([1], names=["b"])
    (problem,) = data_problems.check_overlap(train, {"eval[0]": apart, "eval[1]": shared})
    assert (
        problem.field == "eval[1]"
        and "1 image shared with train" in problem.message
        and "'b'" in problem.message
    )
    one, same, other = (columns_of([ImageRow((9, 9), name, [], [], 5)]) for name in "xyz")
    other = other._replace(contents=np.zeros([1], np.int64))
    (problem,) = data_problems.check_overlap(one, {"eval[0]": other, "eval[1]": same})
    assert problem.field == "eval[1]" and "'y'" in problem.message


def coverage(reasons: list, lost: list = (), forced: bool = True, pixels=(5.0, 5.0)) -> Coverage:
    """Coverage of boxes with these reasons, "" for a matched box."""
    num = len(reasons)
    rows = {
        name: np.array([r == name for r in reasons]) for name in (SMALL, LARGE, ELONGATED, BETWEEN)
    }
    shapes = np.array([[20.0, 20.0], [40.0, 80.0]])
    return Coverage(
        pixels=np.tile(pixels, [num, 1]),
        class_ids=np.ones(num, int),
        best_iou=np.full(num, 0.3),
        num_anchors=np.array([int(i not in lost) for i in range(num)]),
        below=np.array([bool(r) for r in reasons]),
        poor=np.array([bool(r) for r in reasons]),
        reasons=rows,
        maps=[MapAnchors((4, 4), 16, shapes, num, 0.3)],
        input_sizes=[(100, 100)],
        threshold=0.5,
        background=0.5,
        forced=forced,
    )


def test_the_classes_behind_a_problem_are_named():
    """Also a rare class, whose boxes are few among all; one or two boxes may be slips."""
    rare = coverage([SMALL] * 9 + [""] * 3 + [""] * 2000 + [SMALL])
    ids = np.repeat([1, 2, 3], [12, 2000, 1])
    (problem,) = data_problems.check_anchors(
        "m", rare._replace(class_ids=ids), {1: "dot", 2: "bar", 3: "one"}
    )
    assert "10 of 2,013 boxes (0.5%) are too small" in problem.message
    assert problem.message.endswith("(below 0.5): 75% of class 'dot'")


def test_remedies_name_numbers():
    (small,) = data_problems.check_anchors("model.ssd", coverage([SMALL, "", "", ""]))
    assert small.severity == "warning" and small.field == "model.ssd.anchor_generator"
    assert "1 of 4 boxes (25.0%) is too small" in small.message and "by force" in small.message
    assert "begin at 20 pixels, half of these boxes are below 5" in small.remedy
    (large,) = data_problems.check_anchors("m", coverage([LARGE], pixels=(300.0, 300.0)))
    assert "end at 57 pixels, half of these boxes are above 300" in large.remedy
    (flat,) = data_problems.check_anchors("m", coverage([ELONGATED], pixels=(10.0, 70.0)))
    assert "of about their size are 1: add aspect_ratios such as 7" in flat.remedy
    (wide,) = data_problems.check_anchors("m", coverage([ELONGATED], pixels=(15.0, 30.0)))
    assert "such aspect ratios at other sizes" in wide.remedy
    assert "below 21 pixels: add scales about there" in wide.remedy
    (between,) = data_problems.check_anchors("m", coverage([BETWEEN]))
    assert "more densely" in between.remedy


def test_remedies_of_two_stages():
    """Fields that they have: no matcher; and anchors across the border may be the ones missing."""
    model = "model.faster_rcnn"
    large = coverage([LARGE], pixels=(300.0, 300.0))
    (kept,) = data_problems.check_anchors(model, large)
    assert kept.field == "model.faster_rcnn.first_stage_anchor_generator"
    assert kept.remedy.endswith("above 300: add larger scales")
    (left_out,) = data_problems.check_anchors(model, large._replace(num_left_out=9))
    assert left_out.remedy.endswith("above 300: " + data_problems.KEEP_CROSSING)
    between = coverage([BETWEEN])._replace(num_left_out=9, threshold=0.7, background=0.3)
    (problem,) = data_problems.check_anchors(model, between)
    assert "(below 0.3)" in problem.message  # Of those up to .7, the best anchor learns them.
    assert "clip_anchors_to_image: true" in problem.remedy
    assert "matched_threshold" not in problem.remedy
    (lost,) = data_problems.check_anchors(model, coverage([""], lost=[0]))
    assert lost.field == "model.faster_rcnn.first_stage_anchor_generator"


def test_boxes_that_are_near_enough_are_not_worth_a_warning():
    """Below the threshold, and still nearer than background: the best anchor learns them."""
    near = coverage([BETWEEN, BETWEEN])._replace(poor=np.array([False, False]))
    assert list(data_problems.check_anchors("model.faster_rcnn", near)) == []


def test_lost_boxes():
    (taken,) = data_problems.check_anchors("m", coverage(["", ""], lost=[1]))
    assert taken.severity == "warning" and "another box has taken" in taken.message
    problems = list(
        data_problems.check_anchors("m", coverage([SMALL] * 2, lost=[0, 1], forced=False))
    )
    assert problems[0].severity == "error"
    assert "force_match_for_each_row: true" in problems[0].remedy


def test_tiny_boxes():
    (tiny,) = data_problems.check_anchors("m", coverage([""], pixels=(3.0, 50.0)))
    assert tiny.field == "m.image_resizer" and "below 4 pixels" in tiny.message

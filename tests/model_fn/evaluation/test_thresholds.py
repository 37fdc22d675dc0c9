"""F1 tables worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from model_fn.evaluation import thresholds
from model_fn.evaluation.matching import ClassMatches
from model_fn.evaluation.thresholds import Row, Table, best_f1, format_table, make_table
from tests.model_fn.evaluation.test_matching import BOX, FAR, batch, matches_of


def _found(scores: list[float], correct: list[int], num_boxes: int) -> ClassMatches:
    return ClassMatches(np.float32(scores), np.array(correct, bool), num_boxes)


def test_best_f1_by_hand() -> None:
    # Of four boxes. Precision 1, 1/2, 2/3, 3/4, 3/5; recall 1/4, 1/4, 1/2, 3/4, 3/4;
    # F1 2/5, 1/3, 4/7, 3/4, 2/3.
    row = best_f1("cat", _found([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0], 4), 7)
    assert row.threshold == pytest.approx(0.6)
    assert (row.precision, row.recall, row.f1) == pytest.approx((0.75, 0.75, 0.75))
    assert (row.class_id, row.num_boxes, row.num_detections) == (7, 4, 5)


def test_a_threshold_takes_all_detections_of_its_score() -> None:
    # With the correct one of 0.8 alone F1 would be 1; both of 0.8 give 2/3.
    row = best_f1("cat", _found([0.8, 0.8, 0.7], [1, 0, 0], 1))
    assert row.threshold == pytest.approx(0.8)
    assert (row.precision, row.recall, row.f1) == pytest.approx((1 / 2, 1, 2 / 3))


def test_of_equal_f1_the_highest_threshold() -> None:
    # F1 2/3 at 0.9 and again at 0.6: 2 of 4 detections, of two boxes.
    row = best_f1("cat", _found([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], 2))
    assert (row.threshold, row.f1) == pytest.approx((0.9, 2 / 3))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (_found([], [], 3), "no correct detection"),
        (_found([0.9], [0], 3), "no correct detection"),
        (_found([0.9], [0], 0), "no box"),
    ],
)
def test_without_boxes_or_correct_detections_no_threshold_is_best(
    found: ClassMatches, text: str
) -> None:
    row = best_f1("cat", found)
    assert row.threshold is row.precision is row.recall is row.f1 is None
    assert text in format_table(Table(row, ()))


def test_table_of_an_evaluation() -> None:
    table = make_table(
        matches_of(
            batch([BOX, FAR], [1, 2], [BOX, FAR, BOX], [0.9, 0.4, 0.3], [1, 2, 2]),
            batch([BOX], [1], [FAR], [0.8], [1]),
        )
    )
    cat, dog, owl = table.classes
    # Cats: 1 of 1 is correct, of 2 boxes; then 1 of 2. Dogs: 1 of 1, of 1 box; then 1 of 2.
    assert (cat.threshold, cat.f1) == pytest.approx((0.9, 2 / 3))
    assert (dog.threshold, dog.f1) == pytest.approx((0.4, 1.0))
    assert owl.threshold is None
    assert table.per_class() == pytest.approx({1: 0.9, 2: 0.4})
    # All: 1 of 1, 1 of 2, 2 of 3 at 0.4, 2 of 4; of 3 boxes: F1 1/2, 2/5, 2/3, 4/7.
    assert (table.all_classes.threshold, table.all_classes.f1) == pytest.approx((0.4, 2 / 3))
    assert table.all_classes.class_id is None
    assert Table.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_printed_tables_are_short_and_escaped() -> None:
    rows = [Row(f"class {k}", 100 - k, 5, 0.5, 0.25, 0.75, 0.375, class_id=k) for k in range(40)]
    rows[3] = Row("\x1b[2J" + "x" * 5000, 300, 5, class_id=3)
    text = format_table(Table(rows[0], tuple(rows)), "run/thresholds-2.json")
    lines = text.splitlines()
    assert len(lines) == thresholds.MAX_ROWS_PRINTED + 3
    assert max(map(len, lines)) < 100
    assert "\x1b" not in text
    assert "class 8 " in text and "class 10 " not in text
    assert lines[-1].endswith("30 classes more  all in run/thresholds-2.json")
    assert lines[1].split()[-5:] == ["100", "0.500", "0.250", "0.750", "0.375"]


@pytest.mark.parametrize(
    "change", [{"threshold": "high"}, {"class_id": "x"}, {"class_id": 1.5}, {"other": 1}]
)
def test_what_is_no_table_is_refused(change: dict[str, object]) -> None:
    table = Table(Row("all", 1, 1), (Row("cat", 1, 1, 0.5, class_id=1),)).to_json()
    table["classes"][0].update(change)
    with pytest.raises(TypeError):
        Table.from_json(table)

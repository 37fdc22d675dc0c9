"""Faults of labels that detections contradict, with boxes and shares worked out by hand."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from model_fn.evaluation.diagnostics import EvalDiagnostics
from model_fn.evaluation.metrics.base import EvaluatedBatch
from tests.model_fn.evaluation.test_matching import CATEGORIES
from tests.model_fn.evaluation.test_matching import batch as image

pytestmark = pytest.mark.usefixtures("no_charts")

BOX, FAR, SHIFTED = [0, 0, 10, 10], [50, 50, 150, 150], [0, 5, 10, 15]
GOOD = image([BOX, FAR], [1, 2], [BOX, FAR], [0.8, 0.7], [1, 2])


def faults_of(*batches: EvaluatedBatch) -> List[Dict[str, Any]]:
    evaluation = EvalDiagnostics(CATEGORIES, min_score=0.5)
    for batch in batches:
        evaluation.add(batch)
    return evaluation.results()[2]["label_faults"]


def test_four_kinds():
    faults = faults_of(
        *[GOOD] * 5,
        image([BOX], [1], [BOX, FAR], [0.8, 0.75], [1, 2]),
        image([BOX, FAR], [1, 2], [BOX], [0.8], [1]),
        image([BOX], [1], [BOX], [0.78], [2]),
        image([BOX], [1], [SHIFTED], [0.72], [1]),
    )
    # 7 detections of 0.8 and 5 of 0.7 agree. One missing label is as strong as 0.75, one wrong
    # class as 0.78, one shifted box as 0.72: 7 of 8 cases agree. The label that nothing is near
    # is one of 13.
    assert [(each["kind"], each["image"], each["suspicion"]) for each in faults] == [
        ("extra label", 6, 0.9231),
        ("missing label", 5, 0.875),
        ("wrong class", 7, 0.875),
        ("shifted box", 8, 0.875),
    ]
    extra, missing, wrong, shifted = faults
    assert extra["label"] == {"number": 1, "class": "dog", "box": FAR}
    assert extra["detection"] is missing["label"] is None
    assert missing["detection"] == {"class": "dog", "score": 0.75, "iou": 0.0, "box": FAR}
    assert wrong["label"]["class"] == "cat" and wrong["detection"]["class"] == "dog"
    assert shifted["detection"]["iou"] == pytest.approx(0.333)


@pytest.mark.parametrize(
    "second",
    [
        image([BOX], [1], [BOX, BOX], [0.9, 0.8], [1, 1]),  # found twice
        image([BOX], [1], [BOX, BOX], [0.9, 0.8], [1, 2]),  # the best detection agrees
        image([BOX], [1], [BOX, FAR], [0.9, 0.3], [1, 2]),  # below half the threshold of 0.7
        image([BOX, FAR], [1, 2], [BOX, FAR], [0.9, 0.7], [1, 2]),
        image([BOX], [1], [], [], [], is_crowd=[True]),
        image([BOX], [1], [], [], [], difficult=[True]),
        image([BOX], [1], [BOX], [0.9], [2], difficult=[True]),
    ],
)  # fmt: skip
def test_what_contradicts_no_label(second):
    assert faults_of(*[GOOD] * 5, second) == []


def test_a_detector_that_is_never_right_contradicts_nothing():
    assert faults_of(image([BOX], [1], [FAR], [0.9], [2])) == faults_of() == []


def test_rare_contradictions_come_first():
    """Objects that are often missed are less suspicious than a rare wrong class."""
    missed = image([BOX, FAR], [1, 2], [BOX], [0.8], [1])
    wrong = image([BOX], [1], [BOX], [0.8], [2])
    faults = faults_of(*[GOOD] * 5, *[missed] * 3, wrong)
    assert [each["kind"] for each in faults] == ["wrong class", *["extra label"] * 3]
    assert [each["suspicion"] for each in faults] == [0.8889, *[0.8125] * 3]  # 8 of 9, 13 of 16


def test_a_label_is_listed_once():
    """The shifted box is no extra label, though a second class is at its place, too."""
    twice = image([BOX], [1], [SHIFTED, [0, 4, 10, 14]], [0.8, 0.75], [1, 2])
    faults = faults_of(*[GOOD] * 5, twice)
    assert [each["label"]["number"] for each in faults if each["label"]] == [0]

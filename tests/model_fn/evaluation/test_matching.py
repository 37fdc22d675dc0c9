"""Which detections are correct, with boxes worked out by hand."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import pytest

from model_fn.evaluation import matching
from model_fn.evaluation.diagnostics import EvalDiagnostics
from model_fn.evaluation.matching import ClassMatches, Matches
from model_fn.evaluation.metrics.base import EvaluatedBatch
from tests.model_fn.evaluation.metrics import hand

pytestmark = pytest.mark.usefixtures("no_charts")

CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}, {"id": 5, "name": "owl"}]
BOX, FAR, NEAR = [0, 0, 10, 10], [50, 50, 150, 150], [0, 0, 10, 8]


def batch(
    boxes: Any, classes: Any, found: Any, scores: Any, found_classes: Any, **flags: Sequence[bool]
) -> EvaluatedBatch:
    """A batch of one image."""
    detections = [(x, k, *box) for x, k, box in zip(scores, found_classes, found)]
    return hand.image([(k, *box) for k, box in zip(classes, boxes)], detections, **flags)


def matches_of(*batches: EvaluatedBatch) -> Matches:
    """The matches that an evaluation hands on when it ends."""
    diagnostics = EvalDiagnostics(CATEGORIES, 0.5)
    for each in batches:
        diagnostics.add(each)
    return diagnostics.results()[0]


def _judged(*batches: EvaluatedBatch, k: int = 0) -> list[tuple[float, bool]]:
    """Score and correctness of each detection of a class that counts."""
    found = matches_of(*batches).per_class()[k]
    return [(round(float(s), 3), bool(right)) for s, right in zip(found.scores, found.correct)]


def test_a_box_is_found_once():
    one = batch([BOX], [1], [NEAR, BOX], [0.9, 0.8], [1, 1])
    assert _judged(one) == [(0.9, True), (0.8, False)]
    half = batch([BOX], [1], [[0, 0, 10, 5]], [0.9], [1])  # The least overlap is enough.
    assert _judged(half) == [(0.9, True)]


def test_detections_of_all_images_by_score():
    first = batch([BOX, FAR], [1, 2], [BOX, FAR], [0.5, 0.6], [1, 2])
    second = batch([BOX], [1], [FAR, BOX], [0.7, 0.4], [1, 5])
    found = matches_of(first, second)
    assert _judged(first, second) == [(0.7, False), (0.5, True)]
    assert _judged(first, second, k=1) == [(0.6, True)]
    assert _judged(first, second, k=2) == [(0.4, False)]
    assert found.num_boxes.tolist() == [2, 1, 0]
    assert found.all_classes_merged().correct.tolist() == [False, True, True, False]
    assert found.classes().tolist() == [0, 1, 0, 2]
    assert found.all_classes_merged().num_boxes == 3
    half = found.every_second_image(1)
    np.testing.assert_allclose(half.all_classes_merged().scores, [0.7, 0.4])
    assert half.classes().tolist() == [0, 2]


def test_a_crowd_is_not_looked_for_and_excuses_what_is_inside():
    # The detection of 10 x 10 lies in the crowd of 100 x 100, with an IoU of 0.01.
    inside = [60, 60, 70, 70]
    one = batch([FAR], [1], [inside, inside], [0.9, 0.8], [1, 1], is_crowd=[True])
    assert _judged(one) == []
    assert matches_of(one).num_boxes.tolist() == [0, 0, 0]
    # Half of it outside still counts as inside; more does not.
    assert _judged(batch([FAR], [1], [[45, 50, 55, 60]], [0.9], [1], is_crowd=[True])) == []
    outside = batch([FAR], [1], [[44, 50, 54, 60]], [0.9], [1], is_crowd=[True])
    assert _judged(outside) == [(0.9, False)]
    # A crowd of dogs excuses no cat.
    assert _judged(batch([FAR], [2], [inside], [0.9], [1], is_crowd=[True])) == [(0.9, False)]


def test_a_difficult_box_excuses_what_matches_it():
    flags = {"difficult": [True, False]}
    one = batch([BOX, FAR], [1, 1], [NEAR, BOX, FAR], [0.9, 0.8, 0.7], [1, 1, 1], **flags)
    assert _judged(one) == [(0.7, True)]
    assert matches_of(one).num_boxes.tolist() == [1, 0, 0]
    # A box that counts is taken first, where both match.
    both = batch([BOX, NEAR], [1, 1], [BOX], [0.9], [1], **flags)
    assert _judged(both) == [(0.9, True)]


def test_precision_at_recalls():
    # Right, wrong, right, of four boxes: precision 1 up to recall 1/4, 2/3 up to 1/2, then 0.
    found = ClassMatches(np.float32([0.9, 0.8, 0.7]), np.array([True, False, True]), 4)
    precision = matching.precision_curve(found)[[0, 25, 26, 50, 51]]
    np.testing.assert_allclose(precision, [1, 1, 2 / 3, 2 / 3, 0])
    nothing = ClassMatches(np.zeros(0, np.float32), np.zeros(0, bool), 4)
    assert not matching.precision_curve(nothing).any()

"""Details of an evaluation: mistakes, missed objects, curves, and their file."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.errors import UsageError
from model_fn.evaluation import details
from model_fn.evaluation.diagnostics import EvalDiagnostics
from model_fn.evaluation.metrics.base import EvaluatedBatch
from tests.model_fn.evaluation.test_matching import batch as image

pytestmark = pytest.mark.usefixtures("no_charts")
CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "<script>"}]
BOX, LARGE, SHIFTED, ELSEWHERE = (
    [0, 0, 10, 10], [50, 50, 150, 150], [0, 5, 10, 15], [200, 200, 220, 220],
)  # fmt: skip


def details_of(*batches: EvaluatedBatch) -> Dict[str, Any]:
    evaluation = EvalDiagnostics(CATEGORIES, min_score=0.3)
    for batch in batches:
        evaluation.add(batch)
    return evaluation.results()[2]


def test_kinds_of_mistakes_the_most_confident_first():
    values = details_of(
        image([BOX], [1], [BOX, BOX], [0.9, 0.6], [1, 1]),
        image([BOX], [1], [BOX], [0.7], [2]),
        image([BOX], [1], [SHIFTED], [0.8], [1]),
        image([], [], [ELSEWHERE, BOX], [0.2, 0.95], [2, 1]),
        image([BOX], [1], [BOX], [0.99], [1], is_crowd=[True]),  # ignored
    )
    mistakes = values["mistakes"]
    assert [(each["image"], each["kind"], each["class"]) for each in mistakes] == [
        (3, details.BACKGROUND, "cat"),
        (2, details.MISPLACED, "cat"),
        (1, details.OTHER_CLASS, "<script>"),
        (0, details.DUPLICATE, "cat"),
    ]
    assert mistakes[2]["actual"] == "cat"
    assert mistakes[1]["iou"] == pytest.approx(1 / 3)
    assert mistakes[0]["detections"] == [BOX]  # not the one below min_score
    assert values["curves"][0]["name"] == "mean"
    assert values["confusion"]["names"] == ["cat", "<script>", "none"]
    assert sum(values["reliability"]["counts"]) == 6
    assert set(values["average_precisions"]) == {"cat"}


def test_missed_objects_the_largest_first():
    values = details_of(
        image([BOX, LARGE], [1, 2], [BOX, LARGE], [0.9, 0.2], [1, 2]),
        image([BOX], [1], [], [], []),
        image([LARGE], [1], [LARGE], [0.5], [1]),  # found
        image([LARGE], [1], [], [], [], is_crowd=[True]),
        image([LARGE, BOX], [1, 2], [LARGE], [0.5], [1]),  # The smaller one is missed.
    )
    missed = values["missed"]
    expected = [(0, "<script>", LARGE), (1, "cat", BOX), (4, "<script>", BOX)]
    assert [(each["image"], each["class"], each["box"]) for each in missed] == expected
    assert missed[0]["best_score"] == pytest.approx(0.2)
    assert missed[0]["classes"] == ["cat", "<script>"]


def test_a_missed_object_has_the_score_of_what_just_overlaps_it_enough():
    values = details_of(image([BOX], [1], [[0, 0, 10, 5]], [0.2], [1]))
    assert values["missed"][0]["best_score"] == pytest.approx(0.2)


def test_keypoints_of_the_objects_that_are_kept():
    points = [[np.nan, 3], [4, 5.04]]
    batch = image(
        [BOX, LARGE], [1, 2], [ELSEWHERE, BOX], [0.2, 0.9], [1, 1],
        keypoints=np.float32([points, points]),
        detection_keypoints=np.float32([[[1, 1], [1, 1]], [[2, 3], [4, 5]]]),
        detection_keypoint_scores=np.float32([[0.5, 0.5], [0.1, 0.98765]]),
    )  # fmt: skip
    (missed,) = details_of(batch)["missed"]
    assert missed["keypoints"] == 2 * [[[None, 3.0], [4.0, 5.0]]]
    assert missed["detected_keypoints"] == [[[2.0, 3.0], [4.0, 5.0]]]  # not below min_score
    assert missed["keypoint_scores"] == [[0.1, 0.988]]


def test_few_examples_are_kept():
    batches: List[EvaluatedBatch] = [
        image([BOX], [1], [ELSEWHERE], [score], [1]) for score in np.linspace(0.31, 0.9, 30)
    ]
    values = details_of(*batches)
    assert [each["image"] for each in values["mistakes"]] == list(range(29, 21, -1))
    assert [each["image"] for each in values["missed"]] == list(range(details.EXAMPLES))


def test_without_images_and_in_a_file(tmp_path):
    values = details_of()
    assert values["mistakes"] == values["curves"] == []
    details.write(str(tmp_path), 7, values)
    assert details.read(str(tmp_path), 7) == json.loads(json.dumps(values))
    assert details.read(str(tmp_path), 8) is None
    (tmp_path / "details-8.json").write_text("{")
    with pytest.raises(UsageError, match="is not a file of details"):
        details.read(str(tmp_path), 8)

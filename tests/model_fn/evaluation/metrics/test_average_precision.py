"""PASCAL VOC and Open Images by hand."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import EvaluatedBatch, make_metrics
from model_fn.evaluation.metrics.base import chosen_metrics
from tests.model_fn.evaluation.metrics import hand

CAT = (1, 0, 0, 10, 10)
FAR = (1, 50, 50, 60, 60)
DOG = (2, 0, 0, 40, 40)


def _results(name: str, *batches: EvaluatedBatch) -> Dict[str, float]:
    """By the part of the name that says which one."""
    config = eval_pb2.EvalConfig(metrics_set=[name])
    (metrics,) = make_metrics(config, hand.CATEGORIES)
    for batch in batches:
        metrics.add(batch)
    found = metrics.results()
    assert list(found) == metrics.names
    return {key.rsplit("/", 1)[1]: value for key, value in found.items()}


def test_precision_of_two_of_three() -> None:
    """Right, wrong, right, of two boxes: the area is 1/2 x 1 + 1/2 x 2/3."""
    detections = [(0.9, *CAT), (0.8, 1, 80, 80, 90, 90), (0.7, *FAR)]
    results = _results("pascal_voc_detection_metrics", hand.image([CAT, FAR], detections))
    assert results["cat"] == pytest.approx(5 / 6)
    assert math.isnan(results["dog"]) and math.isnan(results["owl"])
    assert results["mAP@0.5IOU"] == pytest.approx(5 / 6)  # NaN does not count.


def test_a_box_is_found_once_and_difficult_ones_do_not_count() -> None:
    detections = [(0.9, *CAT), (0.8, *CAT), (0.7, *FAR)]
    boxes = [CAT, FAR]
    assert _results("pascal_voc_detection_metrics", hand.image(boxes, detections))["cat"] == (
        pytest.approx(0.5 + 0.5 * 2 / 3)
    )
    difficult = hand.image(boxes, detections, difficult=[False, True])
    assert _results("pascal_voc_detection_metrics", difficult)["cat"] == 1.0
    # Open Images does not know the word.
    assert _results("oid_V2_detection_metrics", difficult)["cat"] == pytest.approx(5 / 6)


def test_only_the_box_of_the_largest_overlap_is_tried() -> None:
    """The second detection overlaps the free box by 0.5, too, but the taken one by more."""
    boxes = [(1, 0, 0, 10, 10), (1, 0, 3, 10, 13)]
    detections = [(0.9, 1, 0, 0, 10, 10), (0.8, 1, 0, 1, 10, 11)]
    assert _results("pascal_voc_detection_metrics", hand.image(boxes, detections))["cat"] == 0.5


def test_the_threshold_itself_matches() -> None:
    batch = hand.image([(1, 0, 0, 10, 10)], [(0.9, 1, 0, 0, 10, 5)])
    assert _results("pascal_voc_detection_metrics", batch)["cat"] == 1.0


GROUP = (1, 0, 0, 100, 50)
INSIDE = [(0.9, 1, 0, 0, 10, 10), (0.8, 1, 20, 20, 30, 30), (0.7, 1, 0, 60, 10, 70)]


def test_groups() -> None:
    """Two detections in a group's box: ignored, or one correct detection; the third is wrong."""
    single = (1, 0, 60, 10, 70)
    batch = hand.image([GROUP, single], INSIDE, group_of=[True, False])
    assert _results("oid_V2_detection_metrics", batch)["cat"] == 1.0
    assert _results("oid_challenge_detection_metrics", batch)["cat"] == 1.0
    assert _results("pascal_voc_detection_metrics", batch)["cat"] == pytest.approx(0.5 / 3)
    missed = hand.image([GROUP, FAR], INSIDE, group_of=[True, False])
    assert _results("oid_V2_detection_metrics", missed)["cat"] == 0.0
    # The group counts as found, the other box as missed.
    assert _results("oid_challenge_detection_metrics", missed)["cat"] == pytest.approx(0.5)


def test_challenges_evaluate_the_classes_of_the_image() -> None:
    """A dog is neither boxed nor labeled in the first image, and absent from the second."""
    detections = [(0.9, *CAT), (0.8, *DOG)]
    first = hand.image([CAT], detections, labeled_classes=[0, 0, 1])
    second = hand.image([DOG], [(0.7, *DOG)], labeled_classes=[0, 0, 0])
    results = _results("oid_challenge_detection_metrics", first, second)
    assert results["dog"] == 1.0
    labeled = first._replace(labeled_classes=np.float32([[0, 1, 0]]))
    assert _results("oid_challenge_detection_metrics", labeled, second)["dog"] == 0.5
    assert _results("oid_V2_detection_metrics", first, second)["dog"] == 0.5


@pytest.mark.parametrize("weighted", ["", "weighted_"])
def test_masks(weighted: str) -> None:
    """Masks decide, not boxes; a box without a mask does not count, nor does what finds it."""
    name = f"{weighted}pascal_voc_instance_segmentation_metrics"
    batch = hand.with_masks(hand.image([CAT, FAR], [(0.9, *FAR), (0.8, *CAT)]))
    assert _results(name, batch)["cat"] == 1.0
    assert batch.masks is not None
    empty = hand.filled(np.array([CAT[1:], [0, 0, 0, 0]]))
    without = batch._replace(masks=batch.masks._replace(groundtruth=[empty]))
    assert _results(name, without)["cat"] == 1.0
    elsewhere = batch._replace(masks=batch.masks._replace(groundtruth=[empty[::-1]]))
    results = _results(name, elsewhere)
    # The box of FAR has the mask of CAT, which the second detection finds; the first is wrong.
    assert results["cat"] == results["mAP@0.5IOU"] == 0.5


def test_degenerate_detections_and_unknown_classes_are_ignored() -> None:
    detections = [
        (0.9, 1, 10, 10, 10, 20),
        (0.9, 9, 0, 0, 10, 10),
        (0.9, 1, math.nan, 0, 10, 10),
        (0.8, *CAT),
    ]
    batch = hand.image([CAT, (9, 0, 0, 10, 10)], detections)
    assert _results("pascal_voc_detection_metrics", batch)["cat"] == 1.0


def test_images_without_boxes_or_detections() -> None:
    nothing = hand.image([], [])
    missed = hand.image([CAT], [])
    wrong = hand.image([], [(0.9, *CAT)])
    found = hand.image([CAT], [(0.8, *CAT)])
    results = _results("pascal_voc_detection_metrics", nothing, missed, wrong, found)
    assert results["cat"] == pytest.approx(0.25)
    assert math.isnan(_results("oid_V2_detection_metrics", nothing)["mAP@0.5IOU"])


PRECISION_AT_RECALL = "precision_at_recall_detection_metrics"


@pytest.mark.parametrize("bounds", [(0.5, 0.4), (-0.1, 1.0), (0.0, 1.1), (float("nan"), 1.0)])
def test_bounds_that_contain_no_recall_are_errors(bounds: Tuple[float, float]) -> None:
    config = eval_pb2.EvalConfig(metrics_set=[PRECISION_AT_RECALL])
    config.recall_lower_bound, config.recall_upper_bound = bounds
    with pytest.raises(ConfigError, match=r"eval_config\.recall_lower_bound is"):
        make_metrics(config, hand.CATEGORIES)


def test_the_lower_bound_belongs_to_the_range() -> None:
    """Right, wrong, right: precision 1 at recall 1/2, and 2/3 at recall 1."""
    config = eval_pb2.EvalConfig(metrics_set=[PRECISION_AT_RECALL], recall_lower_bound=0.5)
    (metrics,) = make_metrics(config, hand.CATEGORIES[:1])
    detections = [(0.9, *CAT), (0.8, 1, 80, 80, 90, 90), (0.7, *FAR)]
    metrics.add(hand.image([CAT, FAR], detections))
    np.testing.assert_allclose(list(metrics.results().values()), 0.5 + 0.5 * 2 / 3)


ALIASES = [
    ["pascal_voc_detection_metrics", "pascal_voc_metrics"],
    [
        "oid_V2_detection_metrics",
        "open_images_V2_detection_metrics",
        "open_images_detection_metrics",
        "open_images_metrics",
    ],
    ["oid_challenge_detection_metrics", "oid_challenge_object_detection_metrics"],
    ["lvis_box_metrics", "lvis_detection_metrics"],
]


@pytest.mark.parametrize("names", ALIASES, ids=lambda names: str(names[0]))
def test_other_names_of_a_set(names: List[str]) -> None:
    made: List[Any] = [
        make_metrics(eval_pb2.EvalConfig(metrics_set=[name]), hand.CATEGORIES) for name in names
    ]
    assert all(sets[0].names == made[0][0].names for sets in made)
    # Names of one set, given together, make one set.
    both = eval_pb2.EvalConfig(metrics_set=[*names, "coco_detection_metrics", names[0]])
    assert chosen_metrics(both) == [names[0], "coco_detection_metrics"]

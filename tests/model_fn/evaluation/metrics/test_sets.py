"""Metrics sets by hand, where golden values do not tell, and configurations that are refused."""

from __future__ import annotations

import math
from typing import Any, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.errors import ConfigError, UsageError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.accumulator import Accumulator
from model_fn.evaluation.metrics import METRICS, EvaluatedBatch, make_metrics
from model_fn.evaluation.metrics.base import chosen_metrics, has_class
from model_fn.evaluation.metrics.run_lengths import ImageSizes, encode_masks
from tests.conftest import golden_component
from tests.faults import faults
from tests.model_fn.evaluation.metrics import hand
from tests.model_fn.evaluation.metrics.golden import make_batch, stacked

POINTS = [{"id": 0, "name": "nose"}, {"id": 2, "name": "tail"}]
CATEGORIES: List[Dict[str, Any]] = [
    {**hand.CATEGORIES[0], "keypoints": POINTS},
    {**hand.CATEGORIES[1], "keypoints": POINTS[:1]},
    hand.CATEGORIES[2],
]
CAT, FAR = (1, 0, 0, 10, 10), (1, 50, 50, 60, 60)
VOC = "pascal_voc_detection_metrics"
SIGMAS = "class_label: 'cat' keypoint_label_to_sigmas"


def results_of(name: str, *batches: EvaluatedBatch) -> Dict[str, float]:
    """Results of a set by the end of their names."""
    (metrics,) = make_metrics(eval_pb2.EvalConfig(metrics_set=[name]), CATEGORIES)
    for batch in batches:
        metrics.add(batch)
    return {key.replace("_", "/").split("/")[-1]: x for key, x in metrics.results().items()}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_set_has_values_for_its_names_without_objects(name):
    config = eval_pb2.EvalConfig(metrics_set=[name], include_metrics_per_category=True)
    points = {"keypoints": np.zeros((0, 3, 2)), "detection_keypoints": np.zeros((0, 3, 2))}
    empty = hand.with_masks(hand.image([], [], **points))
    for count in (0, 2):
        (metrics,) = make_metrics(config, CATEGORIES)
        for _ in range(count):
            metrics.add(empty)
        results = metrics.results()
        assert list(dict.fromkeys(metrics.names)) == metrics.names
        assert set(results) == set(metrics.names)
        values = [value for key, value in results.items() if not key.startswith("Num")]
        assert all(value == -1 or np.isnan(value) for value in values)
        assert all(isinstance(value, float) for value in results.values())
    assert set(metrics.scopes) <= set(metrics.names)
    assert metrics.needs <= {"masks", "keypoints", "detection_keypoints"}


def test_names_of_different_sets_differ():
    chosen = chosen_metrics(eval_pb2.EvalConfig(metrics_set=sorted(METRICS)))
    config = eval_pb2.EvalConfig(metrics_set=chosen, include_metrics_per_category=True)
    names = [name for metrics in make_metrics(config, CATEGORIES) for name in metrics.names]
    assert len(names) == len(set(names))
    assert len(chosen) == 14


@pytest.mark.parametrize(
    "names",
    [
        [VOC, "pascal_voc_metrics"],
        [
            "oid_V2_detection_metrics",
            "open_images_V2_detection_metrics",
            "open_images_detection_metrics",
            "open_images_metrics",
        ],
        ["oid_challenge_detection_metrics", "oid_challenge_object_detection_metrics"],
        ["lvis_box_metrics", "lvis_detection_metrics"],
    ],
)
def test_other_names_of_a_set_given_together_make_one(names):
    several = eval_pb2.EvalConfig(metrics_set=[*names, "coco_detection_metrics", names[0]])
    assert chosen_metrics(several) == [names[0], "coco_detection_metrics"]


def test_ids_outside_of_a_k_hot_vector_are_not_in_it():
    ids = np.int32([1, 2, 3, 4, 0, -1])
    assert has_class(np.float32([1, 0, 1]), ids).tolist() == [True, False, True, *[False] * 3]


def test_lvis_counts_the_300_best_of_an_image_of_any_class():
    detections: List[Any] = [(0.9, 2, 60, 60, 70, 70)] * 299 + [(0.8, *CAT), (0.7, 1, 0, 0, 10, 9)]
    both = [CAT, (1, 0, 0, 10, 9)]
    image = hand.image(both, detections)
    assert results_of("lvis_box_metrics", image)["AR@300"] == pytest.approx(0.5)
    image = hand.image(both, detections[1:])
    assert results_of("lvis_box_metrics", image)["AR@300"] == pytest.approx(1.0)
    crowd = hand.image([CAT], [(0.5, *CAT)], is_crowd=[True])
    assert results_of("lvis_box_metrics", crowd)["AP"] == pytest.approx(1.0)  # It has no crowds.


@pytest.mark.parametrize(
    ("boxes", "detections", "expected"),
    [
        # The second one overlaps the free box by 0.5, too, but the taken one by more.
        ([CAT, (1, 0, 3, 10, 13)], [(0.9, *CAT), (0.8, 1, 0, 1, 10, 11)], 0.5),
        ([CAT], [(0.9, 1, 0, 0, 10, 5)], 1.0),  # The threshold itself matches.
        # Detections without area, with NaN, and of an unknown category are ignored.
        (
            [CAT, (9, 0, 0, 10, 10)],
            [(0.9, 1, 9, 9, 9, 20), (0.9, 1, math.nan, 0, 9, 9), (0.9, 9, 0, 0, 9, 9), (0.8, *CAT)],
            1.0,
        ),
    ],
)
def test_matches_of_pascal_voc(boxes, detections, expected):
    assert results_of(VOC, hand.image(boxes, detections))["cat"] == expected


def test_pascal_voc_of_images_without_boxes_or_detections():
    wrong, found = hand.image([], [(0.9, *CAT)]), hand.image([CAT], [(0.8, *CAT)])
    results = results_of(VOC, hand.image([], []), hand.image([CAT], []), wrong, found)
    assert results["cat"] == pytest.approx(0.25)


def test_scores_of_groups_stand_with_those_of_their_image():
    """Results do not depend on the size of batches, also where scores are equal."""
    group = [(1, 0, 0, 100, 50)]
    images = [hand.image(group, [(0.9, *CAT)]), hand.image([FAR], [(0.9, 1, 0, 0, 9, 9)])]
    images = [image._replace(group_of=np.array([[k == 0]])) for k, image in enumerate(images)]
    both = EvaluatedBatch(*(None if x is None else np.concatenate([x, y]) for x, y in zip(*images)))
    name = "oid_challenge_detection_metrics"
    assert results_of(name, both)["cat"] == results_of(name, *images)["cat"]


@pytest.mark.parametrize("bounds", [(0.5, 0.4), (-0.1, 1.0), (0.0, 1.1), (float("nan"), 1.0)])
def test_bounds_that_contain_no_recall_are_errors(bounds):
    config = eval_pb2.EvalConfig(metrics_set=["precision_at_recall_detection_metrics"])
    config.recall_lower_bound, config.recall_upper_bound = bounds
    assert "at.recall_lower_bound: is" in faults(config)


def keypoint_config(text: str = 'class_label: "cat"') -> eval_pb2.EvalConfig:
    inner = f"parameterized_metric {{ coco_keypoint_metrics {{ {text} }} }}"
    return text_format.Parse(inner, eval_pb2.EvalConfig())


def test_keypoints_of_all_classes_that_no_parameterized_metric_names():
    config = eval_pb2.EvalConfig(metrics_set=["coco_keypoint_metrics"])
    (every,) = make_metrics(config, CATEGORIES)
    assert every.num_keypoints == 3
    true = [[[10.0, 10.0], [math.nan, math.nan], [30.0, 30.0]]]
    batch = hand.image([CAT], [(0.9, *CAT)], keypoints=true, detection_keypoints=true)
    every.add(batch)
    results = every.results()
    assert results["Keypoints_Precision/mAP ByCategory/cat"] == pytest.approx(1.0)
    assert results["Keypoints_Precision/mAP ByCategory/dog"] == -1.0
    config.MergeFrom(keypoint_config())
    dogs, cats = make_metrics(config, CATEGORIES)
    assert {name.rsplit("/", 1)[1] for name in dogs.names} == {"dog"}
    assert {name.rsplit("/", 1)[1] for name in cats.names} == {"cat"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('class_label: "cats"', r"class_label: 'cats' is no class of .*: name one of \['cat"),
        ('class_label: "owl"', "class_label: class 'owl' has no keypoints"),
        (f"{SIGMAS} {{ key: 'nos' value: 1 }}", r"\w+_sigmas\[nos\]: .* name one of \[.*'nose'"),
        (
            f"{SIGMAS} {{ key: 'nose' value: 0 }}",
            r"\w+_sigmas\[nose\]: is 0\. Remedy: give a number",
        ),
    ],
)
def test_keypoint_metrics_that_are_refused(text, message):
    field = r"^eval_config\.parameterized_metric\[0\]\.coco_keypoint_metrics\."
    with pytest.raises(ConfigError, match=field + message):
        make_metrics(keypoint_config(text), CATEGORIES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('metrics_set: "coco_detection_metric"', "did you mean 'coco_detection_metrics'"),
        (
            'include_metrics_per_category: true super_categories { key: "a" value: "cat,cow" }',
            r"^eval_config\.super_categories\[a\]: \['cow'\] are not in the label map",
        ),
        (f"{keypoint_config()} {keypoint_config()}", r"\[1\]: 'Keypoints_.*' is given twice"),
        ('metrics_set: "coco_keypoint_metrics"', "needs a label map whose classes have keypoints"),
        ('metrics_set: "lvis_detection_metrics"', "'lvis_box_metrics' needs .* 'dog' has none"),
    ],
)
def test_configurations_that_are_refused(text, message):
    with_keypoints = "class_label" in text
    categories = CATEGORIES if with_keypoints else [hand.CATEGORIES[0], {"id": 2, "name": "dog"}]
    with pytest.raises(UsageError, match=message):
        make_metrics(text_format.Parse(text, eval_pb2.EvalConfig()), categories)


def test_coco_has_no_values_without_groundtruth_of_a_class():
    results = results_of("coco_detection_metrics", hand.image([(9, 0, 0, 9, 9)], []))
    assert set(results.values()) == {-1.0}


@pytest.mark.usefixtures("no_charts")
def test_masks_as_a_model_finds_them():
    """Masks of the whole image, as boxes that fill it, have the golden values."""
    settings, arrays = golden_component("metrics")
    images = ["mask0", "mask1", "mask2"]
    batch = make_batch(images, [], [], arrays)
    height, width = arrays["mask0__gt_masks"].shape[1:]
    sizes = np.tile(np.int32([height, width]), (len(images), 1))
    masks = (stacked(images, f"{kind}_masks", arrays).astype(np.float32) for kind in ("det", "gt"))
    names = ["coco_mask_metrics", "pascal_voc_instance_segmentation_metrics"]
    accumulator = Accumulator(eval_pb2.EvalConfig(metrics_set=names), settings["categories"])
    whole = np.float32([0, 0, height, width])
    boxes = np.broadcast_to(whole, (*batch.detection_scores.shape, 4))
    batch = batch._replace(detection_boxes=boxes)
    encoded = encode_masks(*masks, batch, ImageSizes(None, sizes, sizes))
    accumulator.add(batch._replace(masks=encoded))
    expected = {**settings["results"]["coco_masks"], **settings["results"]["pascal_masks"]}
    assert accumulator.results.metrics == pytest.approx(expected, rel=1e-6, nan_ok=True)

"""CenterNet with keypoints: losses and detections of small maps that are made by hand.

`python -m benchmarks.conformance` compares the numbers of whole networks.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import inputs.pipeline  # noqa: F401  (registers the rules of readers)
from estimator_det.compat import tf
from estimator_det.config import pipeline, rules
from estimator_det.detectors.base import Groundtruth, make_detector
from estimator_det.detectors.center_net.center_net import CenterNetPredictions
from estimator_det.detectors.center_net.keypoint_refinement import (
    SCORE_DISTANCE_RATIO,
    Refinement,
    refine,
)
from estimator_det.errors import ConfigError
from estimator_det.protos import pipeline_pb2
from tests.detectors.keypoint_configs import LABEL_MAP, SIDE, small_config
from tests.graphs import evaluate

pytestmark = pytest.mark.usefixtures("small_network")
MAP = SIDE // 4
REFINEMENT = Refinement(4, 0.1, 3, 0.05, 1.2, 0.3, "min_distance", 1.0)


def logit(scores: np.ndarray) -> np.ndarray:
    return np.log(scores / (1.0 - scores)).astype(np.float32)


def perfect(config, boxes, classes, keypoints):
    """Maps that predict an object with keypoints at the center of each box."""
    detector = make_detector(config, is_training=False)
    shapes = {head.name: head.num_channels for head in detector._heads}
    maps = {name: np.zeros([1, MAP, MAP, count], np.float32) for name, count in shapes.items()}
    for name in ("object_center", "pose/keypoint/heatmap"):
        if name in maps:
            maps[name][:] = logit(np.float32(1e-3))
    for box, class_index, points in zip(boxes, classes, keypoints):
        top, left, bottom, right = np.array(box) * MAP
        y, x = (top + bottom) / 2, (left + right) / 2
        pixel = 0, int(y), int(x)
        maps["object_center"][(*pixel, class_index)] = logit(np.float32(0.9))
        maps["box/scale"][pixel] = bottom - top, right - left
        maps["box/offset"][pixel] = y - int(y), x - int(x)
        for k, (py, px) in enumerate(np.array(points) * MAP):
            found = 0, int(py), int(px)
            maps["pose/keypoint/heatmap"][(*found, k)] = logit(np.float32(0.8))
            maps["pose/keypoint/offset"][found] = py - int(py), px - int(px)
            # Half a pixel off, so that the heatmap has something to improve.
            maps["pose/keypoint/regression"][pixel][2 * k : 2 * k + 2] = (
                py - int(y) + 0.5,
                px - int(x),
            )
    return detector, {name: (tf.constant(each),) for name, each in maps.items()}


BOXES = [[0.1, 0.1, 0.6, 0.5], [0.5, 0.6, 0.9, 0.95]]
POINTS = [[[0.15, 0.3], [0.3, 0.15], [0.32, 0.45]], np.zeros([0, 2])]


def predictions_of(maps):
    images, features = tf.zeros([1, SIDE, SIDE, 3]), tf.zeros([1, MAP, MAP, 1])
    return CenterNetPredictions(images, tf.constant([[SIDE, SIDE, 3]]), (features,), maps)


def test_perfect_maps_have_little_loss_and_others_more():
    points = np.full([1, 2, 3, 2], np.nan, np.float32)
    points[0, 0] = POINTS[0]
    with tf.Graph().as_default():
        config = small_config()
        detector, maps = perfect(config, BOXES, [0, 1], POINTS)
        groundtruth = Groundtruth(
            boxes=tf.constant([BOXES], tf.float32),
            classes=tf.eye(2)[tf.newaxis],
            weights=tf.ones([1, 2]),
            valid=tf.constant([[True, True]]),
            keypoints=tf.constant(points),
        )
        right = detector.loss(predictions_of(maps), groundtruth)
        shifted = {
            name: tuple(tf.roll(each, 1, axis=2) for each in values)
            for name, values in maps.items()
        }
        wrong = detector.loss(predictions_of(shifted), groundtruth)
        padding = groundtruth._replace(valid=tf.constant([[False, False]]))
        no_rows = {key: x[:, :0] for key, x in groundtruth._asdict().items() if x is not None}
        none = detector.loss(predictions_of(maps), padding)
        empty = detector.loss(predictions_of(maps), Groundtruth(**no_rows))
        right, wrong, none, empty = evaluate([right, wrong, none, empty])
    terms = ("object_center", "box/scale", "box/offset", "pose/keypoint/heatmap")
    for name in (f"Loss/{term}" for term in terms):
        assert right.terms[name] < 0.05 * wrong.terms[name]
    assert right.divisors["Loss/object_center"] == 2
    assert right.divisors["Loss/pose/keypoint/heatmap"] == 3
    assert none.terms["Loss/box/scale"] == none.terms["Loss/pose/keypoint/regression"] == 0
    assert np.isfinite(list(empty.terms.values())).all()


@pytest.mark.parametrize("keypoints", [None, tf.zeros([1, 1, 2, 2])])
def test_groundtruth_has_the_keypoints_of_the_label_map(keypoints):
    boxes, ones = tf.constant([BOXES[:1]], tf.float32), tf.ones([1, 1])
    labels = Groundtruth(boxes, tf.eye(2)[tf.newaxis, :1], ones, ones > 0, keypoints=keypoints)
    detector, maps = perfect(small_config(), BOXES, [0, 1], POINTS)
    with pytest.raises(ConfigError, match=r"num_keypoints: must be above 2, .*; given: [02]\."):
        detector.loss(predictions_of(maps), labels)


@pytest.mark.parametrize("reader", ["train_input_reader", "eval_input_reader[0]"])
def test_readers_load_the_keypoints_that_the_model_learns(reader):
    loads = "{num_keypoints: 3}"
    config = pipeline.apply_overrides(
        pipeline_pb2.TrainEvalPipelineConfig(model=small_config()),
        [f"train_input_reader={loads}", f"eval_input_reader=[{loads}]"],
    )

    def faulty_counts(config):
        return [x.field for x in rules.check(config) if x.field.endswith("num_keypoints")]

    assert not faulty_counts(config)
    field = f"{reader}.num_keypoints"
    assert faulty_counts(pipeline.apply_overrides(config, [f"{field}=0"])) == [field]


def refined(candidates, scores, options):
    """The keypoint at (5, 4) of a box of 8 x 8, and its score."""
    point, box = tf.constant([[[[5.0, 4.0]]]]), tf.constant([[[0.0, 0.0, 8.0, 8.0]]])
    candidates, scores = tf.constant([candidates])[:, :, tf.newaxis], tf.constant([scores])
    points, scores = refine(point, candidates, scores[..., tf.newaxis], box, options)
    return points[0, 0, 0], scores[0, 0, 0]


@pytest.mark.parametrize(
    ("candidate", "score", "expected"),
    [
        ([4.5, 4.0], 0.7, [4.5, 4.0]),  # close
        ([4.5, 4.0], 0.05, [5.0, 4.0]),  # its score is too low
        ([9.5, 4.0], 0.7, [5.0, 4.0]),  # outside of the box
        ([2.0, 7.9], 0.7, [5.0, 4.0]),  # too far
    ],
)
def test_a_candidate_replaces_a_keypoint_only_if_it_is_near(candidate, score, expected):
    place, found = refined([candidate], [score], REFINEMENT)
    np.testing.assert_allclose(place, expected)
    np.testing.assert_allclose(found, score if expected == candidate else 0.05)


@pytest.mark.parametrize(
    ("ranking", "y", "score"),
    [
        ("min_distance", 5.2, 0.2),
        ("score_distance_ratio", 5.6, 0.9),  # .9 / 1.6 > .2 / 1.2
        ("score_scaled_distance_ratio", 5.6, 0.9),  # .9 / 1.4 > .2 / 1
        # The deviation of a box of 8 x 8 pixels is 5/6; the factor of its keypoint is 2.
        ("gaussian_weighted", 5.6, 0.9 * np.exp(-((0.6 / (5 / 3)) ** 2) / 2)),
    ],
)
def test_ranks_of_candidates(ranking, y, score):
    options = dataclasses.replace(REFINEMENT, ranking=ranking, deviations=(2.0,))
    place, found = refined([[5.2, 4.0], [5.6, 4.0]], [0.2, 0.9], options)
    np.testing.assert_allclose([place[0], found], [y, score], rtol=1e-5)


def test_the_nearest_candidate_decides_if_one_is_within_reach():
    options = dataclasses.replace(REFINEMENT, ranking=SCORE_DISTANCE_RATIO)
    # 3.5 is more than .3 * 1.2 * 8
    place, _ = refined([[5.1, 4.0], [8.5, 4.0]], [0.11, 0.9], options)
    np.testing.assert_allclose(place, [8.5, 4.0])


def detections_of(boxes, classes, keypoints, text="", **task):
    with tf.Graph().as_default():
        config = small_config(text)
        for name, value in task.items():
            setattr(config.center_net.keypoint_estimation_task[0], name, value)
        detector, maps = perfect(config, boxes, classes, keypoints)
        return evaluate(detector.postprocess(predictions_of(maps)).to_dict())


def test_overlapping_objects_are_suppressed_only_if_the_configuration_says_so():
    boxes = [*BOXES, [0.13, 0.13, 0.7, 0.6]]
    nms = """post_processing { batch_non_max_suppression {
        score_threshold: 0.5 iou_threshold: 0.5 } }"""
    every, kept = (
        detections_of(boxes, [0, 1, 0], [*POINTS, POINTS[0]], text) for text in ("", nms)
    )
    assert (every["detection_scores"][0] > 0.5).sum() == 3
    assert kept["num_detections"].tolist() == [2.0]
    classes = kept["detection_classes"][0][:2].tolist()
    assert sorted(classes) == [0, 1]
    figure = kept["detection_keypoints"][0][classes.index(0)]
    np.testing.assert_allclose(figure, POINTS[0], atol=1e-5)


def test_scores_are_calibrated_class_by_class():
    text = """post_processing { calibration_config { class_id_sigmoid_calibrations {
        class_id_sigmoid_parameters_map { key: 1 value { a: -10 b: 5 } } } } }"""
    results = []
    for each in ("", text):
        with tf.Graph().as_default():
            detector, maps = perfect(small_config(each), BOXES, [0, 1], POINTS)
            (logits,) = maps["object_center"]
            maps["object_center"] = (tf.where(logits > 0.0, logits, -200.0),)
            results.append(evaluate(detector.postprocess(predictions_of(maps)).to_dict()))
    plain, found = results
    assert sorted(plain["detection_classes"][0][:2]) == [0, 1]
    calibrated = np.where(found["detection_classes"][0] == 1, 1 / (1 + np.exp(5 - 9)), 0.9)
    expected = np.where(plain["detection_scores"] > 0.0, calibrated, 0.0)
    np.testing.assert_allclose(found["detection_scores"], expected, rtol=1e-5)
    assert found["num_detections"] == plain["num_detections"] == 2
    np.testing.assert_array_equal(found["detection_boxes"], plain["detection_boxes"])


def test_keypoints_that_are_moved_into_the_image_have_no_score():
    points = [[-0.1, 0.3], *POINTS[0][1:]]
    options = {"clip_out_of_frame_keypoints": True, "rescore_instances": True}
    free, clipped = (detections_of(BOXES[:1], [0], [points], **each) for each in ({}, options))
    assert free["detection_keypoints"][0, 0, 0, 0] < 0.0
    np.testing.assert_allclose(free["detection_keypoint_scores"][0, 0], [0.1, 0.8, 0.8], rtol=1e-5)
    assert clipped["detection_keypoints"][0, 0, 0, 0] == 0.0
    np.testing.assert_allclose(clipped["detection_keypoint_scores"][0, 0], [0, 0.8, 0.8], rtol=1e-5)
    np.testing.assert_allclose(clipped["detection_scores"][0, 0], 0.9 * 0.8, rtol=1e-5)


TASK = "keypoint_estimation_task[0]"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (f"{TASK}.predict_depth=true", TASK),
        (f"{TASK}.candidate_ranking_mode=nearest", f"{TASK}.candidate_ranking_mode"),
        ("keypoint_label_map_path=", "keypoint_label_map_path"),
        (f"{TASK}.loss=null", f"{TASK}.loss.localization_loss"),
        (f"{TASK}.loss.localization_loss.weighted_iou={{}}", f"{TASK}.loss.localization_loss"),
        ("keypoint_estimation_task+={task_name: 'pose'}", "keypoint_estimation_task[1].task_name"),
    ],
)
def test_what_is_not_supported_is_refused_at_its_field(change, path):
    config = pipeline_pb2.TrainEvalPipelineConfig(model=small_config())
    config = pipeline.apply_overrides(config, [f"model.center_net.{change}"])
    problems = [each for each in rules.check(config) if each.severity == "error"]
    assert any(path in each.field for each in problems), problems


def test_only_the_losses_of_a_loss_message_count():
    config = small_config()
    config.center_net.keypoint_estimation_task[0].loss.hard_example_miner.SetInParent()
    config = pipeline_pb2.TrainEvalPipelineConfig(model=config)
    (problem,) = (each for each in rules.check(config) if ".loss." in each.field)
    assert problem.field == f"model.center_net.{TASK}.loss.hard_example_miner"
    assert problem.severity == "warning" and "has no effect" in problem.message


def test_an_id_of_a_keypoint_is_a_place_among_all(tmp_path):
    # The detections have as many places as the tasks have keypoints; a later id would have none.
    config = small_config()
    path = tmp_path / "gap.pbtxt"
    path.write_text(LABEL_MAP.read_text().replace("id: 2 label", "id: 3 label"))
    config.center_net.keypoint_label_map_path = str(path)
    with pytest.raises(ConfigError, match=r"has the keypoint id 3, .*number them from 0 to 2"):
        make_detector(config, is_training=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"{TASK}.keypoint_class_name=figur", "'figur' has no keypoints in .*mean 'figure'"),
        (f"{TASK}.keypoint_class_name=ball", "'ball' has no keypoints in "),
        (f"{TASK}.keypoint_label_to_std[heap]=0.5", r"_std: 'heap' is not a .* mean 'head'"),
        (
            "keypoint_label_map_path=nowhere",
            r"^model\.center_net\.keypoint_label_map_path: nowhere:",
        ),
    ],
)
def test_a_label_map_has_what_a_task_names(change, message):
    config = pipeline_pb2.TrainEvalPipelineConfig(model=small_config())
    config = pipeline.apply_overrides(config, [f"model.center_net.{change}"])
    with pytest.raises(ConfigError, match=message):
        make_detector(config.model, is_training=True)

"""Frames of coordinates, class numbers and the metrics of an evaluation step."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import BatchDetections, Groundtruth
from estimator_det.errors import ConfigError
from estimator_det.protos import eval_pb2, pipeline_pb2
from inputs import schema
from inputs.label_map import LabelMap, read_label_map
from model_fn.drawing.boxes import _PALETTE
from model_fn.evaluation import eval_ops
from model_fn.evaluation.accumulator import Accumulator
from model_fn.evaluation.diagnostics import EVAL_DIAGNOSTICS, chart_summary
from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.pictures import IMAGES_TAG
from tests.model_fn.evaluation.test_pictures import decoded

pytestmark = pytest.mark.optimized

CATEGORIES: List[Any] = [
    {"id": 1, "name": "cat", "keypoints": [{"id": 0, "name": "nose"}, {"id": 1, "name": "tail"}]},
    {"id": 2, "name": "dog"},
]

# The first image is resized from 300 x 400 to 30 x 40 and padded; the second is not resized.
ORIGINAL = [[300, 400], [50, 60]]
REAL = [[30, 40, 3], [40, 48, 3]]
PADDED = (40, 80)
# In pixels of the originals; the second image has one box.
PIXELS = np.float32([[[30, 40, 150, 320], [150, 100, 270, 380]], [[10, 12, 40, 30], [0, 0, 0, 0]]])


def _features(**more: Any) -> Dict[str, tf.Tensor]:
    return {
        schema.IMAGE: tf.zeros([2, *PADDED, 3]),
        schema.TRUE_IMAGE_SHAPE: tf.constant(REAL),
        schema.ORIGINAL_SPATIAL_SHAPE: tf.constant(ORIGINAL),
        **more,
    }


def _normalized(sizes: Any) -> np.ndarray:
    """PIXELS of the originals as shares of images of such sizes, [2, 2]."""
    return PIXELS / np.tile(np.float32(sizes), 2)[:, np.newaxis]


def _groundtruth(**more: Any) -> Groundtruth:
    in_real = _normalized(ORIGINAL)
    share = np.float32(REAL)[:, :2] / PADDED
    return Groundtruth(
        boxes=tf.constant(in_real * np.tile(share, 2)[:, np.newaxis], tf.float32),
        classes=tf.constant([[[1.0, 0], [0, 1]], [[0, 1], [0, 0]]]),
        weights=tf.ones([2, 2]),
        valid=tf.constant([[True, True], [True, False]]),
        **more,
    )


def _detections() -> BatchDetections:
    """The boxes of the groundtruth, with classes from 0, as `postprocess` returns them."""
    boxes = tf.constant(_normalized(ORIGINAL))
    return BatchDetections(
        boxes=boxes,
        scores=tf.constant([[0.9, 0.8], [0.7, 0.0]]),
        classes=tf.constant([[0.0, 1.0], [1.0, 0.0]]),
        num=tf.constant([2.0, 1.0]),
        raw_boxes=boxes,
        raw_scores=tf.zeros([2, 2, 2]),
    )


def _batch(detections: BatchDetections, groundtruth: Groundtruth, features: Any) -> EvaluatedBatch:
    """The batch that metrics get."""
    parts = (detections, groundtruth, eval_ops.sizes_of(features))
    given = tf.nest.map_structure(lambda x: None if x is None else np.asarray(x), parts)
    return eval_ops.evaluated_batch(*given)


def _ops(
    detections: BatchDetections, groundtruth: Groundtruth, features: Any, text: str = ""
) -> Any:
    config = text_format.Parse(text, eval_pb2.EvalConfig())
    feed = eval_ops.EvaluationFeed(config, CATEGORIES)
    return feed.ops(detections, groundtruth, features)


@pytest.mark.parametrize("sizes", [ORIGINAL, None])
def test_metrics_get_pixels_of_the_original_image(sizes):
    """If its size is unknown, pixels of the real image in the network's input."""
    features = _features(**{schema.ORIGINAL_SPATIAL_SHAPE: sizes and tf.constant(sizes)})
    names = ("is_crowd", "difficult", "group_of", "verified_negatives", "not_exhaustive")
    flags = np.array([[True, False], [False, False]])
    groundtruth = _groundtruth(**{name: tf.constant(flags) for name in names})
    batch = _batch(_detections(), groundtruth, features)
    pixels = _normalized(ORIGINAL) * np.tile(np.float32(sizes or REAL)[:, :2], 2)[:, np.newaxis]
    np.testing.assert_allclose(batch.detection_boxes, pixels, rtol=1e-5)
    np.testing.assert_allclose(batch.boxes, pixels, rtol=1e-5)
    assert batch.boxes.dtype == batch.detection_boxes.dtype == np.float32
    np.testing.assert_array_equal(batch.detection_scores, _detections().scores)
    np.testing.assert_array_equal(batch.detection_classes, [[1, 2], [2, 1]])
    np.testing.assert_array_equal(batch.classes[:1], [[1, 2]])
    assert batch.classes[1, 0] == 2
    np.testing.assert_array_equal(batch.num_detections, [2, 1])
    np.testing.assert_array_equal(batch.num_boxes, [2, 1])
    integers = (batch.detection_classes, batch.classes, batch.num_detections, batch.num_boxes)
    assert {number.dtype for number in integers} == {np.dtype(np.int32)}
    for name in names:
        np.testing.assert_array_equal(getattr(batch, name), flags)
    assert batch.area is batch.keypoints is None
    annotated = groundtruth._replace(is_annotated=tf.constant([True, False]))
    batch = _batch(_detections(), annotated, features)
    np.testing.assert_array_equal(batch.num_detections, [2, 0])
    np.testing.assert_array_equal(batch.num_boxes, [2, 0])


def test_pictures_show_what_metrics_compare():
    """Boxes of the real image at each side, also of images that nobody annotated."""
    features = _features(**{schema.ORIGINAL_IMAGE: tf.zeros([2, *PADDED, 3], tf.uint8)})
    groundtruth = _groundtruth(is_annotated=tf.constant([True, False]))
    text = "num_visualizations: 4 skip_labels: true skip_scores: true"
    ops = _ops(_detections(), groundtruth, features, text)
    pictures = decoded(ops[IMAGES_TAG][0].numpy())
    assert [picture.shape for picture in pictures] == [(30, 80, 3), (40, 96, 3)]
    for k, picture in enumerate(pictures):
        box = _normalized(ORIGINAL)[k, 0] * (np.tile(REAL[k][:2], 2) - 1)
        corners = np.round(box).astype(int).reshape(2, 2)
        for side in np.split(picture, 2, axis=1):
            np.testing.assert_allclose(side[tuple(corners.T)], [_PALETTE[k + 1]] * 2, atol=25)
    assert IMAGES_TAG not in _ops(_detections(), groundtruth, features, "num_visualizations: 0")
    assert IMAGES_TAG not in _ops(_detections(), groundtruth, _features(), text)


@pytest.mark.usefixtures("no_charts")
def test_a_graph_gives_what_a_loop_gives():
    """A TPU sends one list of tensors, with the outputs of its cores one after the other."""
    config = eval_pb2.EvalConfig(metrics_set=["coco_detection_metrics", "pascal_voc_metrics"])
    crowd = [[True, False], [False, False]]
    loop = Accumulator(config, CATEGORIES)
    for _ in range(2):
        groundtruth = _groundtruth(is_crowd=tf.constant(crowd))
        loop.add(_batch(_detections(), groundtruth, _features()))
    expected = loop.results
    feed = eval_ops.EvaluationFeed(config, CATEGORIES)
    with tf.Graph().as_default(), tf1.Session() as session:
        make, tensors = feed.eval_metrics(
            _detections(),
            _groundtruth(is_crowd=tf.constant(crowd)),
            _features(),
            losses={"Loss/a": tf.constant(2.0), "Loss/total_loss": tf.constant(5.0)},
            learning_rate=tf.constant(0.25),
        )
        ops = make(*(tf.concat([tensor, tensor], 0) for tensor in tensors))
        session.run(tf1.local_variables_initializer())
        session.run([update for _, update in ops.values()])
        values = session.run({name: value for name, (value, _) in ops.items()})
    results = feed.accumulator.results
    assert results.metrics == expected.metrics
    assert results.details == expected.details and results.details["counts"]["images"] == 4
    assert results.matches.all_classes_merged().num_boxes == 4
    assert values.pop(EVAL_DIAGNOSTICS) == chart_summary(results.chart)
    more = {"Loss/a": 2.0, "Loss/total_loss": 5.0, "learning_rate": 0.25}
    numbers = {name: np.float32(value) for name, value in expected.metrics.items()}
    assert values == {**numbers, **more}
    assert 0 < results.metrics["PascalBoxes_Precision/mAP@0.5IOU"] <= 1


def test_categories(tmp_path):
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.model.ssd.num_classes = 2
    numbered = [{"id": 1, "name": "category_1"}, {"id": 2, "name": "category_2"}]
    assert eval_ops.make_categories(config) == numbered
    path = tmp_path / "map.pbtxt"
    path.write_text("item { id: 3 name: '/m/x' display_name: 'owl' } item { id: 1 name: 'cat' }")
    label_map: LabelMap = read_label_map(str(path))
    names = {entry["id"]: entry["name"] for entry in eval_ops.make_categories(config, label_map)}
    assert names == {3: "owl", 1: "cat"}
    config.eval_input_reader.add()
    config.eval_input_reader.add(label_map_path=str(path))
    assert {entry["id"] for entry in eval_ops.make_categories(config)} == {3, 1}


KEYPOINTS = "parameterized_metric { coco_keypoint_metrics { class_label: 'cat' } }"
POINTS = np.zeros([2, 2, 2, 2], np.float32)
FEWER = POINTS[:, :, :1]


def with_keypoints() -> Any:
    """Detections and groundtruth with keypoints: the corners of the boxes."""
    groundtruth = _groundtruth()
    detections = _detections()
    detected, corners = (tf.reshape(each.boxes, [2, 2, 2, 2]) for each in (detections, groundtruth))
    visibilities = tf.ones([2, 2, 2], tf.bool)
    return (
        detections._replace(keypoints=detected),
        groundtruth._replace(keypoints=corners, keypoint_visibilities=visibilities),
    )


def test_keypoints_are_in_pixels_of_the_original_image():
    batch = _batch(*with_keypoints(), _features())
    for found in (batch.detection_keypoints, batch.keypoints):
        np.testing.assert_allclose(found, PIXELS.reshape(2, 2, 2, 2), rtol=1e-5)
    assert batch.keypoint_visibilities.all()


MASKS = 'metrics_set: "coco_mask_metrics"'


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (MASKS, {}, "'coco_mask_metrics' needs masks, and the model finds boxes only.*: remove"),
        (MASKS, {"masks": (tf.ones([2, 2, 3, 5]), None)}, "set load_instance_masks: true in eval"),
        (KEYPOINTS, {"keypoints": (None, POINTS)}, "needs keypoints, and the model finds boxes"),
        (KEYPOINTS, {"keypoints": (POINTS, None)}, "set num_keypoints in eval_input_reader"),
        (KEYPOINTS, {"keypoints": (POINTS, FEWER)}, "needs 2 .*; num_keypoints of eval_inp.* is 1"),
        (KEYPOINTS, {"keypoints": (FEWER, POINTS)}, "needs 2 .*; the number of .* the model is 1"),
    ],
)
def test_sets_need_what_models_find_and_readers_load(text, changes, message):
    detections = _detections()._replace(**{name: pair[0] for name, pair in changes.items()})
    groundtruth = _groundtruth()._replace(**{name: pair[1] for name, pair in changes.items()})
    field = r"^eval_config\.(metrics_set\[0\]|parameterized_metric\[0\]): .*"
    with pytest.raises(ConfigError, match=field + message):
        _ops(detections, groundtruth, _features(), text)

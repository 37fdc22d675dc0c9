"""Frames of coordinates, class numbers and the metrics of an evaluation step."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Detections, Groundtruth
from estimator_det.protos import eval_pb2, pipeline_pb2
from inputs import schema
from inputs.label_map import LabelMap, read_label_map
from model_fn.evaluation import eval_ops
from model_fn.evaluation.metrics.base import EvaluatedBatch

CATEGORIES: List[Any] = [
    {"id": 1, "name": "cat", "keypoints": [{"id": 0, "name": "nose"}, {"id": 1, "name": "tail"}]},
    {"id": 2, "name": "dog"},
]

# Of 300 x 400 pixels, resized to 30 x 40 and padded to 40 x 80; then one of 50 x 60, not resized.
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


def _detections() -> Detections:
    """Those of the groundtruth, classes from 0, as `postprocess` gives them."""
    boxes = tf.constant(_normalized(ORIGINAL))
    return Detections(
        boxes=boxes,
        scores=tf.constant([[0.9, 0.8], [0.7, 0.0]]),
        classes=tf.constant([[0.0, 1.0], [1.0, 0.0]]),
        num=tf.constant([2.0, 1.0]),
        raw_boxes=boxes,
        raw_scores=tf.zeros([2, 2, 2]),
    )


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """The batch that metrics and diagnostics get, as tensors, and the arguments of pictures."""
    received: List[Any] = []

    def picture_ops(*arguments: Any, **options: Any) -> Dict[str, Any]:
        received.append((*arguments, options))
        return {}

    monkeypatch.setattr(eval_ops, "accumulator_ops", lambda _, x, __: received.append(x) or {})
    monkeypatch.setattr(eval_ops, "image_ops", picture_ops)
    return received


def _ops(detections: Detections, groundtruth: Groundtruth, features: Any, text: str = "") -> Any:
    return eval_ops.evaluation_ops(
        detections,
        groundtruth,
        features,
        eval_config=text_format.Parse(text, eval_pb2.EvalConfig()),
        categories=CATEGORIES,
        handle_results=lambda _: None,
    )


@pytest.mark.parametrize("sizes", [ORIGINAL, None])
def test_metrics_get_pixels_of_the_original_image(
    sizes: Any, received: List[EvaluatedBatch]
) -> None:
    """Without its size, those of the real image in the network's input."""
    features = _features(**{schema.ORIGINAL_SPATIAL_SHAPE: sizes and tf.constant(sizes)})
    fields = {
        name: tf.constant([[True, False], [False, False]])
        for name in ("is_crowd", "difficult", "group_of", "verified_negatives", "not_exhaustive")
    }
    _ops(_detections(), _groundtruth(**fields), features)
    (batch,) = received
    pixels = _normalized(ORIGINAL) * np.tile(np.float32(sizes or REAL)[:, :2], 2)[:, np.newaxis]
    np.testing.assert_allclose(batch.detection_boxes, pixels, rtol=1e-5)
    np.testing.assert_allclose(batch.boxes, pixels, rtol=1e-5)
    np.testing.assert_array_equal(batch.detection_scores, _detections().scores)
    np.testing.assert_array_equal(batch.detection_classes, [[1, 2], [2, 1]])
    np.testing.assert_array_equal(batch.classes[:1], [[1, 2]])
    assert batch.classes[1, 0] == 2
    np.testing.assert_array_equal(batch.num_detections, [2, 1])
    np.testing.assert_array_equal(batch.num_boxes, [2, 1])
    integers = (batch.detection_classes, batch.classes, batch.num_detections, batch.num_boxes)
    assert {number.dtype for number in integers} == {tf.int32}
    for name, value in fields.items():
        assert getattr(batch, name) is value
    assert batch.area is batch.masks is None


def test_pictures(received: List[Any]) -> None:
    """They have boxes and keypoints of the real image, also of images that nobody annotated."""
    detections, groundtruth = with_keypoints()
    share = np.float32(REAL)[:, np.newaxis, np.newaxis, :2] / PADDED
    pixels, channels = tf.zeros([2, *PADDED, 3], tf.uint8), tf.ones([2, *PADDED, 2], tf.uint8)
    annotated = tf.constant([True, False])
    features = _features(**{schema.ORIGINAL_IMAGE: pixels, schema.ADDITIONAL_CHANNELS: channels})
    text = (
        "min_score_threshold: 0.25 max_num_boxes_to_visualize: 7 num_visualizations: 4 "
        "keypoint_edge { start: 3 end: 1 } skip_scores: true"
    )
    _ops(
        detections._replace(keypoints=detections.keypoints * share),
        groundtruth._replace(is_annotated=annotated),
        features,
        text,
    )
    batch, (picture, shapes, counts, arguments) = received
    np.testing.assert_array_equal(batch.num_detections, [2, 0])
    np.testing.assert_array_equal(batch.num_boxes, [2, 0])
    np.testing.assert_array_equal(counts, [[2, 1], [2, 1]])
    assert (arguments["max_images"], arguments["names"]) == (4, {1: "cat", 2: "dog"})
    options = arguments["options"]
    assert (options.min_score, options.max_boxes) == (0.25, 7)
    assert options.keypoint_edges == ((3, 1),)
    assert (options.skip_labels, options.skip_scores) == (False, True)
    assert picture.image is pixels and picture.additional_channels is channels
    for boxes in (picture.boxes, picture.detection_boxes):
        np.testing.assert_allclose(boxes, _normalized(ORIGINAL), rtol=1e-5)
    for keypoints in (picture.keypoints, picture.detection_keypoints):
        expected = _normalized(ORIGINAL).reshape(2, 2, 2, 2)
        np.testing.assert_allclose(keypoints, expected, rtol=1e-5)
    np.testing.assert_array_equal(picture.detection_classes, [[1, 2], [2, 1]])
    np.testing.assert_array_equal(shapes, REAL)
    received.clear()
    _ops(_detections(), _groundtruth(), features)
    assert received[1][0].keypoints is None
    received.clear()
    _ops(detections, groundtruth, features, "num_visualizations: 0")
    assert len(received) == 1


def test_what_a_tpu_sends_gives_the_same(received: List[EvaluatedBatch]) -> None:
    """Through one list of tensors, those of two cores after each other."""
    crowd = [[True, False], [False, False]]
    with tf.Graph().as_default(), tf1.Session() as session:
        make, tensors = eval_ops.eval_metrics(
            _detections(),
            _groundtruth(is_crowd=tf.constant(crowd)),
            _features(),
            eval_config=eval_pb2.EvalConfig(),
            categories=CATEGORIES,
            losses={"Loss/a": tf.constant(2.0), "Loss/total_loss": tf.constant(5.0)},
            learning_rate=tf.constant(0.25),
            handle_results=lambda _: None,
        )
        ops = make(*(tf.concat([tensor, tensor], 0) for tensor in tensors))
        session.run(tf1.local_variables_initializer())
        session.run([update for _, update in ops.values()])
        values = session.run({name: value for name, (value, _) in ops.items()})
        batch = EvaluatedBatch(*(v if v is None else session.run(v) for v in received[0]))
    assert values == {"Loss/a": 2.0, "Loss/total_loss": 5.0, "learning_rate": 0.25}
    np.testing.assert_allclose(batch.boxes, np.tile(PIXELS, [2, 1, 1]), rtol=1e-5)
    np.testing.assert_array_equal(batch.is_crowd, crowd * 2)
    np.testing.assert_array_equal(batch.num_boxes, [2, 1, 2, 1])


def test_categories(tmp_path: Any) -> None:
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


def test_masks_reach_the_metrics_that_compare_them(received: List[EvaluatedBatch]) -> None:
    detected, masks = tf.ones([2, 2, 3, 5]), tf.ones([2, 2, *PADDED])
    detections = _detections()._replace(masks=detected)
    text = 'metrics_set: "coco_mask_metrics" metrics_set: "coco_detection_metrics"'
    _ops(detections, _groundtruth(masks=masks), _features(), text)
    (both,) = received
    assert both.masks.detected is detected and both.masks.masks is masks
    np.testing.assert_array_equal(both.masks.real_sizes, np.array(REAL)[:, :2])
    np.testing.assert_array_equal(both.masks.image_sizes, ORIGINAL)
    received.clear()
    _ops(detections, _groundtruth(masks=masks), _features())
    assert received[0].masks is None  # No set compares them.


KEYPOINTS = "parameterized_metric { coco_keypoint_metrics { class_label: 'cat' } }"


POINTS = np.zeros([2, 2, 2, 2], np.float32)


def with_keypoints() -> Any:
    """Detections and groundtruth with keypoints: the corners of the boxes."""
    detections, groundtruth = _detections(), _groundtruth()
    corners = [tf.reshape(one.boxes, [2, 2, 2, 2]) for one in (detections, groundtruth)]
    visibilities = tf.ones([2, 2, 2], tf.bool)
    return (
        detections._replace(keypoints=corners[0]),
        groundtruth._replace(keypoints=corners[1], keypoint_visibilities=visibilities),
    )


def test_keypoints_are_in_pixels_of_the_original_image(received: List[EvaluatedBatch]) -> None:
    detections, groundtruth = with_keypoints()
    # Those of the model are of the padded image, as its boxes are before they are cut.
    share = np.float32(REAL)[:, np.newaxis, np.newaxis, :2] / PADDED
    detections = detections._replace(keypoints=detections.keypoints * share)
    _ops(detections, groundtruth, _features(), KEYPOINTS)
    batch = received[0]
    for found in (batch.detection_keypoints, batch.keypoints):
        np.testing.assert_allclose(found, PIXELS.reshape(2, 2, 2, 2), rtol=1e-5)
    assert batch.keypoint_visibilities is groundtruth.keypoint_visibilities


MASKS = 'metrics_set: "coco_mask_metrics"'


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (MASKS, {}, "'coco_mask_metrics' needs masks, and the model finds boxes only; remove"),
        (
            MASKS,
            {"masks": (tf.ones([2, 2, 3, 5]), None)},
            "the groundtruth has none; .*set load_instance_masks: true in eval_input",
        ),
        (KEYPOINTS, {"keypoints": (None, POINTS)}, "needs keypoints, and the model finds boxes"),
        (KEYPOINTS, {"keypoints": (POINTS, None)}, "set num_keypoints in eval_input_reader"),
        (
            KEYPOINTS,
            {"keypoints": (POINTS, POINTS[:, :, :1])},
            "needs 2 keypoints, .*; num_keypoints of eval_input_reader is 1. Correct",
        ),
        (
            KEYPOINTS,
            {"keypoints": (POINTS[:, :, :1], POINTS)},
            "needs 2 keypoints, .*; num_keypoints of the keypoint_box_coder is 1. Correct",
        ),
    ],
)
def test_sets_need_what_models_find_and_readers_load(text: str, changes: Any, message: str) -> None:
    detections = _detections()._replace(**{name: pair[0] for name, pair in changes.items()})
    groundtruth = _groundtruth()._replace(**{name: pair[1] for name, pair in changes.items()})
    field = r"^eval_config\.(metrics_set|parameterized_metric\[0\]): .*"
    with pytest.raises(ConfigError, match=field + message):
        _ops(detections, groundtruth, _features(), text)

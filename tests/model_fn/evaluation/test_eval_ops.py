"""What an evaluation passes to its metrics and pictures."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.detectors.base import Detections, Groundtruth
from estimator_det.protos import eval_pb2
from inputs import schema
from model_fn.evaluation import eval_ops

CATEGORIES = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_keypoints_channels_and_labeled_classes_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures: List[Any] = []
    batches: List[Any] = []
    monkeypatch.setattr(
        eval_ops, "image_ops", lambda images, batch, *_: pictures.append((images, batch)) or {}
    )
    monkeypatch.setattr(eval_ops, "metric_ops", lambda _, batch: batches.append(batch) or {})
    # The real image is the upper half of the padded one.
    features: Dict[str, tf.Tensor] = {
        schema.IMAGE: tf.zeros([1, 8, 4, 3]),
        schema.TRUE_IMAGE_SHAPE: tf.constant([[4, 4, 3]]),
        schema.ORIGINAL_IMAGE: tf.zeros([1, 8, 4, 3], tf.uint8),
        schema.ADDITIONAL_CHANNELS: tf.ones([1, 8, 4, 2], tf.uint8),
    }
    points = tf.constant([[[[0.25, 0.5]]]])
    detections = Detections(
        boxes=tf.zeros([1, 1, 4]),
        scores=tf.zeros([1, 1]),
        classes=tf.zeros([1, 1]),
        num=tf.ones([1]),
        raw_boxes=tf.zeros([1, 1, 4]),
        raw_scores=tf.zeros([1, 1, 3]),
        keypoints=points,
    )
    groundtruth = Groundtruth(
        boxes=tf.zeros([1, 1, 4]),
        classes=tf.ones([1, 1, 2]),
        weights=tf.ones([1, 1]),
        valid=tf.ones([1, 1], tf.bool),
        keypoints=points,
        labeled_classes=tf.constant([[0.0, 1.0]]),
    )
    config = eval_pb2.EvalConfig(keypoint_edge=[eval_pb2.KeypointEdge(start=3, end=1)])
    eval_ops.evaluation_ops(
        detections, groundtruth, features, eval_config=config, categories=CATEGORIES
    )
    ((images, picture),) = pictures
    assert images._options.keypoint_edges == ((3, 1),)
    np.testing.assert_allclose(picture.keypoints, [[[[0.5, 0.5]]]])
    np.testing.assert_allclose(picture.detection_keypoints, [[[[0.5, 0.5]]]])
    assert picture.additional_channels is features[schema.ADDITIONAL_CHANNELS]
    assert batches[0].labeled_classes is groundtruth.labeled_classes

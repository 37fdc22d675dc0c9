from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.detectors.two_stage import detections
from estimator_det.detectors.two_stage.outputs import RegionOutput, Regions
from tests.detectors.two_stage.configs import small_config


def test_frames() -> None:
    frame = detections.Frame(tf.zeros([1, 40, 80, 3]), tf.constant([[20, 40, 3]]))
    boxes = tf.constant([[[5.0, 10.0, 20.0, 40.0]]])
    np.testing.assert_allclose(frame.normalize_to_real_image(boxes), [[[0.25, 0.25, 1, 1]]])
    np.testing.assert_allclose(frame.to_pixels(frame.normalize_to_real_image(boxes)), boxes)
    whole = detections.Frame(frame.inputs)
    np.testing.assert_allclose(whole.normalize_to_real_image(boxes), [[[0.125, 0.125, 0.5, 0.5]]])
    np.testing.assert_allclose(whole.to_pixels(whole.normalize_to_real_image(boxes)), boxes)


def test_detections_by_hand() -> None:
    regions = Regions(
        tf.constant([[[0.0, 0, 20, 20], [0, 0, 10, 10], [0, 0, 20, 20]]]), tf.constant([2])
    )
    codes = np.zeros([1, 3, 2, 4], np.float32)
    codes[0, 1, 0, 1] = 10.0  # of class 0, one width to the right
    logits = np.log(np.float32([[[1, 1, 8], [2, 7, 1], [1, 8, 1]]]))
    output = RegionOutput(tf.zeros([]), tf.constant(codes), tf.constant(logits))
    config = small_config().faster_rcnn.second_stage_post_processing
    config.batch_non_max_suppression.score_threshold = 0.15
    frame = detections.Frame(tf.zeros([1, 40, 40, 3]), tf.constant([[20, 20, 3]]))
    found = detections.make_postprocessing(config).detect(regions, output, frame)
    # The padding row yields nothing, and a class nothing that is not above the threshold.
    assert found.num.numpy().tolist() == [2]
    np.testing.assert_allclose(found.boxes[0, :2], [[0, 0, 1, 1], [0, 0.5, 0.5, 1]], atol=1e-6)
    np.testing.assert_allclose(found.scores[0, :3], [0.8, 0.7, 0], rtol=1e-5)
    assert found.classes.numpy()[0, :2].tolist() == [1, 0]
    assert found.anchor_indices.numpy()[0, :2].tolist() == [0, 1]
    np.testing.assert_allclose(found.raw_boxes[0, 1], [0, 0.5, 0.5, 1], atol=1e-6)


@pytest.mark.parametrize("change", ["true", "false"])
def test_detections_are_fractions_of_the_real_image_in_any_case(change: str) -> None:
    config = small_config(
        "second_stage_post_processing { batch_non_max_suppression { "
        f"change_coordinate_frame: {change} }} }}"
    ).faster_rcnn.second_stage_post_processing
    regions = Regions(tf.constant([[[0.0, 0.0, 10.0, 5.0]]]), tf.constant([1]))
    output = RegionOutput(tf.zeros([]), tf.zeros([1, 1, 1, 4]), tf.constant([[[0.0, 9.0, 0.0]]]))
    frame = detections.Frame(tf.zeros([1, 40, 40, 3]), tf.constant([[20, 20, 3]]))
    found = detections.make_postprocessing(config).detect(regions, output, frame)
    np.testing.assert_allclose(found.boxes[0, 0], [0, 0, 0.5, 0.25], atol=1e-6)

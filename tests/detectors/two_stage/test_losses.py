from __future__ import annotations

import numpy as np

from estimator_det.compat import tf
from estimator_det.detectors.base import Groundtruth
from estimator_det.detectors.two_stage import losses
from estimator_det.detectors.two_stage.outputs import RegionOutput, Regions, RpnOutput
from tests.detectors.two_stage.configs import small_config

# One box in the first image, none in the second; pixels.
LABELS = Groundtruth(
    boxes=tf.constant([[[0.0, 0.0, 40.0, 40.0]], [[0.0] * 4]]),
    classes=tf.constant([[[0.0, 1.0]], [[0.0, 0.0]]]),
    weights=tf.constant([[1.0], [0.0]]),
    valid=tf.constant([[True], [False]]),
)
ALL_SAMPLED = "first_stage_minibatch_size: 100 first_stage_positive_balance_fraction: 1"
LOG2, LOG3 = np.log(2), np.log(3)


def rpn_terms(overrides: str = "", **labels: tf.Tensor) -> list:
    config = small_config(f"{ALL_SAMPLED} {overrides}").faster_rcnn
    anchors = tf.constant([[0.0, 0.0, 40.0, 40.0], [0, 0, 20, 40], [50, 50, 60, 60]])
    codes = tf.constant([[[2.0, 0.5, 0.0, 0.0]] * 3] * 2)
    output = RpnOutput(tf.zeros([]), anchors, codes, tf.zeros([2, 3, 2]))
    found = losses.make_rpn_loss(config)(output, LABELS._replace(**labels))
    return [float(found.terms[name]) for name in (losses.RPN_LOCALIZATION, losses.RPN_OBJECTNESS)]


def test_rpn_loss_by_hand() -> None:
    # Two anchors of the first image are sampled, and the second one is ignored; one is matched,
    # and its smooth L1 is 1.5 + 0.125. Each of the two images counts half.
    np.testing.assert_allclose(rpn_terms(), [1.625 / 2 / 2, LOG2], rtol=1e-6)
    weights = "first_stage_localization_loss_weight: 2 first_stage_objectness_loss_weight: 3"
    np.testing.assert_allclose(rpn_terms(weights), [1.625 / 2, 3 * LOG2], rtol=1e-6)
    annotated = rpn_terms(is_annotated=tf.constant([True, False]))
    np.testing.assert_allclose(annotated, [1.625 / 4, LOG2 / 2], rtol=1e-6)


def region_terms(overrides: str = "", num: tuple = (2, 1)) -> list:
    boxes = tf.constant([[[0.0, 0, 40, 40], [50, 50, 60, 60], [0, 0, 40, 40]]] * 2)
    codes = np.full([2, 3, 2, 4], 1e6, np.float32)
    codes[0, 0, 1] = [2.0, 0.5, 0.0, 0.0]
    logits = np.zeros([2, 3, 3], np.float32)
    logits[:, 2] = [0, 50, 0]
    output = RegionOutput(tf.zeros([]), tf.constant(codes), tf.constant(logits))
    made = losses.make_region_loss(small_config(overrides).faster_rcnn)
    found = made(Regions(boxes, tf.constant(num)), output, LABELS)
    names = (losses.REGION_LOCALIZATION, losses.REGION_CLASSIFICATION)
    return [float(found.terms[name]) for name in names]


def test_region_loss_by_hand() -> None:
    # Padding rows do not count; each image divides by its regions, and counts half.
    np.testing.assert_allclose(region_terms(), [1.625 / 2 / 2, LOG3], rtol=1e-6)
    np.testing.assert_allclose(region_terms(num=(2, 0)), [1.625 / 2 / 2, LOG3 / 2], rtol=1e-6)


def test_region_loss_as_configured() -> None:
    weights = "second_stage_localization_loss_weight: 2 second_stage_classification_loss_weight: 3"
    np.testing.assert_allclose(region_terms(weights), [1.625 / 2, 3 * LOG3], rtol=1e-6)
    # Three sigmoids a region.
    sigmoid = "second_stage_classification_loss { weighted_sigmoid {} }"
    np.testing.assert_allclose(region_terms(sigmoid)[1], 3 * LOG2, rtol=1e-6)


def test_the_hardest_regions() -> None:
    # One region of each image; the wrong padding row is not among them.
    mined = region_terms(
        "hard_example_miner { num_hard_examples: 1 loss_type: BOTH iou_threshold: 0.9 }"
    )
    np.testing.assert_allclose(mined, [1.625 / 4, LOG3 / 4 + LOG3 / 2], rtol=1e-6)


def test_code_of_the_target_class() -> None:
    codes = tf.reshape(tf.range(24.0), [1, 2, 3, 4])
    targets = tf.one_hot([[2, 0]], 4)
    found = losses.select_class_codes(codes, targets)
    np.testing.assert_array_equal(found, [[[4, 5, 6, 7], [0, 0, 0, 0]]])
    np.testing.assert_array_equal(
        losses.select_class_codes(codes[:, :, :1], targets), codes[:, :, 0]
    )

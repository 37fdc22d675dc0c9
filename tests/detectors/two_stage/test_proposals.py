"""The first stage: anchors, proposals, targets and loss, by hand; its options."""

from __future__ import annotations

import numpy as np

from estimator_det.boxes.matching import IGNORED, UNMATCHED
from estimator_det.boxes.nms.kernels import NmsOptions
from estimator_det.compat import tf
from estimator_det.detectors.two_stage import proposals, regions
from estimator_det.detectors.two_stage.proposals import RpnOutput, Sampling
from tests.detectors.two_stage.configs import LABELS, SCENE, small_config

ANCHORS = np.float32([[0, 0, 64, 64], [-1, 0, 9, 9], [5, 5, 65, 9], [3, 3, 4, 4], [0, 0, 9, 65]])
WINDOW = np.float32([0, 0, 64, 64])


def test_anchors_across_the_border_are_left_out():
    assert proposals._rows_inside(tf.constant(ANCHORS), tf.constant(WINDOW)).tolist() == [0, 3]
    # The same where they are known at run time only.
    traced = tf.function(lambda *args: proposals._rows_inside(*args))
    assert traced(tf.constant(ANCHORS), tf.constant(WINDOW)).numpy().tolist() == [0, 3]


def network(overrides: str = "", is_training: bool = False) -> proposals.ProposalNetwork:
    return proposals.make_proposal_network(small_config(overrides).faster_rcnn, is_training)


def test_proposals_by_hand():
    anchors = np.float32([[0, 0, 20, 20], [1, 0, 20, 20], [40, 40, 60, 60], [30, 0, 50, 20]])
    logits = np.log(np.float32([[[1, 4], [1, 3], [1, 1], [1, 9]]]))
    codes = np.zeros([1, 4, 4], np.float32)
    codes[0, 2, 0] = 10.0  # one height down
    with tf.GradientTape() as tape:
        codes = tf.constant(codes)
        tape.watch(codes)
        output = RpnOutput(tf.zeros([]), tf.constant(anchors), codes, tf.constant(logits))
        found = network().propose(output, tf.constant([[0.0, 0.0, 64.0, 50.0]]))
    assert tape.gradient(found.regions.boxes, codes) is None
    # The second overlaps the first too much; the third is cut to the window.
    expected = [[30, 0, 50, 20], [0, 0, 20, 20], [60, 40, 64, 50]]
    assert found.regions.num.numpy().tolist() == [3]
    np.testing.assert_allclose(found.regions.boxes[0, :3], expected, atol=1e-4)
    np.testing.assert_allclose(found.scores[0, :4], [0.9, 0.8, 0.5, 0.0], rtol=1e-5)
    np.testing.assert_allclose(found.multiclass_scores[0, 0], [0.1, 0.9], rtol=1e-5)
    np.testing.assert_allclose(found.raw_boxes[0, 2], [60, 40, 80, 60], rtol=1e-5)
    few = network("first_stage_max_proposals: 1 first_stage_nms_score_threshold: 0.85")
    few_found = few.propose(output, tf.constant([[0.0, 0.0, 64.0, 64.0]])).regions
    assert few_found.boxes.shape == (1, 1, 4) and few_found.num.numpy().tolist() == [1]


def test_first_stage_as_configured():
    found = network(
        "first_stage_max_proposals: 300 first_stage_nms_iou_threshold: 0.5 "
        "first_stage_nms_score_threshold: 0.25 first_stage_box_predictor_depth: 16 "
        "first_stage_box_predictor_kernel_size: 5 first_stage_atrous_rate: 2"
    )
    assert found.nms == NmsOptions(
        0.25, 0.5, max_per_class=300, max_total=300, static_candidates=20
    )
    assert (found.head.depth, found.head.kernel_size, found.head.atrous_rate) == (16, 5, 2)


def test_static_kernel_where_asked_for():
    static = "use_static_shapes: true"
    assert network(static, is_training=True).nms.static_shapes
    assert not network(static).nms.static_shapes
    assert network(f"{static} use_static_shapes_for_eval: true").nms.static_shapes


def test_anchors_are_dropped_in_training_or_clipped():
    assert network(is_training=True).drops_crossing and not network().drops_crossing
    assert not network("clip_anchors_to_image: true", is_training=True).drops_crossing


def test_anchors_are_objects_background_or_ignored():
    loss = proposals.make_rpn_loss(small_config().faster_rcnn)
    anchors = tf.constant(
        [
            [0.0, 0.0, 50.0, 100.0],  # the first box
            [0.0, 0.0, 50.0, 200.0],  # half of it in common: neither
            [60.0, 0.0, 90.0, 40.0],  # background
            [60.0, 100.0, 70.0, 110.0],  # far too small, but the best of the second box
        ]
    )
    found = loss._assign(anchors, LABELS)
    assert found.matches.numpy().tolist() == [[0, IGNORED, UNMATCHED, 1]]
    assert found.class_targets.numpy()[0, :, 0].tolist() == [1, 0, 0, 1]
    assert found.class_weights.numpy()[0, :, 0].tolist() == [1, 0, 1, 1]
    np.testing.assert_allclose(found.box_targets[0, 0], np.zeros(4), atol=1e-6)


def test_each_stage_has_its_own_sample():
    config = small_config(
        "first_stage_minibatch_size: 7 first_stage_positive_balance_fraction: 0.375 "
        "second_stage_batch_size: 5 second_stage_balance_fraction: 0.625"
    ).faster_rcnn
    assert proposals.make_rpn_loss(config).sampling == Sampling(7, 0.375)
    assert regions.make_region_sampler(config).sampling == Sampling(5, 0.625)


ALL_SAMPLED = "first_stage_minibatch_size: 100 first_stage_positive_balance_fraction: 1"
LOG2 = np.log(2)


def rpn_terms(overrides: str = "", **labels: tf.Tensor) -> list:
    config = small_config(f"{ALL_SAMPLED} {overrides}").faster_rcnn
    anchors = tf.constant([[0.0, 0.0, 40.0, 40.0], [0, 0, 20, 40], [50, 50, 60, 60]])
    codes = tf.constant([[[2.0, 0.5, 0.0, 0.0]] * 3] * 2)
    output = RpnOutput(tf.zeros([]), anchors, codes, tf.zeros([2, 3, 2]))
    found = proposals.make_rpn_loss(config)(output, SCENE._replace(**labels))
    return [
        float(found.terms[name]) for name in (proposals.RPN_LOCALIZATION, proposals.RPN_OBJECTNESS)
    ]


def test_rpn_loss_by_hand():
    # Two anchors of the first image are sampled, and the second one is ignored; one is matched,
    # and its smooth L1 is 1.5 + 0.125. Each of the two images counts half.
    np.testing.assert_allclose(rpn_terms(), [1.625 / 2 / 2, LOG2], rtol=1e-6)
    weights = "first_stage_localization_loss_weight: 2 first_stage_objectness_loss_weight: 3"
    np.testing.assert_allclose(rpn_terms(weights), [1.625 / 2, 3 * LOG2], rtol=1e-6)
    light = rpn_terms(weights=tf.constant([[0.5], [0.0]]))  # one box per image
    np.testing.assert_allclose(light, [0.5 * 1.625 / 4, LOG2], rtol=1e-6)
    annotated = rpn_terms(is_annotated=tf.constant([True, False]))
    np.testing.assert_allclose(annotated, [1.625 / 4, LOG2 / 2], rtol=1e-6)

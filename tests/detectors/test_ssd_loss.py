from __future__ import annotations

import dataclasses
from typing import Any, Dict

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors import Predictions, ssd_loss
from estimator_det.detectors.ssd_loss import SsdLoss, make_ssd_loss
from estimator_det.losses.localization import LOCALIZATION_LOSSES
from estimator_det.losses.mining import MinedLosses
from tests.detectors.configs import groundtruth, small_config, small_detector
from tests.graphs import evaluate

# Two anchors on the boxes of image 0, one on the first box of image 1, one on nothing.
ANCHORS = [[0.1, 0.1, 0.6, 0.5], [0.3, 0.4, 0.9, 0.9], [0.0, 0.0, 0.4, 0.4], [0.9, 0.0, 1.0, 0.1]]
LOSSLESS = "matcher { argmax_matcher { force_match_for_each_row: false } } "


def make_loss(overrides: str = "", is_training: bool = True) -> SsdLoss:
    return make_ssd_loss(small_config(LOSSLESS + overrides).ssd, is_training)


def predictions(columns: int = 3, encodings: Any = 0.0) -> Predictions:
    return Predictions(
        inputs=tf.zeros([2, 8, 8, 3]),
        feature_maps=(),
        anchors=tf.constant(ANCHORS),
        box_encodings=tf.zeros([2, 4, 4]) + encodings,
        class_logits=tf.zeros([2, 4, columns]),
    )


def terms(overrides: str = "", truth: Any = None, **options: Any) -> Dict[str, float]:
    found = make_loss(overrides)(predictions(**options), truth or groundtruth())
    return {name.split("/")[1].split("_")[0]: float(value) for name, value in found.terms.items()}


LOG_2 = np.log(2.0)
# Each of 2 x 4 anchors has 3 class columns, at logit 0 each costs log 2; three anchors match.


def test_normalizers_and_weights():
    found = terms(
        "normalize_loc_loss_by_codesize: true loss { classification_weight: 2 "
        "localization_weight: 5 }",
        encodings=2.0,
    )
    assert found["classification"] == pytest.approx(2 * 24 * LOG_2 / 3)
    assert found["localization"] == pytest.approx(5 * 18.0 / 3 / 4)


def test_normalizer_is_the_sum_of_weights_but_at_least_one():
    light = groundtruth()._replace(weights=tf.constant([[0.5, 1.0], [0.0, 1.0]]))
    found = terms(truth=light)
    matched = 3 * (0.5 + 1.0 + 0.0)  # image 1 has its only match at weight 0
    assert found["classification"] == pytest.approx((matched + 3 * 5) * LOG_2 / 1.5)
    none = groundtruth()._replace(valid=tf.zeros([2, 2], tf.bool))
    found = terms(truth=none, encodings=2.0)
    assert found == {"classification": pytest.approx(24 * LOG_2), "localization": 0.0}
    # Parts of a batch add up their sums before they are compared with 1.
    for truth, total in ((light, 1.5), (none, 0.0)):
        divisors = make_loss()(predictions(), truth).divisors
        assert [float(divisor) for divisor in divisors.values()] == [total, total]


def test_padding_rows_change_nothing():
    assert terms(truth=groundtruth(3), encodings=1.0) == terms(encodings=1.0)


@pytest.mark.parametrize(
    ("overrides", "columns", "unmatched", "matched"),
    [
        ("", 3, [1, 0, 0], [0, 1, 0]),
        ("encode_background_as_zeros: true", 3, [0, 0, 0], [0, 1, 0]),
        ("add_background_class: false", 2, [1, 0], [1, 0]),
        ("add_background_class: false encode_background_as_zeros: true", 2, [0, 0], [1, 0]),
    ],
)
def test_background(overrides, columns, unmatched, matched):
    targets = make_loss(overrides).assign(tf.constant(ANCHORS), groundtruth())
    assert targets.class_targets.shape == (2, 4, columns)
    np.testing.assert_array_equal(targets.class_targets[0, 0], matched)
    np.testing.assert_array_equal(targets.class_targets[0, 3], unmatched)


def test_confidences_as_targets_in_training_alone():
    truth = groundtruth()._replace(confidences=0.5 * groundtruth().classes)
    overrides = "use_confidences_as_targets: true implicit_example_weight: 0.25"
    targets = make_loss(overrides).assign(tf.constant(ANCHORS), truth)
    np.testing.assert_allclose(targets.class_targets[0, 0], [0, 0.5, 0])
    np.testing.assert_allclose(targets.class_weights[0, 3], [0.25] * 3)
    without = make_loss(overrides + " add_background_class: false")
    targets = without.assign(tf.constant(ANCHORS), truth)
    np.testing.assert_allclose(targets.class_targets[0, 0], [0.5, 0])
    np.testing.assert_allclose(targets.class_weights[0, 0], [1, 0.25])
    plain = make_loss(overrides, is_training=False).assign(tf.constant(ANCHORS), truth)
    np.testing.assert_allclose(plain.class_targets[0, 0], [0, 1, 0])


def test_images_nobody_annotated_give_no_loss():
    truth = groundtruth()._replace(is_annotated=tf.constant([True, False]))
    found = terms(truth=truth, encodings=2.0)
    assert found["classification"] == pytest.approx(12 * LOG_2 / 3)
    assert found["localization"] == pytest.approx(2 * 4 * 1.5 / 3)


@pytest.mark.parametrize("kind", ["weighted_sigmoid_focal", "weighted_softmax"])
def test_images_with_many_logits_are_compared_one_by_one(monkeypatch, kind):
    loss = make_loss(f"loss {{ classification_loss {{ {kind} {{}} }} }}")
    values, wide = [], []
    for limit in (ssd_loss.WIDE, 1):
        monkeypatch.setattr(ssd_loss, "WIDE", limit)
        with tf.Graph().as_default() as graph:
            logits = tf.reshape(tf.range(-1.2, 1.2, 0.1), [2, 4, 3])
            truth = groundtruth(1)._replace(is_annotated=tf.constant([False, True]))
            found = loss(predictions()._replace(class_logits=logits), truth).terms
            total = found["Loss/classification_loss"]
            results = [total, *tf.gradients(total, logits)]
            values.append(evaluate(results))
            names = [tensor.op.name for tensor in results]
            computed = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), names).node
            outputs = [graph.get_operation_by_name(each.name).outputs for each in computed]
            wide.append(sum(each[0].shape == logits.shape for each in outputs if each))
    for plain, by_image in zip(*values):
        np.testing.assert_allclose(by_image, plain, rtol=1e-5, atol=1e-7)
    # Logits and their gradient remain, with copies that need no memory.
    assert wide[1] < 6 < wide[0]

    def classification() -> tf.Tensor:
        return loss(predictions(), groundtruth()).terms["Loss/classification_loss"]

    compiled = tf.function(classification, autograph=False, jit_compile=True)
    assert float(compiled()) == pytest.approx(float(classification()))


@pytest.mark.parametrize("uses_confidences", ["false", "true"])
def test_absent_keypoints_give_no_loss(uses_confidences):
    overrides = f"use_confidences_as_targets: {uses_confidences} "
    overrides += """box_coder { keypoint_box_coder { num_keypoints: 1 } }
        box_predictor { convolutional_box_predictor { box_code_size: 6 } }"""
    points = tf.constant([[[[0.3, 0.3]], [[np.nan, np.nan]]], [[[0.2, 0.2]], [[0.5, 0.5]]]])
    loss = make_loss(overrides)
    raw = predictions()._replace(box_encodings=tf.zeros([2, 4, 6]))
    found = loss(raw, groundtruth()._replace(keypoints=points)).terms
    assert np.isfinite(found["Loss/localization_loss"])
    assert found["Loss/localization_loss"] > 0


@pytest.mark.parametrize("kind", ["weighted_iou", "weighted_giou"])
def test_losses_of_boxes_compare_decoded_boxes(kind):
    perfect = terms(f"loss {{ localization_loss {{ {kind} {{}} }} }}")
    assert perfect["localization"] == pytest.approx(0.0, abs=1e-5)
    moved = terms(f"loss {{ localization_loss {{ {kind} {{}} }} }}", encodings=1.0)
    assert moved["localization"] > 0.05


class _Recorder:
    """A localization loss that keeps its predictions."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __call__(self, predictions: tf.Tensor, targets: Any, weights: tf.Tensor, **_: Any) -> Any:
        del targets
        self.predictions = predictions.numpy()
        return weights


@pytest.mark.parametrize("gets_boxes", [True, False])
def test_the_registered_loss_decides_if_it_gets_boxes(monkeypatch, gets_boxes):
    recorder = _Recorder(on_boxes=gets_boxes)
    monkeypatch.setitem(LOCALIZATION_LOSSES._makers, "weighted_l2", lambda config: recorder)
    terms("loss { localization_loss { weighted_l2 {} } }")
    wanted = [ANCHORS] * 2 if gets_boxes else np.zeros([2, 4, 4])
    np.testing.assert_allclose(recorder.predictions, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("fraction", "sampled"), [(0.5, 2 + 2 + 1 + 1), (0.25, 2 + 2 + 1 + 3), (0.75, 2 + 1)]
)
def test_random_sampler_takes_all_positives_and_their_share_of_negatives(fraction, sampled):
    found = terms(
        f"""normalize_loss_by_num_matches: false
        loss {{ random_example_sampler {{ positive_sample_fraction: {fraction} }} }}"""
    )
    assert found["classification"] == pytest.approx(3 * sampled * LOG_2)


def test_anchors_that_are_not_sampled_give_no_loss():
    loss = dataclasses.replace(make_loss(), sampler=lambda eligible, matched: matched & ~eligible)
    found = loss(predictions(encodings=2.0), groundtruth()).terms
    assert [float(term) for term in found.values()] == [0.0, 0.0]


def test_hard_example_miner():
    found = terms(
        """normalize_loss_by_num_matches: false
        loss { hard_example_miner { num_hard_examples: 1 iou_threshold: 1 loss_type: CLASSIFICATION
        } }"""
    )
    assert found["classification"] == pytest.approx(2 * 3 * LOG_2)
    miner = make_loss(
        "loss { localization_weight: 5 classification_weight: 2 hard_example_miner {} }"
    ).miner
    assert (miner.loc_weight, miner.cls_weight) == (5, 2)


def test_the_miner_compares_decoded_boxes():
    seen = []

    def miner(box_losses: tf.Tensor, _: tf.Tensor, boxes: tf.Tensor, matches: tf.Tensor) -> Any:
        seen.append(boxes)
        return MinedLosses(box_losses[0, 0], box_losses[0, 0], matches[:, 0], matches[:, 0])

    loss = dataclasses.replace(make_loss(), miner=miner)
    loss(predictions(encodings=[10.0, 0.0, 0.0, 0.0]), groundtruth())  # one height down
    ymin, xmin, ymax, xmax = np.transpose(ANCHORS)
    moved = np.stack([ymax, xmin, 2 * ymax - ymin, xmax], axis=1)
    np.testing.assert_allclose(seen[0], [moved] * 2, rtol=1e-5)


def test_expected_sampling_of_softmax_and_of_sigmoid():
    overrides = """normalize_loss_by_num_matches: false loss {
        expected_loss_weights: EXPECTED_SAMPLING classification_loss { %s {} } }"""
    # Image 0 has 2 of 4 anchors matched, image 1 has 1: rates 3 * 2 / 2 and 3 * 1 / 3.
    found = terms(overrides % "weighted_softmax", encodings=2.0)
    total = (2 + 3 * 2) + (1 + 1 * 3)
    assert found["classification"] == pytest.approx(total * np.log(3.0))
    assert found["localization"] == pytest.approx(18.0)
    truth = groundtruth()._replace(is_annotated=tf.constant([True, False]))
    found = terms(overrides % "weighted_softmax", truth)
    assert found["classification"] == pytest.approx((2 + 3 * 2) * np.log(3.0))
    # Of 12 pairs, image 0 has 2 foreground and 2 background columns at 1, image 1 has 1 and 3.
    found = terms(overrides % "weighted_sigmoid", encodings=[[5.0], [2.0], [4.0], [1.0]])
    assert found["classification"] == pytest.approx(2 * (4 + 3 * 4 / 8 * 8) * LOG_2)
    assert found["localization"] == pytest.approx(4 * (4.5 + 1.5 + 3.5))  # each anchor once


def test_anchors_without_groundtruth_weigh_less():
    found = terms("normalize_loss_by_num_matches: false negative_class_weight: 0.25")
    assert found["classification"] == pytest.approx(3 * (3 + 0.25 * 5) * LOG_2)


@pytest.mark.usefixtures("small_network")
def test_equalization_adds_a_term():
    detector = small_detector("loss { equalization_loss { weight: 0.1 } }")
    with tf.Graph().as_default():
        inputs, shapes = detector.preprocess(tf.zeros([2, 64, 64, 3]))
        found = detector.loss(detector.predict(inputs, shapes), groundtruth()).terms
        assert evaluate(found)["Loss/equalization_loss"] > 0


@pytest.mark.usefixtures("small_network")
@pytest.mark.parametrize("mined", [True, False])
def test_a_loss_returns_its_counts(mined):
    with tf.Graph().as_default():
        detector = small_detector("loss { hard_example_miner {} }" if mined else "")
        inputs, shapes = detector.preprocess(tf.zeros([2, 64, 64, 3]))
        predictions = detector.predict(inputs, shapes)
        counts = detector.loss(predictions, groundtruth(padding=3)).counts
        values = evaluate(counts)
        num_anchors = predictions.anchors.shape[0]
    anchors = [
        values[f"TargetAssignment/AvgNum{kind}AnchorsPerImage"]
        for kind in ("Positive", "Negative", "Ignored")
    ]
    np.testing.assert_allclose(sum(anchors), num_anchors)
    assert anchors[0] >= 2  # each box forces a match
    assert values["TargetAssignment/AvgNumGroundtruthBoxesPerImage"] == 2
    assert values["TargetAssignment/AvgNumGroundtruthBoxesMatchedPerImage"] == 2
    assert ("HardExampleMiner/num_positives" in values) == mined

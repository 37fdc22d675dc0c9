from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.detectors.base import Groundtruth
from inputs.checks.statistics import Collector, Columns
from model_fn.preflight import anchor_coverage
from model_fn.preflight.anchor_coverage import BETWEEN, ELONGATED, LARGE, SMALL
from tests.detectors.configs import small_detector

# The small detector's anchors on its 64 x 64 input: on a 4 x 4 map squares of 6.4 pixels and boxes
# of 12.8 at 2:1 and 1:2, on a 2 x 2 map squares of 60.8 and some more. Centres of the first map
# are at 8, 24, 40 and 56.


def pixels_of(*boxes: tuple) -> np.ndarray:
    return np.asarray(boxes, np.float32).reshape(-1, 4) / 64


def collect(*images: np.ndarray, size: tuple = (64, 64)) -> Columns:
    collector = Collector()
    for number, boxes in enumerate(images):
        collector.add(0, number, size, str(number), boxes, np.ones(len(boxes)))
    return collector.columns()


@pytest.fixture(scope="module")
def detector():
    return small_detector()


def test_maps_and_anchors_are_those_of_the_network(detector) -> None:
    coverage = anchor_coverage.measure(detector, collect(pixels_of((1, 1, 63, 63))))
    assert [(level.size, level.num_anchors) for level in coverage.maps] == [
        ((4, 4), 48),
        ((2, 2), 8),
    ]
    np.testing.assert_allclose(
        coverage.maps[0].shapes, [[6.4, 6.4], [9.05, 18.1], [18.1, 9.05]], atol=0.01
    )
    assert [level.num_best for level in coverage.maps] == [0, 1]
    assert coverage.input_sizes == [(64, 64)]
    assert (coverage.threshold, coverage.forced) == (0.5, True)


def test_reasons(detector) -> None:
    exact = (8 - 3.2, 24 - 3.2, 8 + 3.2, 24 + 3.2)
    boxes = pixels_of(
        exact,
        (7, 7, 9, 9),  # 4 pixels squared, less than half of 41
        (16 - 3.2, 16 - 3.2, 16 + 3.2, 16 + 3.2),  # the right shape, between four anchors
        (2, 30, 62, 34),  # 15:1
    )
    coverage = anchor_coverage.measure(detector, collect(boxes))
    np.testing.assert_allclose(coverage.best_iou[:2], [1.0, 4 / 40.96], rtol=1e-4)
    np.testing.assert_array_equal(coverage.below, [False, True, True, True])
    assert [np.flatnonzero(coverage.reasons[r]).tolist() for r in (SMALL, LARGE, BETWEEN)] == [
        [1],
        [],
        [2],
    ]
    assert np.flatnonzero(coverage.reasons[ELONGATED]).tolist() == [3]
    np.testing.assert_array_equal(coverage.num_anchors >= 1, True)  # by force
    np.testing.assert_allclose(coverage.pixels[3], [60, 4], rtol=1e-5)


def test_without_force_boxes_are_lost() -> None:
    detector = small_detector("matcher { argmax_matcher { force_match_for_each_row: false } }")
    coverage = anchor_coverage.measure(detector, collect(pixels_of((7, 7, 9, 9), (5, 21, 11, 27))))
    assert not coverage.forced
    np.testing.assert_array_equal(coverage.lost, [True, False])


def test_two_boxes_of_one_place_share_one_anchor(detector) -> None:
    box = (7, 7, 9, 9)
    coverage = anchor_coverage.measure(detector, collect(pixels_of(box, box)))
    np.testing.assert_array_equal(coverage.num_anchors, [1, 0])


def test_numbers_of_anchors_are_those_of_target_assignment(detector, monkeypatch) -> None:
    monkeypatch.setattr(anchor_coverage, "PAIRS_AT_ONCE", 56 * 9)  # several groups of images
    random = np.random.default_rng(3)
    counts = [3, 0, 5, 1, 9, 2]
    images = []
    for count in counts:
        corner, extent = random.uniform(0, 0.7, [2, count, 2])
        images.append(np.concatenate([corner, np.minimum(corner + extent, 1)], 1))
    done = []
    coverage = anchor_coverage.measure(detector, collect(*images), advance=done.append)
    assert sum(done) == len(images) and len(done) > 2

    padded = np.zeros([len(images), 10, 4], np.float32)
    for row, boxes in enumerate(images):
        padded[row, : len(boxes)] = boxes
    valid = np.arange(10)[None] < np.array(counts)[:, None]
    with tf.Graph().as_default():
        anchors = detector.predict(tf.zeros([1, 64, 64, 3])).anchors
        constant = tf.get_static_value(anchors)
    targets = detector.losses.assign(
        tf.constant(constant),
        Groundtruth(
            tf.constant(padded),
            tf.ones([len(images), 10, 2]),
            tf.cast(valid, tf.float32),
            tf.constant(valid),
        ),
    )
    matches = targets.matches.numpy()
    expected = [np.sum(matches[i] == box) for i, n in enumerate(counts) for box in range(n)]
    np.testing.assert_array_equal(coverage.num_anchors, expected)


def test_padding_shrinks_boxes() -> None:
    detector = small_detector(
        "image_resizer { keep_aspect_ratio_resizer { min_dimension: 32 max_dimension: 64 "
        "pad_to_max_dimension: true } }"
    )
    whole = np.array([[0.0, 0.0, 1.0, 1.0]])
    coverage = anchor_coverage.measure(detector, collect(whole, size=(100, 200)))
    np.testing.assert_allclose(coverage.pixels, [[32, 64]])
    assert coverage.input_sizes == [(64, 64)]


def test_inputs_of_several_sizes() -> None:
    detector = small_detector("image_resizer { pad_to_multiple_resizer { multiple: 64 } }")
    collector = Collector()
    for number, size in enumerate([(64, 64), (70, 100), (30, 20)]):
        collector.add(0, number, size, "", [[0, 0, 1, 1]], [1])
    coverage = anchor_coverage.measure(detector, collector.columns())
    assert coverage.input_sizes == [(64, 64), (128, 128)]
    np.testing.assert_allclose(coverage.pixels, [[64, 64], [70, 100], [30, 20]], rtol=1e-5)
    # A square of sqrt(0.95) of the side, whose centre is a quarter of it from the border.
    side = 64 * 0.95**0.5
    common = (16 + side / 2) ** 2
    np.testing.assert_allclose(coverage.best_iou[0], common / (64**2 + side**2 - common), rtol=1e-5)


def test_concentric_iou() -> None:
    iou = anchor_coverage.concentric_iou(np.array([[2, 4], [0, 0]]), np.array([[2, 2], [4, 2]]))
    np.testing.assert_allclose(iou, [[4 / 8, 4 / 12], [0, 0]])


def test_no_boxes(detector) -> None:
    coverage = anchor_coverage.measure(detector, collect(np.zeros([0, 4])))
    assert len(coverage.below) == 0
    assert [level.num_best for level in coverage.maps] == [0, 0]
    assert anchor_coverage.has_anchors(detector) and not anchor_coverage.has_anchors(object())

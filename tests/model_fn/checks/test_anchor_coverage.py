from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.boxes.geometry import pairwise_iou
from estimator_det.compat import tf, tf1
from estimator_det.detectors import ssd
from estimator_det.detectors.base import Groundtruth
from inputs.checks.statistics import Columns, ImageRow, columns_of
from model_fn.checks import anchor_coverage
from model_fn.checks.anchor_coverage import BETWEEN, ELONGATED, LARGE, SMALL
from tests import small_extractor
from tests.detectors.configs import small_detector
from tests.detectors.two_stage import configs as two_stage

# The small detector's anchors on its 64 x 64 input: on a 4 x 4 map squares of 6.4 pixels and boxes
# of 12.8 at 2:1 and 1:2, on a 2 x 2 map squares of 60.8 and some more. Centres of the first map
# are at 8, 24, 40 and 56.


def pixels_of(*boxes: tuple) -> np.ndarray:
    return np.asarray(boxes, np.float32).reshape(-1, 4) / 64


def collect(*images: np.ndarray, size: tuple = (64, 64)) -> Columns:
    rows = []
    for number, boxes in enumerate(images):
        rows.append(ImageRow(size, str(number), boxes, np.ones(len(boxes))))
    return columns_of(rows)


class Pooled(small_extractor.SmallExtractor):
    """Feature maps of the sizes of the small detector's, without its network."""

    def extract(self, inputs: tf.Tensor) -> List[tf.Tensor]:
        return [tf.nn.avg_pool2d(inputs, side, side, "SAME") for side in (16, 32)]


@pytest.fixture(autouse=True)
def real_extractor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What makes extractors; `Pooled` takes its place in single-shot detectors."""
    real = ssd.make_extractor
    monkeypatch.setattr(ssd, "make_extractor", lambda *_: Pooled())
    return real


@pytest.fixture
def detector():
    return small_detector()


def test_maps_and_anchors_are_those_of_the_network(real_extractor, monkeypatch):
    monkeypatch.setattr(ssd, "make_extractor", real_extractor)
    detector = small_detector()
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


def test_reasons(detector):
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
    kinds = (SMALL, LARGE, BETWEEN, ELONGATED)
    found = [np.flatnonzero(coverage.reasons[kind]).tolist() for kind in kinds]
    assert found == [[1], [], [2], [3]]
    np.testing.assert_array_equal(coverage.num_anchors >= 1, True)  # by force
    np.testing.assert_allclose(coverage.pixels[3], [60, 4], rtol=1e-5)


def test_without_force_boxes_are_lost():
    detector = small_detector("matcher { argmax_matcher { force_match_for_each_row: false } }")
    coverage = anchor_coverage.measure(detector, collect(pixels_of((7, 7, 9, 9), (5, 21, 11, 27))))
    assert not coverage.forced
    np.testing.assert_array_equal(coverage.lost, [True, False])


def test_numbers_of_anchors_are_those_of_target_assignment(detector, monkeypatch):
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
    classes, weights = tf.ones([len(images), 10, 2]), tf.cast(valid, tf.float32)
    truth = Groundtruth(tf.constant(padded), classes, weights, tf.constant(valid))
    targets = detector.losses.assign(tf.constant(constant), truth)
    matches = targets.matches.numpy()
    expected = [np.sum(matches[i] == box) for i, n in enumerate(counts) for box in range(n)]
    np.testing.assert_array_equal(coverage.num_anchors, expected)


def test_padding_shrinks_boxes():
    detector = small_detector(
        "image_resizer { keep_aspect_ratio_resizer { min_dimension: 32 max_dimension: 64 "
        "pad_to_max_dimension: true } }"
    )
    whole = np.array([[0.0, 0.0, 1.0, 1.0]])
    coverage = anchor_coverage.measure(detector, collect(whole, size=(100, 200)))
    np.testing.assert_allclose(coverage.pixels, [[32, 64]])
    assert coverage.input_sizes == [(64, 64)]


def test_inputs_of_several_sizes():
    detector = small_detector("image_resizer { pad_to_multiple_resizer { multiple: 64 } }")
    rows = []
    for size in [(64, 64), (70, 100), (30, 20)]:
        rows.append(ImageRow(size, "", [[0, 0, 1, 1]], [1]))
    coverage = anchor_coverage.measure(detector, columns_of(rows))
    assert coverage.input_sizes == [(64, 64), (128, 128)]
    np.testing.assert_allclose(coverage.pixels, [[64, 64], [70, 100], [30, 20]], rtol=1e-5)
    # A square of sqrt(0.95) of the side, whose centre is a quarter of it from the border.
    side = 64 * 0.95**0.5
    common = (16 + side / 2) ** 2
    np.testing.assert_allclose(coverage.best_iou[0], common / (64**2 + side**2 - common), rtol=1e-5)


def test_no_boxes(detector):
    coverage = anchor_coverage.measure(detector, collect(np.zeros([0, 4])))
    assert len(coverage.below) == 0
    assert [level.num_best for level in coverage.maps] == [0, 0]
    assert anchor_coverage.has_anchors(detector) and not anchor_coverage.has_anchors(object())


# The small detector of two stages: 24 pixels squared, at 2:1 and 1:2, every 8 pixels from 0 on.


def test_anchors_of_the_first_stage():
    detector = two_stage.small_detector()
    assert anchor_coverage.has_anchors(detector)
    boxes = pixels_of(
        (12, 12, 36, 36),  # an anchor
        (0, 0, 24, 24),  # the nearest is 4 pixels further; 4 pixels before is outside
        (28, 28, 32, 32),
    )
    coverage = anchor_coverage.measure(detector, collect(boxes))
    (level,) = coverage.maps
    np.testing.assert_allclose(level.shapes, [[16.97, 33.94], [24, 24], [33.94, 16.97]], atol=0.01)
    # Centres are at 16 to 48 for sides of 17 and 24, at 24 to 40 for 34.
    assert (level.size, level.num_anchors, coverage.num_left_out) == ((8, 8), 55, 8 * 8 * 3 - 55)
    best = [1.0, 20**2 / (2 * 24**2 - 20**2), 4**2 / 24**2]
    np.testing.assert_allclose(coverage.best_iou[[0, 2]], [best[0], best[2]], rtol=1e-4)
    np.testing.assert_array_equal(coverage.below, [False, True, True])
    np.testing.assert_array_equal(coverage.poor, [False, False, True])
    assert (coverage.threshold, coverage.forced) == (pytest.approx(0.7), True)
    assert coverage.reasons[BETWEEN].tolist() == [False, True, False]
    assert coverage.reasons[SMALL].tolist() == [False, False, True]


def test_first_stage_anchors_are_those_of_training(monkeypatch):
    """On an image of another size, of the graph of training; here no network is built."""
    detector = two_stage.small_detector("image_resizer { identity_resizer {} }")
    columns = collect(np.array([[0.1, 0.2, 0.6, 0.7]]), size=(50, 75))
    with tf.Graph().as_default():
        labels = two_stage.groundtruth()
        predictions = detector.predict(tf.zeros([2, 50, 75, 3]), None, labels)
        expected = tf.get_static_value(predictions.anchors)
        if expected is None:
            with tf1.Session() as session:
                expected = session.run(predictions.anchors)
    monkeypatch.setattr(type(detector.extractor), "proposal_features", None)
    coverage = anchor_coverage.measure(detector, columns)
    assert coverage.maps[0].num_anchors == len(expected)
    iou = pairwise_iou(tf.constant([[5.0, 15.0, 30.0, 52.5]]), tf.constant(expected))
    np.testing.assert_allclose(coverage.best_iou, [np.max(iou)], rtol=1e-4)

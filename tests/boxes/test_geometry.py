import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.boxes import geometry
from estimator_det.compat import tf
from estimator_det.protos import region_similarity_calculator_pb2
from tests.conftest import golden_component

_, ARRAYS = golden_component("target_assigner")
KINDS = {
    "similarity_iou": "iou_similarity {}",
    "similarity_ioa": "ioa_similarity {}",
    "similarity_neg_sq_dist": "neg_sq_dist_similarity {}",
}
# A unit square, the same moved by half, one inside, one apart, and an empty one.
SQUARE = [0.0, 0.0, 1.0, 1.0]
BOXES = tf.constant(
    [SQUARE, [0.5, 0.5, 1.5, 1.5], [0.0, 0.0, 0.5, 0.5], [2.0, 0.0, 3.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
)


def make(text):
    proto = region_similarity_calculator_pb2.RegionSimilarityCalculator()
    return geometry.make_similarity(text_format.Parse(text, proto))


@pytest.mark.parametrize("case", sorted(KINDS))
def test_golden_similarities(case):
    first, second = tf.constant(ARRAYS["sim_b1"]), tf.constant(ARRAYS["sim_b2"])
    found = make(KINDS[case])(first, second)
    np.testing.assert_allclose(found, ARRAYS[case], rtol=1e-5, atol=1e-6)


def test_areas_and_overlaps_by_hand():
    square = tf.constant([SQUARE])
    assert geometry.area(BOXES).numpy().tolist() == [1, 1, 0.25, 1, 0]
    assert geometry.intersection(square, BOXES).numpy().tolist() == [1, 0.25, 0.25, 0, 0]
    ioa = geometry.pairwise_ioa(square, BOXES)
    np.testing.assert_allclose(ioa, [[1, 0.25, 1, 0, 0]])
    assert geometry.pairwise_iou(BOXES, BOXES).numpy()[4, 4] == 0  # both empty


def test_pairs_broadcast_over_the_batch():
    anchors = BOXES[:3]
    batch = tf.stack([BOXES, BOXES[::-1]])
    for function in (geometry.pairwise_iou, geometry.pairwise_ioa, geometry.pairwise_neg_sq_dist):
        together = function(batch, anchors)
        assert together.shape == [2, 5, 3]
        for image in range(2):
            np.testing.assert_allclose(together[image], function(batch[image], anchors))
            in_pairs = function(batch, batch[:, 1:])[image]  # both sides have images
            np.testing.assert_allclose(in_pairs, function(batch[image], batch[image, 1:]))


def test_thresholded_iou():
    similarity = make("thresholded_iou_similarity { iou_threshold: 0.2 }")
    boxes = tf.constant([SQUARE, SQUARE])
    assert similarity(boxes, BOXES).numpy().tolist() == [[1, 0, 1, 0, 0]] * 2
    classes = tf.constant([[0.0, 1.0], [0.75, 0.25]])  # background column first
    found = similarity(boxes, BOXES, classes).numpy().tolist()
    assert found == [[1, 0, 1, 0, 0], [0.25, 0, 0.25, 0, 0]]
    exact = make("thresholded_iou_similarity { iou_threshold: 0.25 }")
    assert exact(boxes, BOXES).numpy()[0].tolist() == [1, 0, 0, 0, 0]


def test_clipping():
    window = tf.constant([0.25, 0.5, 1.0, 2.0])
    clipped = geometry.clip_to_window(BOXES, window).numpy()
    assert clipped[0].tolist() == [0.25, 0.5, 1, 1]
    assert clipped[1].tolist() == [0.5, 0.5, 1, 1.5]
    assert clipped[3].tolist() == [1, 0.5, 1, 1]  # apart: empty, on the border
    windows = tf.stack([window, window + 1.0])[:, None, :]
    batch = geometry.clip_to_window(tf.stack([BOXES, BOXES + 1.0]), windows)
    np.testing.assert_allclose(batch[0], clipped)
    np.testing.assert_allclose(batch[1], clipped + 1.0)


def test_frames():
    window = tf.constant([1.0, 2.0, 3.0, 6.0])
    boxes = tf.constant([[1.0, 2.0, 3.0, 6.0], [2.0, 2.0, 5.0, 4.0]])
    changed = geometry.change_frame(boxes, window)
    assert changed.numpy().tolist() == [[0, 0, 1, 1], [0.5, 0, 2, 0.5]]
    assert geometry.change_frame(boxes, tf.zeros([4])).numpy().tolist() == [[0] * 4] * 2

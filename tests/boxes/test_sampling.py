import numpy as np
import pytest

from estimator_det.boxes.sampling import balanced_sample
from estimator_det.compat import tf, tf1


def batch(*images, size=40):
    """Indicator and labels of images given as (eligible positives, eligible negatives)."""
    indicator = np.zeros([len(images), size], bool)
    labels = np.zeros([len(images), size], bool)
    shuffle = np.random.default_rng(0).permutation
    for image, (positives, negatives) in enumerate(images):
        order = shuffle(size)
        indicator[image, order[: positives + negatives]] = True
        labels[image, order[:positives]] = True
        labels[image, order[-3:]] = True  # positive, yet not eligible
    return indicator, labels


@pytest.mark.parametrize(
    ("size", "fraction", "images", "expected"),
    [
        (*(8, 0.5), [(10, 20), (2, 20), (10, 3), (0, 30), (5, 0), (0, 0)],
         [(4, 4), (2, 6), (4, 3), (0, 8), (4, 0), (0, 0)]),
        (7, 0.25, [(10, 20)], [(1, 6)]),  # the fraction rounds down
        (1000000, 1.0, [(10, 20), (0, 30), (30, 0)], [(10, 20), (0, 30), (30, 0)]),
        # Without a size: all positives, and a share of negatives.
        (None, 0.25, [(5, 20), (1, 20), (5, 10), (0, 20)], [(5, 15), (1, 3), (5, 10), (0, 0)]),
    ],
)  # fmt: skip
def test_counts_by_hand(size, fraction, images, expected):
    indicator, labels = batch(*images)
    sample = np.asarray(balanced_sample(indicator, labels, size, fraction))
    assert not (sample & ~indicator).any()
    assert [((s & p).sum(), (s & ~p).sum()) for s, p in zip(sample, labels)] == expected


def test_sample_is_even():
    indicator = np.ones([2000, 6], bool)
    labels = np.tile([True, True, True, False, False, False], [2000, 1])
    share = np.mean(balanced_sample(indicator, labels, 3, 0.34), axis=0)
    np.testing.assert_allclose(share, [1 / 3] * 3 + [2 / 3] * 3, atol=0.05)


def test_each_image_and_step_has_a_sample_of_its_own():
    indicator, labels = batch(*[(15, 20)] * 4)
    first, second = (balanced_sample(indicator, labels, 10).numpy() for _ in range(2))
    assert (first != second).any() and (first[0] != first[1]).any()


def test_static_shape_and_small_graph():
    def build(size, samples=4):
        with tf.Graph().as_default() as graph:
            indicator = tf1.placeholder(tf.bool, [size, 9])
            labels = tf1.placeholder(tf.bool, [size, 9])
            sample = balanced_sample(indicator, labels, samples)
            assert sample.shape.as_list() == [size, 9]
            return len(graph.get_operations())

    assert build(2) == build(64) < 80
    assert build(None) and build(None, None)

from __future__ import annotations

import numpy as np

from estimator_det.compat import tf
from inputs.augment.crop import Window, crop
from inputs.schema import Sample
from tests.inputs.augment.helpers import crops, operation_text, sample_of

# Rows 2 to 7 and columns 4 to 14 of an image of 10 x 20.
WINDOW = Window(tf.constant([2, 4, 0]), tf.constant([5, 10, -1]), tf.constant([0.2, 0.2, 0.7, 0.7]))


def _sample() -> Sample:
    return Sample(
        image=tf.constant(np.arange(600).reshape(10, 20, 3), tf.float32),
        boxes=tf.constant(
            [
                [0.2, 0.2, 0.7, 0.7],  # the window itself
                [0.0, 0.0, 0.2, 0.2],  # touches its corner
                [0.1, 0.2, 0.5, 0.6],  # three quarters inside
                [0.3, 0.3, 0.3, 0.5],  # no area
            ]
        ),
        classes=tf.constant([1, 2, 3, 4], tf.int64),
        weights=tf.ones([4]),
        masks=tf.constant(np.arange(800).reshape(4, 10, 20), tf.float32),
        keypoints=tf.constant([[[0.45, 0.3], [0.1, 0.3]]] * 4),
        keypoint_visibilities=tf.ones([4, 2], tf.bool),
        area=tf.constant([100.0, 200.0, 1000.0, 0.0]),
    )


def test_crop_by_hand() -> None:
    sample = _sample()
    result = crop(sample, WINDOW, tf.constant(0.7), tf.constant(True))
    np.testing.assert_array_equal(result.classes, [1, 3])
    np.testing.assert_array_equal(result.image, sample.image[2:7, 4:14])
    np.testing.assert_array_equal(result.masks, np.array(sample.masks)[[0, 2], 2:7, 4:14])
    np.testing.assert_allclose(result.boxes, [[0, 0, 1, 1], [0, 0, 0.6, 0.8]], atol=1e-6)
    np.testing.assert_allclose(result.keypoints[0], [[0.5, 0.2], [np.nan] * 2], atol=1e-6)
    np.testing.assert_array_equal(result.keypoint_visibilities, [[True, False]] * 2)
    np.testing.assert_allclose(result.area, [100.0, 750.0], rtol=1e-5)


def test_crop_keeps_boxes_from_the_threshold_on() -> None:
    for thresh, classes in [(0.0, [1, 3]), (0.8, [1]), (1.0, [1])]:
        result = crop(_sample(), WINDOW, tf.constant(thresh), tf.constant(True))
        np.testing.assert_array_equal(result.classes, classes)


def test_crop_without_clipping() -> None:
    result = crop(_sample(), WINDOW, tf.constant(0.0), tf.constant(False))
    np.testing.assert_allclose(result.boxes[1], [-0.2, 0.0, 0.6, 0.8], atol=1e-6)
    np.testing.assert_allclose(result.keypoints[0], [[0.5, 0.2], [-0.2, 0.2]], atol=1e-6)
    assert np.array(result.keypoint_visibilities).all()
    np.testing.assert_allclose(result.area, [100.0, 1000.0])


def test_keep_all_keeps_even_boxes_outside() -> None:
    result = crop(
        _sample(), WINDOW, tf.constant(1.0), tf.constant(False), keep_all=tf.constant(True)
    )
    np.testing.assert_array_equal(result.classes, [1, 2, 3, 4])


def test_min_object_covered_keeps_an_object() -> None:
    settings = operation_text(min_object_covered=1.0, overlap_thresh=0.99)
    one = sample_of("bare")
    one = one._replace(boxes=one.boxes[:1], classes=one.classes[:1], weights=one.weights[:1])
    found = crops(f"random_crop_image {{ {settings} }}", one)
    assert {count for _, count in found} == {1}
    assert len({size for size, _ in found}) > 10

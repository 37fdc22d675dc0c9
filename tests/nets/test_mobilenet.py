from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.images.resize import pad_to_multiple
from estimator_det.nets import mobilenet
from estimator_det.nets.layers import pad_for_kernel
from estimator_det.nets.necks import pyramids


def test_scaled_depth():
    depth = mobilenet.scaled_depth(0.75, 16)
    assert [depth(d) for d in (8, 32, 64, 33)] == [16, 24, 48, 24]


def test_pad_for_kernel():
    inputs = tf.ones([1, 2, 3, 1])
    padded = pad_for_kernel(inputs, 3)[0, :, :, 0]
    np.testing.assert_array_equal(padded, np.pad(np.ones((2, 3)), 1))
    even = pad_for_kernel(inputs, 2)[0, :, :, 0]
    np.testing.assert_array_equal(even, np.pad(np.ones((2, 3)), [[0, 1], [0, 1]]))


@pytest.mark.parametrize("static", [True, False])
def test_pad_to_multiple(static):
    spec = tf.TensorSpec([1, 5, 8, 1] if static else [None, None, None, 1], tf.float32)
    pad = tf.function(lambda images: pad_to_multiple(images, 4), input_signature=[spec])
    padded = pad(tf.ones([1, 5, 8, 1]))[0, :, :, 0]
    np.testing.assert_array_equal(padded, np.pad(np.ones((5, 8)), [[0, 3], [0, 0]]))
    if static:
        assert pad.get_concrete_function().outputs[0].shape == (1, 8, 8, 1)


def build_maps(*rows: pyramids.FeatureMap, **options) -> list:
    end_points = {"early": tf.zeros([1, 9, 9, 8]), "late": tf.zeros([1, 5, 5, 8])}
    depth = mobilenet.scaled_depth(0.5, 2)
    return [m.shape for m in pyramids.extended_maps(end_points, rows, depth, **options)]


def test_extended_maps():
    rows = [pyramids.FeatureMap("early"), pyramids.FeatureMap("late"), pyramids.FeatureMap("", 12)]
    with tf.Graph().as_default():
        assert build_maps(*rows) == [(1, 9, 9, 8), (1, 5, 5, 8), (1, 3, 3, 6)]
        assert [v.op.name for v in tf1.trainable_variables() if "weights" in v.op.name] == [
            "late_1_Conv2d_2_1x1_3/weights",
            "late_2_Conv2d_2_3x3_s2_6/weights",
        ]
    with tf.Graph().as_default():
        assert build_maps(*rows, use_depthwise=True, explicit_padding=True)[2] == (1, 3, 3, 6)
        names = [v.op.name for v in tf1.trainable_variables()]
        assert "late_2_Conv2d_2_3x3_s2_6_depthwise/depthwise_weights" in names


def test_extended_maps_errors():
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match=r"no activation 'lat'.*'early', 'late'"):
            build_maps(pyramids.FeatureMap("lat"))
        with pytest.raises(ValueError, match=r"feature map 0 must be an activation"):
            build_maps(pyramids.FeatureMap("", 4))

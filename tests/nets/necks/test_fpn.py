import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.necks import fpn
from estimator_det.nets.quantization import Quantization, Quantizer, quantized_by
from tests.graphs import shapes


@pytest.mark.parametrize("shape", [(1, 2, 3, 2), (None, 2, 3, 2), (None, None, None, 2)])
def test_upsampling_repeats_every_pixel(shape):
    values = np.arange(12, dtype=np.float32).reshape(1, 2, 3, 2)
    double = tf.function(fpn.upsample_twofold, input_signature=[tf.TensorSpec(shape, tf.float32)])
    np.testing.assert_array_equal(double(values), values.repeat(2, axis=1).repeat(2, axis=2))
    found = double.get_concrete_function().outputs[0].shape
    assert found[1:3] == ([4, 6] if shape[1] else [None, None]) and found[3] == 2


def test_levels_add_the_one_above():
    fine = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype(np.float32)
    coarse = np.random.default_rng(1).normal(size=(2, 2, 3, 5)).astype(np.float32)
    ones = tf1.ones_initializer()
    with (
        tf.Graph().as_default(),
        tf1.Session() as session,
        slim.arg_scope([slim.conv2d], weights_initializer=ones, activation_fn=tf.nn.relu),
    ):
        maps = fpn.top_down_maps([tf.constant(fine), tf.constant(coarse)], fpn.LayerOptions(1))
        assert sorted(shapes()) == [
            f"{layer}/{part}"
            for layer in ("projection_1", "projection_2", "smoothing_1")
            for part in ("biases", "weights")
        ]
        session.run(tf1.global_variables_initializer())
        low, high = session.run(maps)
    # The coarsest map is its projection, below zero too: no activation, no smoothing.
    projected = coarse.sum(axis=3)
    assert projected.min() < 0
    np.testing.assert_allclose(high[..., 0], projected, rtol=1e-5)
    merged = fine.sum(axis=3) + projected.repeat(2, axis=1).repeat(2, axis=2)
    padded = np.pad(merged, [(0, 0), (1, 1), (1, 1)])
    smoothed = sum(padded[:, y : y + 4, x : x + 6] for y in range(3) for x in range(3))
    np.testing.assert_allclose(low[..., 0], np.maximum(smoothed, 0), atol=1e-5)


def test_odd_sizes():
    with tf.Graph().as_default():
        end_points = [tf.zeros([1, 5, 7, 3]), tf.zeros([1, 3, 4, 3])]
        maps = fpn.top_down_maps(end_points, fpn.LayerOptions(2, explicit_padding=True))
        assert [m.shape.as_list() for m in maps] == [[1, 5, 7, 2], [1, 3, 4, 2]]


def test_enlarged_maps_are_cut_at_the_bottom_and_the_right():
    coarse = tf.reshape(tf.range(1.0, 5.0), [1, 2, 2, 1])
    cut = fpn._upsample_to(coarse, tf.zeros([1, 3, 3, 1]), cut=True)
    np.testing.assert_array_equal(cut[0, :, :, 0], [[1, 1, 2], [1, 1, 2], [3, 3, 4]])


def test_names_of_quantized_sums():
    with tf.Graph().as_default():
        quantizer = Quantizer(Quantization(), is_training=False)
        with quantized_by(quantizer), tf1.variable_scope("fpn"):
            end_points = [tf.zeros([1, side, side, 3]) for side in (8, 4, 2, 1)]
            fpn.top_down_maps(end_points, fpn.LayerOptions(2))
        sums = [tensor.scope for tensor in quantizer.tensors if "AddV2" in tensor.scope]
    names = ("add", "add_1", "add_2")
    assert sums == [f"fpn/top_down/{name}/activation_AddV2_quant" for name in names]


def test_unknown_sizes_are_cut_at_run_time():
    with tf.Graph().as_default(), tf1.Session() as session:
        fine = tf1.placeholder(tf.float32, [1, None, None, 3])
        coarse = tf1.placeholder(tf.float32, [1, None, None, 3])
        maps = fpn.top_down_maps([fine, coarse], fpn.LayerOptions(2, explicit_padding=True))
        session.run(tf1.global_variables_initializer())
        fed = {fine: np.zeros([1, 5, 7, 3]), coarse: np.zeros([1, 3, 4, 3])}
        assert [m.shape for m in session.run(maps, fed)] == [(1, 5, 7, 2), (1, 3, 4, 2)]


def test_pooled_maps_keep_the_largest():
    features = tf.reshape(tf.range(15.0), [1, 3, 5, 1])
    maps = fpn.pooled_maps(features)
    assert maps[0] is features and len(maps) == 6
    np.testing.assert_array_equal(maps[1][0, :, :, 0], [[6, 8, 9], [11, 13, 14]])
    np.testing.assert_array_equal(maps[2][0, :, :, 0], [[13, 14]])
    np.testing.assert_array_equal(maps[3][0, :, :, 0], [[14]])

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.nets.necks import fpn
from estimator_det.nets.quantization import Quantization, Quantizer, quantized_by
from tests.graphs import evaluate


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
    with tf.Graph().as_default():
        fine = tf1.placeholder(tf.float32, [1, None, None, 3])
        coarse = tf1.placeholder(tf.float32, [1, None, None, 3])
        maps = fpn.top_down_maps([fine, coarse], fpn.LayerOptions(2, explicit_padding=True))
        fed = {fine: np.zeros([1, 5, 7, 3]), coarse: np.zeros([1, 3, 4, 3])}
        assert [m.shape for m in evaluate(maps, fed)] == [(1, 5, 7, 2), (1, 3, 4, 2)]


def test_pooled_maps_keep_the_largest():
    features = tf.reshape(tf.range(15.0), [1, 3, 5, 1])
    maps = fpn.pooled_maps(features)
    assert maps[0] is features and len(maps) == 6
    np.testing.assert_array_equal(maps[1][0, :, :, 0], [[6, 8, 9], [11, 13, 14]])
    np.testing.assert_array_equal(maps[2][0, :, :, 0], [[13, 14]])
    np.testing.assert_array_equal(maps[3][0, :, :, 0], [[14]])

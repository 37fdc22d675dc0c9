from __future__ import annotations

from estimator_det.compat import tf
from estimator_det.nets import inception
from estimator_det.nets.mobilenet import scaled_depth
from tests.nets.variables import crc32, variable_lines


def test_v3_as_published():
    with tf.Graph().as_default() as graph:
        images = tf.zeros([1, 107, 139, 3])
        end_points = inception.inception(images, scaled_depth(1, 16), inception.V3_BLOCKS)
        found = {name: tensor.shape.as_list()[1:] for name, tensor in end_points.items()}
    # The sum was taken of tf-slim's own network, whose activations equal these to the last bit.
    lines = variable_lines(graph)
    assert (len(lines), crc32(lines)) == (188, 3757204035)
    assert found["MaxPool_5a_3x3"] == [11, 15, 192]
    # Branches of 64, 64, 96 and 64; then 192 four times; then 320, 2 * 384, 2 * 384 and 192.
    assert found["Mixed_5d"] == [11, 15, 288]
    assert found["Mixed_6e"] == [5, 7, 768]
    assert found["Mixed_7c"] == [2, 3, 2048]

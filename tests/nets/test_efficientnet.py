"""EfficientNets: sizes of all networks, skipped blocks, and their bidirectional pyramids."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import efficientnet
from estimator_det.nets.necks import bifpn

# From B0 to B7.
NUM_PARAMETERS = [5288548, 7794184, 9109994, 12233232, 19341616, 30389784, 43040704, 66347960]
SIZES = [
    pytest.param(f"b{number}", size, marks=[pytest.mark.exhaustive] * (number > 0))
    for number, size in enumerate(NUM_PARAMETERS)
]


@pytest.mark.parametrize(("name", "parameters"), SIZES)
def test_classifiers_have_their_published_sizes(name, parameters):
    with tf.Graph().as_default(), efficientnet.arg_scope():
        end_points = efficientnet.efficientnet(tf.zeros([1, 64, 64, 3]), efficientnet.SCALES[name])
        sizes = [end_points[end_point].shape[1] for end_point in efficientnet.END_POINTS]
        assert sum(each.shape.num_elements() for each in tf1.trainable_variables()) == parameters
    assert sizes == [32, 16, 8, 4, 2]


def test_examples_skip_blocks_only_in_training(monkeypatch):
    monkeypatch.setattr(efficientnet, "STACKS", efficientnet.STACKS[:2])
    monkeypatch.setattr(efficientnet, "END_POINTS", efficientnet.END_POINTS[:2])
    for is_training, rate, expected in ((True, 0.2, 1), (True, 0.0, 0), (False, 0.2, 0)):
        with tf.Graph().as_default() as graph, efficientnet.arg_scope():
            scale, options = efficientnet.SCALES["b0"], {"is_training": is_training}
            efficientnet.efficientnet(tf.zeros([2, 64, 64, 3]), scale, drop_rate=rate, **options)
            drawn = [
                operation
                for operation in graph.get_operations()
                if operation.type == "RandomUniform" and "dropout" in operation.name
            ]
        assert len(drawn) == expected
        assert all(operation.outputs[0].shape == [2, 1, 1, 1] for operation in drawn)


OPTIONS = bifpn.BifpnOptions(min_level=3, max_level=5, num_iterations=1, depth=4)


@pytest.mark.parametrize(
    ("method", "weights", "expected"),
    [
        ("sum", None, 1 + 4 + 2),
        ("fast_attention", [[2.0], [-1.0], [6.0]], (2 * 1 + 6 * 2) / (8 + 1e-4)),
        ("attention", np.log([[2.0], [3.0], [5.0]]), 0.2 * 1 + 0.3 * 4 + 0.5 * 2),
    ],
)
def test_weights_of_inputs(method, weights, expected, monkeypatch):
    """The middle node on the way up has its level's input, the node below and the finer one."""
    halves = iter([4.0, 2.0, 0.0, 0.0])
    merged = []

    def smooth(net, *_, **__):
        merged.append(net)
        return tf.zeros_like(net) + next(halves)

    monkeypatch.setattr(bifpn, "separable_conv2d", smooth)
    with (
        tf.Graph().as_default(),
        tf1.Session() as session,
        slim.arg_scope([slim.conv2d], activation_fn=None),
    ):
        inputs = [tf.ones([1, side, side, 4]) for side in (8, 4, 2)]
        maps = bifpn.bidirectional_maps(inputs, OPTIONS._replace(combine_method=method))
        session.run(tf1.global_variables_initializer())
        if weights is not None:
            (variable,) = (v for v in tf1.global_variables() if "node_2/" in v.name)
            session.run(variable.assign(weights))
        found = session.run(merged[2])
    assert [map_.shape[1] for map_ in maps] == [8, 4, 2]
    np.testing.assert_allclose(found, np.full([1, 4, 4, 4], expected), rtol=1e-6)

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import resnet
from estimator_det.nets.mobilenet import scaled_depth
from estimator_det.nets.normalization import BATCH_NORMS


@pytest.fixture(autouse=True)
def _one_unit_each(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tuple(block._replace(units=1) for block in resnet.V1_BLOCKS[50])
    monkeypatch.setitem(resnet.V1_BLOCKS, 50, blocks)


def test_blocks_are_seen_before_they_are_halved():
    with tf.Graph().as_default(), resnet.v1_arg_scope():
        end_points = resnet.resnet_v1(tf.zeros([2, 130, 160, 3]), 50, scaled_depth(0.03, 2))
        shapes = {name: map_.shape.as_list() for name, map_ in end_points.items()}
        names = {v.op.name: v.shape.as_list() for v in tf1.global_variables()}
        penalties = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
    # Multiplier and minimum apply inside a unit; its output has four times as many channels.
    assert shapes == {
        "block1": [2, 33, 40, 8],
        "block2": [2, 17, 20, 12],
        "block3": [2, 9, 10, 28],
        "block4": [2, 5, 5, 60],
    }
    assert names["conv1/weights"] == [7, 7, 3, 64]
    assert names["block3/unit_1/bottleneck_v1/conv2/weights"] == [3, 3, 7, 7]
    shortcuts = [name for name in names if name.endswith("shortcut/weights")]
    assert shortcuts == [f"block{n}/unit_1/bottleneck_v1/shortcut/weights" for n in (1, 2, 3, 4)]
    assert len([name for name in names if name.endswith("gamma")]) == 17
    assert len([name for name in names if name.endswith("weights")]) == len(penalties) == 17


def test_dilated_blocks_see_what_strided_ones_see():
    """Blocks that halve within give the same as those halved after; dilated ones fill the gaps."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        inputs = tf.random.stateless_normal([1, 129, 97, 3], [1, 2])
        built = []
        for stride in (None, 32, 16, 8):
            with (
                tf1.variable_scope("network", reuse=tf1.AUTO_REUSE),
                resnet.v1_arg_scope(0.0),
                slim.arg_scope(list(BATCH_NORMS), is_training=False),
            ):
                built.append(
                    resnet.resnet_v1(inputs, 50, scaled_depth(0.03, 2), output_stride=stride)
                )
        assert not tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        session.run(tf1.global_variables_initializer())
        whole, within, sixteenth, eighth = session.run(built)
    sizes = [{name: map_.shape[1:3] for name, map_ in end.items()} for end in (within, eighth)]
    assert sizes == [
        {"block1": (17, 13), "block2": (9, 7), "block3": (5, 4), "block4": (5, 4)},
        dict.fromkeys(("block1", "block2", "block3", "block4"), (17, 13)),
    ]

    def same(found: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    for name in ("block1", "block2", "block3"):
        same(within[name], whole[name][:, ::2, ::2])
    same(within["block4"], whole["block4"])
    same(sixteenth["block3"], whole["block3"])
    same(sixteenth["block4"][:, ::2, ::2], whole["block4"])
    same(eighth["block3"][:, ::2, ::2], whole["block3"])
    same(eighth["block4"][:, ::4, ::4], whole["block4"])
    assert whole["block4"].max() > 0.1

from __future__ import annotations

from typing import Iterator

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import inception_resnet
from estimator_det.nets.normalization import BATCH_NORMS
from tests.graphs import evaluate


@pytest.fixture(autouse=True)
def _one_block_of_each(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("BLOCK35", "BLOCK17", "BLOCK8"):
        block = getattr(inception_resnet, name)
        monkeypatch.setattr(inception_resnet, name, block._replace(repeats=1))
    with (
        tf.Graph().as_default(),
        inception_resnet.arg_scope(),
        slim.arg_scope(list(BATCH_NORMS), is_training=False),
    ):
        yield


def test_dilated_blocks_see_what_strided_ones_see():
    tf1.set_random_seed(1)
    images = tf.random.stateless_normal([1, 65, 97, 3], [1, 2])
    maps = []
    for stride in (16, 8):
        with tf1.variable_scope("network", reuse=tf1.AUTO_REUSE):
            maps.append(inception_resnet.first_part(images, stride))
    strided, dilated = evaluate(maps)
    assert strided.shape == (1, 5, 7, 1088) and dilated.shape == (1, 9, 13, 1088)
    np.testing.assert_allclose(dilated[:, ::2, ::2], strided, rtol=1e-3, atol=1e-5)
    assert strided.max() > 0.01


def test_second_part_halves_without_padding_and_ends_below_zero_too():
    features = inception_resnet.second_part(tf.zeros([2, 17, 12, 1088]))
    assert features.shape == [2, 8, 5, 1536]
    ends = [op.name for op in features.graph.get_operations() if op.type == "Relu"]
    assert not any(name.startswith("Block8/Relu") for name in ends)
    names = {v.op.name for v in tf1.global_variables()}
    assert "Repeat/block8_1/Conv2d_1x1/biases" in names
    assert not [name for name in names if name.endswith("gamma")]

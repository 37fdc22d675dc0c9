from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import layers
from estimator_det.nets.necks import mnasfpn
from estimator_det.nets.normalization import BATCH_NORMS

OPTIONS = mnasfpn.Options(depth=8, scale_depth=lambda depth: min(int(depth), 16))


@pytest.mark.parametrize("explicit_padding", [False, True])
def test_shrinking_pools_and_zero_padding_counts(explicit_padding):
    padding = layers.choose_padding(explicit_padding)
    features = -tf.reshape(tf.range(1.0, 65.0), [1, 8, 8, 1])
    for stride, sizes in ((2, 4), (4, 2)):
        pooled = layers.max_pool(features, mnasfpn.POOL, stride, padding)
        assert pooled.shape == (1, sizes, sizes, 1)
        assert pooled[0, 0, 0, 0] == (0.0 if explicit_padding else -1.0)
    # The window at (1, 1) of stride 4 covers rows and columns 3 to 5, or from 4 on.
    assert pooled[0, 1, 1, 0] == (-28.0 if explicit_padding else -37.0)


def test_cells_add_their_inputs_where_channels_agree(monkeypatch):
    monkeypatch.setattr(mnasfpn, "NUM_CELLS", 1)
    with tf.Graph().as_default(), slim.arg_scope(list(BATCH_NORMS), is_training=False):
        shapes = [(2, 16, 8, 4), (2, 8, 4, 8), (2, 4, 2, 6)]
        inputs = [tf.random.stateless_normal(shape, [1, 2]) for shape in shapes]
        found = mnasfpn.mnasfpn(inputs, OPTIONS)
        sides = [(16, 8), (8, 4), (4, 2), (2, 1)]
        assert [f.shape.as_list() for f in found] == [[2, *side, 8] for side in sides]
        kernels = [v for v in tf1.trainable_variables() if v.op.name.endswith("weights")]
        # Two projections and two halves a block, and the one above level 5, which alone is free.
        assert len(kernels) == 5 * 4 + 1
        assert len(tf1.losses.get_regularization_losses()) == 5 * 4
        (coarsest,) = [v for v in kernels if v.op.name == "C6_Conv1x1/weights"]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for kernel in kernels:
                if kernel is not coarsest:
                    session.run(kernel.assign(tf.zeros_like(kernel)))
            outputs, expected = session.run([found, inputs])
            weights = session.run(coarsest)[0, 0]
    # Convolutions of zeros leave the inputs of as many channels: levels 4 and 6.
    assert not np.any(outputs[0])
    np.testing.assert_allclose(outputs[1], expected[1])
    assert not np.any(outputs[2])
    pooled = tf.nn.max_pool2d(expected[2], 3, 2, "SAME").numpy() @ weights
    scale = 1 / np.sqrt(1 + mnasfpn.BATCH_NORM_EPSILON)
    np.testing.assert_allclose(outputs[3], pooled * scale, rtol=1e-5, atol=1e-6)

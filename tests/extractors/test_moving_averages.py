"""Moving averages of batch norm that are updated in place."""

import numpy as np

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import BATCH_NORMS
from tests.extractors.build import TINY, make


def test_layers_that_no_map_uses_update_theirs_too():
    with (
        tf.Graph().as_default(),
        slim.arg_scope(list(BATCH_NORMS), is_training=True, updates_collections=None),
        tf1.Session() as session,
    ):
        images = tf.random.uniform([2, 64, 64, 3], -1, 1, seed=1)
        maps = make("ssd_mobilenet_v1", f"{TINY} num_layers: 1").extract(images)
        session.run(tf1.global_variables_initializer())
        averages = {v.op.name: v for v in tf1.global_variables() if "/moving_" in v.op.name}
        before = session.run(averages)
        session.run(maps)
        after = session.run(averages)
    assert "MobilenetV1/Conv2d_13_pointwise/BatchNorm/moving_mean" in averages
    assert all(np.any(after[name] != before[name]) for name in averages)

"""Moving averages of batch norm: updated in place or by operations of the collection."""

from __future__ import annotations

import zlib
from typing import Dict

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import BATCH_NORMS
from tests.extractors.build import TINY, make


def averages_after_a_pass(kind: str, in_place: bool) -> Dict[str, np.ndarray]:
    """Moving averages after one forward pass from weights that depend on their names alone."""
    collection = None if in_place else tf1.GraphKeys.UPDATE_OPS
    pixels = np.random.default_rng(0).uniform(-1, 1, [2, 160, 160, 3])
    with (
        tf.Graph().as_default(),
        slim.arg_scope(list(BATCH_NORMS), is_training=True, updates_collections=collection),
        tf1.Session() as session,
    ):
        maps = make(kind, TINY).extract(tf.constant(pixels, tf.float32))
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        start = {}
        for variable in tf1.trainable_variables():
            random = np.random.default_rng(zlib.crc32(variable.op.name.encode()))
            start[variable.initial_value] = random.normal(0, 0.1, variable.shape.as_list())
        session.run(tf1.global_variables_initializer(), start)
        averages = {v.op.name: v for v in tf1.global_variables() if "/moving_" in v.op.name}
        before = session.run(averages)
        session.run([maps, updates])
        after = session.run(averages)
    assert all(np.any(after[name] != before[name]) for name in averages)
    return after


@pytest.mark.usefixtures("short_networks")
def test_averages_move_the_same_both_ways() -> None:
    in_place = averages_after_a_pass("ssd_resnet50_v1_fpn", in_place=True)
    collected = averages_after_a_pass("ssd_resnet50_v1_fpn", in_place=False)
    assert in_place.keys() == collected.keys()
    for name, value in in_place.items():
        np.testing.assert_allclose(value, collected[name], rtol=1e-5, atol=1e-7, err_msg=name)

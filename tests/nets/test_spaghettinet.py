from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.nets import spaghettinet

NAMES = [f"spaghettinet_edgetpu_{size}" for size in "sml"]


def test_wiring_is_that_of_the_paper() -> None:
    nodes = {node.name: node for node in spaghettinet.NETWORKS[NAMES[2]]}
    assert list(nodes) == [*(f"n{i}" for i in range(6)), *(f"c0n{i}" for i in range(6))]
    assert nodes["n0"][1:4] == (48, 2, ("s0",))
    assert nodes["n5"][1:4] == (56, 7, ("n4",))
    assert nodes["c0n0"][1:4] == (160, 5, ("n3", "n4"))
    assert nodes["c0n2"][1:4] == (168, 5, ("c0n1", "c0n0"))
    assert nodes["c0n5"][1:4] == (64, 8, ("c0n4",))
    assert [len(node.layers) for node in nodes.values()] == [1, 4, 4, 4, 4, 2, 4, 4, 4, 3, 2, 2]


def test_ranges_average_what_was_seen_without_their_start() -> None:
    with tf.Graph().as_default():
        seen = tf1.placeholder(tf.float32, [])
        end = spaghettinet._range_end("max", 6.0)
        moved = spaghettinet._update_average(end, seen)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assert session.run(moved, {seen: 4.0}) == pytest.approx(4.0, rel=1e-4)
            # (0.999 * 0.001 * 4 + 0.001 * 7) / (1 - 0.999 ** 2)
            assert session.run(moved, {seen: 7.0}) == pytest.approx(5.50075, rel=1e-4)
            assert session.run(end) == pytest.approx(5.50075, rel=1e-4)


def test_parts_share_a_range_of_eight_bits() -> None:
    with tf.Graph().as_default():
        parts = [tf.constant([[3.01, 7.0]]), tf.constant([[-1.0]])]
        found = spaghettinet._concat_in_one_range(parts, is_training=False)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            # 0 to 6 in 255 steps; 3.01 is nearest to the 128th.
            np.testing.assert_allclose(session.run(found), [[128 * 6 / 255, 6.0, 0.0]], rtol=1e-6)

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.nets import spaghettinet


def test_ranges_average_what_was_seen_without_their_start():
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


def test_parts_share_a_range_of_eight_bits():
    with tf.Graph().as_default():
        parts = [tf.constant([[3.01, 7.0]]), tf.constant([[-1.0]])]
        found = spaghettinet._concat_in_one_range(parts, is_training=False)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            # 0 to 6 in 255 steps; 3.01 is nearest to the 128th.
            np.testing.assert_allclose(session.run(found), [[128 * 6 / 255, 6.0, 0.0]], rtol=1e-6)

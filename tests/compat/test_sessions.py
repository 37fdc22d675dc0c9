"""Quick functions of sessions."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import quick_callable, tf, tf1


def test_a_quick_callable_feeds_and_fetches_one_tensor() -> None:
    with tf.Graph().as_default():
        placeholder = tf1.placeholder(tf.string, [])
        pixels = tf.io.decode_png(placeholder, channels=1)
        with tf1.Session() as session:
            decode = quick_callable(session, pixels, placeholder)
            image = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
            encoded = tf1.Session(graph=tf1.get_default_graph()).run(tf.io.encode_png(image))
            np.testing.assert_array_equal(decode(encoded), image)
            same = quick_callable(session, tf.identity(placeholder), placeholder)
            assert same(b"a\0\0") == b"a\0\0"
            with pytest.raises(tf.errors.InvalidArgumentError, match="PNG"):
                decode(encoded[:20])
            np.testing.assert_array_equal(decode(encoded), image)

"""Parts of TensorFlow without a public interface, and optimizers of loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_det.compat import apply_summed, quick_callable, shared_state, tf, tf1


def test_a_quick_callable_feeds_and_fetches_one_tensor():
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


def test_state_that_an_optimizer_has_once():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    optimizer = tf1.train.AdamOptimizer(0.1)
    with strategy.scope():
        variable = tf.Variable(1.0, name="v")

    @tf.function(autograph=False)
    def step() -> Any:
        apply_summed(optimizer, strategy, [(tf.constant(1.0), variable)])

    with strategy.scope():
        step()
    state = shared_state(optimizer)
    assert sorted(state) == ["beta1_power", "beta2_power"]
    assert abs(float(state["beta1_power"].numpy()) - 0.81) < 1e-6
    assert abs(float(variable.numpy()) - 0.9) < 1e-6

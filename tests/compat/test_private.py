"""Parts of TensorFlow without a public interface, and optimizers of loops."""

from __future__ import annotations

from typing import Any

from estimator_det.compat import apply_summed, shared_state, tf, tf1


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

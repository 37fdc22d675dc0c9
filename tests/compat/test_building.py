"""What makes graphs build faster gives the same answers."""

from __future__ import annotations

from estimator_det.compat import slim, tf, tf1


def test_a_layer_has_the_class_for_graphs_in_graphs_alone():
    from tensorflow.python.keras.engine.base_layer_v1 import Layer
    from tensorflow.python.keras.layers.core import Dense

    for _ in range(2):
        assert not isinstance(Dense(1), Layer)
        with tf.Graph().as_default():
            assert isinstance(Dense(1), Layer)
            slim.fully_connected(tf1.placeholder(tf.float32, [1, 2]), 3)

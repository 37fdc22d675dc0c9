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


def test_what_is_around_a_graph_is_known():
    from tensorflow.python.framework import ops

    answers = []

    def ask():
        # The public name keeps TensorFlow's own function.
        quick = ops.executing_eagerly_outside_functions()
        answers.append(quick)
        assert quick == tf1.executing_eagerly_outside_functions()

    ask()
    tf.function(ask)()
    with tf.Graph().as_default():
        ask()
        tf.function(ask)()
        with tf.init_scope():
            ask()
        with tf.__internal__.eager_context.eager_mode():
            ask()
    assert answers == [True, True, False, False, False, True]

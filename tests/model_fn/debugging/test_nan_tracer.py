from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from model_fn.debugging.nan_tracer import FirstNonFinite, find_first


def _find(value: Any) -> Optional[FirstNonFinite]:
    """The first tensor of `sqrt(x) / 2` that is not finite; the logarithm of 0 is harmless."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [4], name="x")
        with tf1.name_scope("harmless"):
            masked = tf.where(x > 0, tf.math.log(x), 0.0)
        with tf1.name_scope("layer"):
            half = tf.sqrt(x, name="root") / 2.0
        loss = tf.reduce_sum(half) + tf.reduce_sum(masked)
        (gradient,) = tf1.gradients(tf.reduce_sum(half), [x])
        return find_first(session, [loss, gradient], {x: np.float32(value)})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # The first tensor that reaches the loss.
        ([1, -1, 4, -1], FirstNonFinite("layer/root:0", "Sqrt", "layer", False, [4], 2, 0, 1, 2)),
        # What is masked is not the cause.
        ([1, 2, 3, 4], None),
        # A bad batch is named itself.
        ([np.nan, 1, 1, 1], FirstNonFinite("x:0", "Placeholder", "", False, [4], 1, 0, 1, 1)),
    ],
)
def test_the_first_tensor(values, expected):
    tensor = _find(values)
    assert tensor == expected
    if tensor is not None and tensor.layer:
        sentence = "layer/root:0 (Sqrt in layer): 2 NaN of 4 values, the others in 1..2"
        assert tensor.sentence() == sentence


def test_gradients_come_last():
    # The logarithm of 0 is masked; the slope of the square root there is infinite.
    tensor = _find([0, 1, 1, 1])
    assert tensor is not None and tensor.is_gradient and tensor.num_inf == 1
    assert tensor.layer.startswith("layer/root_grad")
    assert "of the gradients in layer" in tensor.sentence()

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from estimator_det.compat import tf, tf1
from model_fn.debugging.nan_tracer import FirstNonFinite, Tracer


def _find(value: Any) -> Optional[FirstNonFinite]:
    """The first_non_finite of `sqrt(x) / 2` in a graph that takes the logarithm of 0 by the way."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [4], name="x")
        with tf1.name_scope("harmless"):
            masked = tf.where(x > 0, tf.math.log(x), 0.0)
        with tf1.name_scope("layer"):
            half = tf.sqrt(x, name="root") / 2.0
        loss = tf.reduce_sum(half) + tf.reduce_sum(masked)
        (gradient,) = tf1.gradients(tf.reduce_sum(half), [x])
        tracer = Tracer([loss, gradient], [x])
        return tracer.find(session, {x: np.float32(value)})


def test_the_first_of_those_that_reach_the_loss() -> None:
    first_non_finite = _find([1, -1, 4, -1])
    assert first_non_finite is not None
    assert first_non_finite == FirstNonFinite(
        "layer/root:0", "Sqrt", "layer", False, [4], 2, 0, 1.0, 2.0
    )
    assert first_non_finite.sentence() == (
        "layer/root:0 (Sqrt in layer): 2 NaN of 4 values, the others in 1..2"
    )


def test_what_is_masked_is_no_culprit() -> None:
    assert _find([1, 2, 3, 4]) is None


def test_gradients_come_last() -> None:
    # The logarithm of 0 is masked; the slope of the square root there is infinite.
    first_non_finite = _find([0, 1, 1, 1])
    assert (
        first_non_finite is not None
        and first_non_finite.is_gradient
        and first_non_finite.num_inf == 1
    )
    assert first_non_finite.layer.startswith("layer/root_grad")
    assert "of the gradients in layer" in first_non_finite.sentence()


def test_a_bad_batch_is_named_itself() -> None:
    first_non_finite = _find([np.nan, 1, 1, 1])
    assert first_non_finite is not None and (first_non_finite.tensor, first_non_finite.low) == (
        "x:0",
        1.0,
    )

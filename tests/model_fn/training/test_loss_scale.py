from __future__ import annotations

from typing import List

import numpy as np

from estimator_det.compat import tf
from model_fn.training import loss_scale
from model_fn.training.loss_scale import FIRST_SCALE, LossScale
from model_fn.training.replica import Reduced


def _run(scale: LossScale, limit: float, loss: float = 1.0) -> Reduced:
    """A step whose gradients overflow where the scale is above `limit`."""

    def compute(factor: tf.Tensor) -> Reduced:
        norm = tf.where(factor > limit, np.inf, 2.0)
        return Reduced(
            losses={"Loss/total_loss": tf.constant(loss)},
            counts={},
            norm=norm,
            is_moved_finite=tf.constant(0.0),
            stops=tf.constant([False, False]),
            gradients={"w": factor},
            unclipped={},
            statistics=[],
        )

    put_back: List[Reduced] = []
    found = tf.function(lambda: scale.compute(compute, put_back.append, lambda value: value))()
    assert len(put_back) == 1  # traced
    return found


def _values(scale: LossScale) -> List[float]:
    return [float(variable) for variable in scale.variables().values()]


def test_overflowing_steps_are_repeated_with_half_the_scale():
    scale = LossScale()
    assert float(_run(scale, limit=1e6).gradients["w"]) == FIRST_SCALE
    found = _run(scale, limit=5000.0)
    assert (float(found.gradients["w"]), float(found.norm)) == (4096.0, 2.0)
    assert _values(scale) == [4096.0, 0.0]
    # Not below 1: then the step is bad, and so it is where the loss is not finite.
    assert np.isinf(_run(scale, limit=0.5).norm)
    assert _values(scale) == [1.0, 0.0]
    again = LossScale()
    assert float(_run(again, limit=0.5, loss=np.nan).gradients["w"]) == FIRST_SCALE


def test_the_scale_is_doubled_after_enough_steps(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    scale, values = LossScale(), []
    for _ in range(6):
        scale.count_step()
        values.append(_values(scale)[0] / FIRST_SCALE)
    assert values == [1, 1, 2, 2, 2, 4]

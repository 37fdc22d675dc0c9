"""Dynamic loss scaling for float16, whose gradients become 0 below 6e-8 and infinite above 65504.

From Micikevicius et al., "Mixed Precision Training", https://arxiv.org/abs/1710.03740. A step whose
gradients overflow is taken again, on the same batch, with half the scale: no step and no batch is
lost.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

from estimator_det.compat import tf
from model_fn.training import step
from model_fn.training.replica import Reduced

FIRST_SCALE = 2.0**15
GROWTH_STEPS = 2000  # between two doublings


class LossScale:
    """Factor of the loss in the backward pass; created in the scope of the strategy."""

    def __init__(self) -> None:
        self._scale = tf.Variable(FIRST_SCALE, trainable=False, name="loss_scale")
        self._num_good = tf.Variable(0, trainable=False, name="loss_scale_steps")

    def variables(self) -> Dict[str, tf.Variable]:
        """The variables by their names in checkpoints; checkpoints of an Estimator lack them."""
        return {"loss_scale": self._scale, "loss_scale_steps": self._num_good}

    def compute(
        self,
        run_step: Callable[[tf.Tensor], Reduced],
        undo_step: Callable[[Reduced], Any],
        first_replica: Callable[[Any], tf.Tensor],
    ) -> Reduced:
        """Result of `run_step` at the largest scale that does not overflow, down to 1."""
        start = self._scale.read_value()

        def overflows(scale: tf.Tensor, reduced: Reduced) -> tf.Tensor:
            loss = first_replica(reduced.losses[step.TOTAL_LOSS])
            norm = first_replica(reduced.norm)
            is_bad = tf.math.is_finite(loss) & tf.logical_not(tf.math.is_finite(norm))
            return is_bad & (scale > 1.0)

        def again(scale: tf.Tensor, reduced: Reduced) -> Tuple[tf.Tensor, Reduced]:
            undo_step(reduced)
            return scale / 2.0, run_step(scale / 2.0)

        scale, reduced = tf.while_loop(
            overflows, again, (start, run_step(start)), parallel_iterations=1
        )
        self._scale.assign(scale)
        result: Reduced = reduced
        return result

    def count_step(self) -> None:
        """Counts a step that changed the variables; doubles the scale after `GROWTH_STEPS`."""
        self._num_good.assign_add(1)
        count = self._num_good.read_value()
        grows = tf.equal(count % GROWTH_STEPS, 0)
        self._scale.assign(tf.where(grows, 2.0, 1.0) * self._scale.read_value())

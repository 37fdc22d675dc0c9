"""The train step of a TPU core: gradients summed over cores, then clipped and applied."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from model_fn.training import optimizers, warm_start
from model_fn.training import train_op as train

_AVERAGE = "/ExponentialMovingAverage"


class ClippingOptimizer(optimizers.OptimizerAround):
    """Clips gradients by their global norm when they are applied, and knows that norm.

    Inside a `CrossShardOptimizer` these are the gradients of the whole batch. Clipping before, as
    the reference does on TPU, would clip each core's share, which is as many times smaller as
    there are cores.

    Args:
        optimizer: What computes and applies the gradients.
        max_norm: Where to clip; 0 for never.

    Attributes:
        norm: Before clipping, float32 scalar; None until the gradients are applied.
    """

    def __init__(self, optimizer: Any, max_norm: float) -> None:
        super().__init__(optimizer, "Clipping")
        self._max_norm = max_norm
        self.norm: Optional[tf.Tensor] = None

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Optional[tf.Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """Clips, then applies."""
        pairs = list(grads_and_vars)
        self.norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
        if self._max_norm > 0:
            pairs = train.clip_gradients(pairs, self._max_norm, self.norm)
        return super().apply_gradients(pairs, global_step, name)


def make_train_op(
    loss: tf.Tensor,
    optimizer: Any,
    global_step: tf.Variable,
    train_config: Any,
    updates: Sequence[tf.Operation],
    *,
    on_core: bool,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """One step as a tensor, the loss before it; and the norm of the gradients, before clipping.

    Args:
        loss: Scalar, of this core's share of the batch.
        optimizer: Computes and applies gradients.
        global_step: Counts the steps.
        train_config: `TrainConfig` proto.
        updates: What else moves with a step.
        on_core: Whether the step is built for a TPU core, among others; false in a rehearsal.
    """
    clipping = ClippingOptimizer(optimizer, train_config.gradient_clipping_by_norm)
    config = type(train_config)()
    config.CopyFrom(train_config)
    config.gradient_clipping_by_norm = 0.0
    train_op = train.make_train_op(
        loss,
        tf1.tpu.CrossShardOptimizer(clipping) if on_core else clipping,
        global_step,
        config,
        updates,
        guarded=False,
    )
    if clipping.norm is None:
        raise ValueError("no gradient was applied")
    return train_op, clipping.norm


def initialize_from(table: warm_start.RestoreTable) -> None:
    """Makes variables start at a checkpoint's values, and their moving averages with them.

    To be called when the whole graph is there, as `scaffold_fn` is: averages made earlier would
    start at what their variables would have started at without the checkpoint.
    """
    warm_start.initialize_from(table)
    existing = {variable.op.name: variable for variable in tf1.global_variables()}
    averages = {
        name: existing[variable.op.name + _AVERAGE]
        for name, variable in table.restored.items()
        if variable.op.name + _AVERAGE in existing
    }
    if averages:
        warm_start.initialize_from(table._replace(restored=averages))

"""The training step of a TPU core: gradients summed over cores, then clipped and applied."""

from __future__ import annotations

import copy
from typing import Any, Optional, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Detector
from model_fn.checkpoints.variables import AVERAGE_SUFFIX
from model_fn.training import optimizers, train_op, warm_start
from model_fn.training.step import GRADIENT_NORM, LEARNING_RATE, TOTAL_LOSS, Forward, Tensors


class ClippingOptimizer(optimizers.OptimizerAround):
    """Clips gradients by their global norm when they are applied, and knows that norm.

    Inside a `CrossShardOptimizer` these are the gradients of the whole batch. Clipping before, as
    the reference does on TPU, would clip each core's share, which is as many times smaller as
    there are cores.

    Attributes:
        norm: Norm before clipping, float32 scalar; None until the gradients are applied.
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
        pairs = list(grads_and_vars)
        self.norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
        if self._max_norm > 0:
            pairs = train_op.clip_gradients(pairs, self._max_norm, self.norm)
        return super().apply_gradients(pairs, global_step, name)


def make_core_step(
    detector: Detector, forward_pass: Forward, train_config: Any, *, is_on_core: bool
) -> Tuple[tf.Tensor, Tensors]:
    """The train op of a core and what it reports: losses, learning rate, gradient norm.

    Args:
        forward_pass: Result for this core's share of the batch.
        is_on_core: True on one of several TPU cores; false in a rehearsal.
    """
    global_step = tf1.train.get_or_create_global_step()
    optimizer, learning_rate = optimizers.make_optimizer(train_config.optimizer, global_step)
    clipping = ClippingOptimizer(optimizer, train_config.gradient_clipping_by_norm)
    unclipped = copy.deepcopy(train_config)
    unclipped.gradient_clipping_by_norm = 0.0
    applied = train_op.make_unguarded_train_op(
        forward_pass.losses[TOTAL_LOSS],
        tf1.tpu.CrossShardOptimizer(clipping) if is_on_core else clipping,
        global_step,
        unclipped,
        detector.updates(),
    )
    assert clipping.norm is not None  # applied above
    scalars = {**forward_pass.losses, LEARNING_RATE: learning_rate, GRADIENT_NORM: clipping.norm}
    return applied.op, scalars


def initialize_from(table: warm_start.RestoreTable) -> None:
    """Makes variables start at a checkpoint's values, and their moving averages with them.

    To be called when the whole graph is built, as `scaffold_fn` is: averages made earlier would
    start at what their variables would have started at without the checkpoint.
    """
    warm_start.initialize_from(table)
    existing = {variable.op.name: variable for variable in tf1.global_variables()}
    averages = {
        name: existing[variable.op.name + AVERAGE_SUFFIX]
        for name, variable in table.restored.items()
        if variable.op.name + AVERAGE_SUFFIX in existing
    }
    if averages:
        warm_start.initialize_from(table._replace(restored=averages))

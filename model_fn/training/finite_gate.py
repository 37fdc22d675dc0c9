"""Keeps a training step whose numbers are not finite away from the variables."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Sequence

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.compat.private import add_control_input


class RejectedBatch:
    """The batch of the step that was rejected last."""

    def __init__(self, tensors: Dict[str, tf.Tensor]) -> None:
        self._tensors = tensors
        self.arrays: Dict[str, np.ndarray] = {}  # empty until a step is rejected

    def store(self) -> tf.Operation:
        """The operation that fills `arrays`."""

        def keep(*arrays: np.ndarray) -> None:
            self.arrays.update(zip(self._tensors, arrays))

        return tf.numpy_function(keep, list(self._tensors.values()), [])


def written_values(updates: Sequence[Any]) -> List[tf.Tensor]:
    """Floating inputs of assignments: the values that they write or add."""
    inputs = [tensor for update in updates for tensor in _operation(update).inputs]
    return [tensor for tensor in inputs if tensor.dtype.is_floating]


def nan_unless_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """float32 scalar: 0 if all elements of all tensors are finite, otherwise NaN."""
    # Most are vectors of batch norm. Operations between its layers, even these, take time.
    vectors = [each if each.shape.rank == 1 else tf.reshape(each, [-1]) for each in tensors]
    elements = tf.concat(vectors, 0)
    return tf.where(tf.reduce_all(tf.math.is_finite(elements)), 0.0, math.nan)


def _operation(update: Any) -> tf.Operation:
    return update if isinstance(update, tf.Operation) else update.op


def guarded(
    values: Sequence[tf.Tensor],
    updates: Sequence[Any],
    apply: Callable[[], tf.Operation],
    batch: RejectedBatch,
) -> tf.Tensor:
    """Runs `apply()` and `updates` if all `values` are finite, else stores the batch.

    Uses a TF1 `Switch`: only the operations behind the taken output run. Unlike `tf.cond`, it works
    on operations that exist already, and lets optimizers create their slots as usual. Only a
    rejected step hands its batch to Python. The returned tensor is available at the end of the
    step.

    Args:
        updates: Existing operations, tensors or assigned variables that belong to the step.
        apply: Builds the operation that changes the variables.
    """
    with tf1.name_scope("guard"):
        finite = tf.reduce_all(tf.stack([tf.math.is_finite(value) for value in values]))
        closed, opened = tf.raw_ops.Switch(data=finite, pred=finite)
        closed, opened = tf.identity(closed, name="closed"), tf.identity(opened, name="opened")
    for update in updates:
        add_control_input(_operation(update), opened.op)
    with tf.control_dependencies([opened]):
        step = apply()
    with tf1.name_scope("guard"):
        with tf.control_dependencies([closed]):
            stored = batch.store()
        with tf.control_dependencies([stored]):
            rejected = tf.identity(closed)
        with tf.control_dependencies([tf.group(step, *updates)]):
            accepted = tf.identity(opened)
        return tf.raw_ops.Merge(inputs=[accepted, rejected]).output

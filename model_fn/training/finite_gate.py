"""Keeps a training step whose numbers are not finite away from the variables."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Sequence

import numpy as np

from estimator_det.compat import tf, tf1


class FiniteGate(NamedTuple):
    """Two branches of a step; what depends on the one not taken does not run."""

    opened: tf.Tensor  # bool, available where the condition holds
    closed: tf.Tensor  # bool, available where it does not


class RejectedBatch:
    """The batch of the step that was rejected last.

    Args:
        tensors: Of the batch, by name.

    Attributes:
        arrays: By the same names; empty until a step is rejected.
    """

    def __init__(self, tensors: Dict[str, tf.Tensor]) -> None:
        self._tensors = tensors
        self.arrays: Dict[str, np.ndarray] = {}

    def store(self) -> Optional[tf.Operation]:
        """The operation that fills `arrays`; None for an empty batch."""
        if not self._tensors:
            return None

        def copy(*arrays: np.ndarray) -> None:
            # TensorFlow uses the memory of the arrays again.
            copies = (np.array(array) for array in arrays)
            self.arrays.update(zip(self._tensors, copies))

        return tf.numpy_function(copy, list(self._tensors.values()), [])


def make_gate(values: Sequence[tf.Tensor]) -> FiniteGate:
    """A gate that is open where all scalars are finite.

    An operation with `opened` or `closed` among its control inputs runs in that branch alone.
    Unlike `tf.cond` this works on operations that exist already, and optimizers may create their
    slots as usual.
    """
    finite = tf.reduce_all(tf.stack([tf.math.is_finite(value) for value in values]))
    closed, opened = tf.raw_ops.Switch(data=finite, pred=finite)
    return FiniteGate(tf.identity(opened, name="opened"), tf.identity(closed, name="closed"))


def hold_back(gate: FiniteGate, updates: Sequence[Any]) -> None:
    """Makes existing operations (or tensors, or assigned variables) run at an open gate alone."""
    for update in updates:
        operation = update if isinstance(update, tf.Operation) else update.op
        # The one way to order what other code has built; TensorFlow itself uses it for that.
        operation._add_control_input(gate.opened.op)


def rejoin(gate: FiniteGate, step: tf.Operation, batch: Optional[RejectedBatch]) -> tf.Tensor:
    """A tensor that is available once `step` is done, or the batch of a closed gate is stored.

    The batch is copied to Python where the gate is closed alone, so it costs nothing otherwise.
    """
    with tf.control_dependencies([step]):
        opened = tf.identity(gate.opened)
    with tf.control_dependencies([gate.closed]):
        stored = batch.store() if batch is not None else None
    with tf.control_dependencies([stored] if stored is not None else []):
        closed = tf.identity(gate.closed)
    return tf.raw_ops.Merge(inputs=[opened, closed]).output


def guarded(
    values: Sequence[tf.Tensor],
    updates: Sequence[Any],
    apply: Any,
    batch: Optional[RejectedBatch],
) -> tf.Tensor:
    """Runs `apply()` and `updates` where all `values` are finite, else stores the batch.

    Args:
        values: float scalars that must be finite.
        updates: Existing operations that belong to the step.
        apply: Builds the operation that changes the variables.
        batch: Gets the batch of a rejected step.

    Returns:
        A tensor that is available once either is done.
    """
    with tf1.name_scope("guard"):
        gate = make_gate(values)
    hold_back(gate, updates)
    with tf.control_dependencies([gate.opened]):
        step = apply()
    with tf1.name_scope("guard"):
        return rejoin(gate, tf.group(step, *updates), batch)

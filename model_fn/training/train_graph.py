"""What hooks know of a training graph, and the gate that keeps a bad step from the variables.

The graph's names are kept beside it, not in its collections, which go into every checkpoint.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from estimator_det.compat import tf, tf1

_WATCHED = "estimator_det/watched"
_SCOPE = "watched/"

GRADIENT_NORM = "gradient_norm"


@dataclasses.dataclass
class Anatomy:
    """Names of tensors of a graph.

    Attributes:
        inputs: "features/image", … -> tensor of the batch.
        gradients: Variable -> its gradient, as it would be applied but for clipping.
        input_wait: Seconds that the step waited for its batch; "" where that is not measured.
        kept: The batch of the step that was held back last, by the keys of `inputs`.
    """

    inputs: Dict[str, str] = dataclasses.field(default_factory=dict)
    gradients: Dict[str, str] = dataclasses.field(default_factory=dict)
    input_wait: str = ""
    kept: Dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


_ANATOMIES: weakref.WeakKeyDictionary[tf.Graph, Anatomy] = weakref.WeakKeyDictionary()


def anatomy() -> Anatomy:
    """That of the default graph; to be filled by whoever builds it."""
    return anatomy_of(tf1.get_default_graph())


def anatomy_of(graph: tf.Graph) -> Anatomy:
    """That of a graph."""
    return _ANATOMIES.setdefault(graph, Anatomy())


def watch(name: str, value: tf.Tensor) -> None:
    """Enters a scalar of the default graph among those that reports of training tell."""
    tf1.add_to_collection(_WATCHED, tf.identity(value, name=_SCOPE + name))


def watched() -> Dict[str, tf.Tensor]:
    """The scalars entered in the default graph, by name."""
    return {tensor.op.name[len(_SCOPE) :]: tensor for tensor in tf1.get_collection(_WATCHED)}


def note_batch(features: Dict[str, tf.Tensor], labels: Dict[str, tf.Tensor]) -> None:
    """Notes the tensors of the batch, and measures how long each step waits for it.

    The wait is the time between the start of the step and the batch being there, by two clocks in
    the graph: the one depends on nothing, the other on the batch.
    """
    known = anatomy()
    for prefix, tensors in (("features", features), ("labels", labels)):
        for key, tensor in tensors.items():
            known.inputs[f"{prefix}/{key}"] = tensor.name
    with tf1.name_scope("input_wait"):
        start = tf.timestamp()
        with tf.control_dependencies([*features.values(), *labels.values()]):
            known.input_wait = (tf.timestamp() - start).name


class Gate(NamedTuple):
    """Two ways of a step; what depends on the one not taken does not run."""

    opened: tf.Tensor  # bool, there where the condition holds
    closed: tf.Tensor  # bool, there where it does not


def make_gate(condition: tf.Tensor) -> Gate:
    """A gate that is open where a bool scalar is true.

    An operation with `opened` or `closed` among its control inputs takes that way. Unlike
    `tf.cond` this works on operations that were there before, and optimizers may make their slots
    as ever.
    """
    closed, opened = tf.raw_ops.Switch(data=condition, pred=condition)
    return Gate(tf.identity(opened, name="opened"), tf.identity(closed, name="closed"))


def hold_back(gate: Gate, updates: Sequence[Any]) -> None:
    """Makes operations (or tensors, or assigned variables) that exist run at an open gate alone."""
    for update in updates:
        operation = update if isinstance(update, tf.Operation) else update.op
        # The one way to order what other code has built; TensorFlow uses it for that, too.
        operation._add_control_input(gate.opened.op)


def rejoin(gate: Gate, step: tf.Operation) -> tf.Tensor:
    """A tensor that is there once `step` is done, or the batch of a closed gate is kept.

    The batch goes to `Anatomy.kept`. It is handed to Python where the gate is closed alone, so that
    it costs nothing otherwise.
    """
    with tf.control_dependencies([step]):
        opened = tf.identity(gate.opened)
    with tf.control_dependencies([gate.closed]):
        keep = _keep_batch()
    with tf.control_dependencies([keep] if keep is not None else []):
        closed = tf.identity(gate.closed)
    return tf.raw_ops.Merge(inputs=[opened, closed]).output


def _keep_batch() -> Optional[tf.Operation]:
    known = anatomy()
    if not known.inputs:
        return None
    keys = list(known.inputs)
    graph = tf1.get_default_graph()

    def keep(*arrays: np.ndarray) -> None:
        # Copies: the arrays are TensorFlow's, which uses their memory again.
        known.kept.update({key: np.array(array) for key, array in zip(keys, arrays)})

    tensors: List[Any] = [graph.get_tensor_by_name(name) for name in known.inputs.values()]
    return tf.numpy_function(keep, tensors, [])

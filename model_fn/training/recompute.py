"""Activations that the backward pass computes again instead of keeping them.

Between two convolutions stand batch norm and ReLU. Their outputs take as much memory as the
convolution's own, and cost little to compute. With `train_config.recompute`, a training keeps what
pointwise and full convolutions return, and computes again what follows from it by batch norm, ReLU
and depthwise convolutions, when the backward pass first reads it (Chen et al., 2016, "Training deep
nets with sublinear memory cost"). The kernels and their inputs are the same, and so are gradients.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import types
from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, Tuple

from estimator_det.compat import private, tf, tf1
from estimator_det.protos import train_pb2
from inputs.machine import available_memory

_LOG = logging.getLogger(__name__)

_CONV_ATTRIBUTES = ("strides", "padding", "explicit_paddings", "data_format", "dilations")
_NORM_ATTRIBUTES = ("epsilon", "data_format", "is_training")

_Tensors = Dict[str, tf.Tensor]
# By name, the activations that the gradients being built have computed again; None if they do not.
_COPIES: contextvars.ContextVar[Optional[_Tensors]] = contextvars.ContextVar("copies", default=None)


def _attributes(op: tf.Operation, names: Tuple[str, ...]) -> Dict[str, Any]:
    values = {name: op.get_attr(name) for name in names}
    return {key: v.decode() if isinstance(v, bytes) else v for key, v in values.items()}


def _kept(tensor: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """`tensor`, or its copy that is computed once `gradient` is there."""
    copies = _COPIES.get()
    if copies is None:
        return tensor
    if tensor.name not in copies:
        copies[tensor.name] = _computed_again(tensor, gradient)
    return copies[tensor.name]


def _computed_again(tensor: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    op = tensor.op
    if op.type == "Identity":
        return _kept(op.inputs[0], gradient)
    if op.type not in _CHEAP or tensor is not op.outputs[0]:
        return tensor
    inputs = _kept(op.inputs[0], gradient)
    if inputs is op.inputs[0] and op.type != "FusedBatchNormV3":
        return tensor  # Chains begin at a batch norm; its gradient reads its input in any case.
    with tf.control_dependencies([gradient]):
        copy = _CHEAP[op.type](op, inputs)
    copy.set_shape(tensor.shape)
    return copy


def _batch_norm(op: tf.Operation, inputs: tf.Tensor) -> tf.Tensor:
    """Normalizes again, without the updates of moving averages."""
    attributes = _attributes(op, _NORM_ATTRIBUTES)
    moments = ([], []) if attributes["is_training"] else op.inputs[3:5]
    return tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=op.inputs[1],
        offset=op.inputs[2],
        mean=moments[0],
        variance=moments[1],
        **attributes,
    ).y


def _depthwise(op: tf.Operation, inputs: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.DepthwiseConv2dNative(
        input=inputs, filter=op.inputs[1], **_attributes(op, _CONV_ATTRIBUTES)
    )


_CHEAP: Dict[str, Callable[[tf.Operation, tf.Tensor], tf.Tensor]] = {
    "FusedBatchNormV3": _batch_norm,
    "DepthwiseConv2dNative": _depthwise,
    "Relu": lambda op, inputs: tf.raw_ops.Relu(features=inputs),
    "Relu6": lambda op, inputs: tf.raw_ops.Relu6(features=inputs),
}


# Operations whose gradients read activations.
_READERS = ("Conv2D", *_CHEAP)


def _gradient(op: tf.Operation, *gradients: tf.Tensor) -> Any:
    """TensorFlow's own gradients of an operation, from the activations that are kept."""
    inputs, outputs = list(op.inputs), list(op.outputs)
    read = outputs if op.type in ("Relu", "Relu6") else inputs
    read[0] = _kept(read[0], gradients[0])
    kept = types.SimpleNamespace(type=op.type, get_attr=op.get_attr, inputs=inputs, outputs=outputs)
    return private.gradient_of(kept, *gradients)


for _kind in _READERS:
    tf.RegisterGradient(f"estimator_det.{_kind}")(_gradient)


def recomputable() -> ContextManager[None]:
    """Context manager: the gradients of the network built in it can compute activations again."""
    names = {kind: f"estimator_det.{kind}" for kind in _READERS}
    context: ContextManager[None] = tf1.get_default_graph().gradient_override_map(names)
    return context


@contextlib.contextmanager
def recomputing(setting: int) -> Iterator[None]:
    """Context manager: gradients built in it compute activations again, as `setting` says.

    Args:
        setting: `train_config.recompute`. AUTO is ON if the activations fill more than half of this
            machine's memory and no GPU trains.
    """
    modes = train_pb2.TrainConfig
    is_on = setting == modes.ON or (setting == modes.AUTO and _is_short_of_memory())
    copies: Optional[_Tensors] = {} if is_on else None
    token = _COPIES.set(copies)
    try:
        yield
    finally:
        _COPIES.reset(token)
    if copies is not None:
        again = [copy for name, copy in copies.items() if copy.name != name]
        if again:
            _LOG.info("recompute: the backward pass computes %d activations again", len(again))
        else:
            _LOG.warning(
                "train_config.recompute has no effect: no trained layer of this network reads "
                "the output of a separate batch norm"
            )


def _is_short_of_memory() -> bool:
    if tf.config.list_physical_devices("GPU"):
        return False
    operations = tf1.get_default_graph().get_operations()
    outputs = [op.outputs[0] for op in operations if op.type in _READERS]
    sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in outputs]
    return sum(sizes) > available_memory() / 2

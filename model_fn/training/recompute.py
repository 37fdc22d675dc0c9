"""Activations that the backward pass computes again instead of keeping them.

Between two convolutions stand batch norm and ReLU. Their outputs take as much memory as the
convolution's own, and cost little to compute. With `train_config.recompute`, a training keeps what
pointwise and full convolutions return, and computes again what follows from it by batch norm, ReLU
and depthwise convolutions, when the backward pass first reads it (Chen et al., 2016, "Training deep
nets with sublinear memory cost"). Frozen batch norm is folded into its convolution; then two
convolutions of three in a row are computed again, such as those inside of a residual unit, unless
they have many input channels. The kernels and their inputs are the same, and so are gradients.

Gradients themselves are by `convolution_gradients`, with any setting.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import types
from typing import Any, ContextManager, Dict, Iterator, List, Optional

from estimator_det.compat import num_tpu_shards, private, tf, tf1
from estimator_det.config.rules import Tpu, rules
from estimator_det.errors import Problem
from estimator_det.protos import train_pb2
from inputs.machine import available_memory
from model_fn.training import convolution_gradients

_LOG = logging.getLogger(__name__)

# Operations that are computed again; a chain of them begins at one of the second tuple.
_CHEAP = ("FusedBatchNormV3", "DepthwiseConv2dNative", "Relu", "Relu6", "Pad", "Cast")
_FIRST = ("FusedBatchNormV3", "Pad", "Cast")
# Operations whose gradients read activations.
_READERS = ("Conv2D", "MaxPool", "FusedBatchNormV3", "DepthwiseConv2dNative", "Relu", "Relu6")
# Convolutions with folded batch norm in a row that are computed again.
_MAX_CONVOLUTIONS = 2
# The most multiplications for each of their outputs. Late layers have many for few outputs.
_MAX_PRODUCTS = 1200

_Tensors = Dict[str, tf.Tensor]
# By name, the activations that the gradients being built have computed again; None if they do not.
_COPIES: contextvars.ContextVar[Optional[_Tensors]] = contextvars.ContextVar("copies", default=None)


def _kept(tensor: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """`tensor`, or its copy that is computed once `gradient` is there.

    A cast is repeated with any setting of `recompute`: it costs little, and its input is kept.
    """
    copies = _COPIES.get()
    if copies is None:
        is_cast = tensor.op.type == "Cast"
        return _repeated(tensor.op, list(tensor.op.inputs), gradient) if is_cast else tensor
    if tensor.name not in copies:
        copies[tensor.name] = _computed_again(tensor, gradient)
    return copies[tensor.name]


def _computed_again(tensor: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    op = tensor.op
    if op.type == "Identity":
        return _kept(op.inputs[0], gradient)
    if op.type == "BiasAdd" and _num_convolutions(tensor):
        convolution = op.inputs[0].op
        operands = [_kept(convolution.inputs[0], gradient), _scaled_kernel(convolution, gradient)]
        return _repeated(op, [_repeated(convolution, operands, gradient), op.inputs[1]], gradient)
    if op.type not in _CHEAP or tensor is not op.outputs[0]:
        return tensor
    inputs = _kept(op.inputs[0], gradient)
    if inputs is op.inputs[0] and op.type not in _FIRST:
        return tensor  # Other gradients read the inputs of those in `_FIRST` in any case.
    return _repeated(op, [inputs, *op.inputs[1:]], gradient)


def _num_convolutions(tensor: tf.Tensor) -> int:
    """Number of convolutions with folded batch norm after the last activation that is kept."""
    op = tensor.op
    if op.type in ("Identity", "Relu", "Relu6", "Pad", "Cast"):
        return _num_convolutions(op.inputs[0])
    convolution = op.inputs[0].op if op.type == "BiasAdd" else None
    if convolution is None or convolution.type != "Conv2D" or not _is_scaled(convolution):
        return 0
    if convolution.inputs[1].shape[:3].num_elements() > _MAX_PRODUCTS:
        return 0
    number = 1 + _num_convolutions(convolution.inputs[0])
    return number if number <= _MAX_CONVOLUTIONS else 0


def _is_scaled(convolution: tf.Operation) -> bool:
    """True if the kernel is a variable times the factor of a folded batch norm."""
    return bool(_without_cast(convolution.inputs[1]).op.type == "Mul")


def _without_cast(tensor: tf.Tensor) -> tf.Tensor:
    return tensor.op.inputs[0] if tensor.op.type == "Cast" else tensor


def _scaled_kernel(convolution: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    """The kernel, multiplied again if it is scaled, with any setting of `recompute`.

    Such kernels of a ResNet-50 take 90 MB, and multiplying costs no time that can be measured.
    """
    kernel = convolution.inputs[1]
    if not _is_scaled(convolution):
        return kernel
    scaled = _without_cast(kernel)
    again = _repeated(scaled.op, list(scaled.op.inputs), gradient)
    return again if scaled is kernel else _repeated(kernel.op, [again], gradient)


def _repeated(op: tf.Operation, inputs: List[tf.Tensor], gradient: tf.Tensor) -> tf.Tensor:
    # Names of attributes of graphs and contexts begin with an underscore.
    attributes = {name: value for name, value in op.node_def.attr.items() if name[0] != "_"}
    # Only the first of a chain waits: TensorFlow aborts where it joins a convolution and its
    # offset, and both wait for the same operation.
    is_first = inputs[0] is op.inputs[0]
    with tf.control_dependencies([gradient] if is_first else []):
        copy = tf1.get_default_graph().create_op(op.type, inputs, attrs=attributes)
    copy.outputs[0].set_shape(op.outputs[0].shape)
    return copy.outputs[0]


def _gradient(op: tf.Operation, *gradients: tf.Tensor) -> Any:
    """Gradients of an operation, from the activations that are kept."""
    inputs, outputs = list(op.inputs), list(op.outputs)
    read = outputs if op.type in ("Relu", "Relu6") else inputs
    read[0] = _kept(read[0], gradients[0])
    if op.type == "Conv2D":
        inputs[1] = _scaled_kernel(op, gradients[0])
    better = None
    if num_tpu_shards() is None:
        better = convolution_gradients.better_gradients(op, inputs, gradients[0])
    if better is not None:
        return better
    kept = types.SimpleNamespace(type=op.type, get_attr=op.get_attr, inputs=inputs, outputs=outputs)
    return private.gradient_of(kept, *gradients)


for _kind in _READERS:
    tf.RegisterGradient(f"estimator_det.{_kind}")(_gradient)


def recomputable() -> ContextManager[None]:
    """Context manager: the gradients of the network built in it can compute activations again."""
    names = {kind: f"estimator_det.{kind}" for kind in _READERS}
    context: ContextManager[None] = tf1.get_default_graph().gradient_override_map(names)
    return context


@rules(train_pb2.TrainConfig, target="tpu")
def _check_setting(config: train_pb2.TrainConfig, at: str, _: Tpu) -> Iterator[Problem]:
    if config.recompute == config.ON:
        path = f"{at}.recompute"
        yield Problem(
            "warning",
            path,
            "has no effect on a TPU, whose compiler decides what to compute again",
            edits=(f"{path}=AUTO",),
            safe=True,
        )


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
    if num_tpu_shards() is not None or tf.config.list_physical_devices("GPU"):
        return False
    operations = tf1.get_default_graph().get_operations()
    outputs = [op.outputs[0] for op in operations if op.type in _READERS]
    sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in outputs]
    return sum(sizes) > available_memory() / 2

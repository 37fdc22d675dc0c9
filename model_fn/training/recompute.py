"""Activations that the backward pass computes again instead of keeping them.

Between two convolutions stand batch norm and ReLU. Their outputs take as much memory as the
convolution's own, and cost little to compute. With `train_config.recompute`, a training keeps what
pointwise and full convolutions return, and computes again what follows from it by batch norm, ReLU
and depthwise convolutions, when the backward pass first reads it (Chen et al., 2016, "Training deep
nets with sublinear memory cost"). Frozen batch norm is folded into its convolution; then two
convolutions of three in a row are computed again, such as those inside of a residual unit, unless
they have many input channels. The kernels and their inputs are the same, and so are gradients.

Kernels of CPUs that are slow in the backward pass have others in their place, with any setting.
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
from inputs.machine import available_memory, has_bfloat16

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
# Weights of a pointwise kernel for each pixel from which, in bfloat16, a product of matrices is
# faster than the kernel of CPUs that adds up its gradient; in float32 it is faster for all.
_MANY_WEIGHTS = 10

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
    """TensorFlow's own gradients of an operation, from the activations that are kept."""
    inputs, outputs = list(op.inputs), list(op.outputs)
    read = outputs if op.type in ("Relu", "Relu6") else inputs
    read[0] = _kept(read[0], gradients[0])
    if op.type == "Conv2D":
        inputs[1] = _scaled_kernel(op, gradients[0])
    if _is_product(op) and not _has_accelerator():
        return _pointwise_gradients(op, inputs, gradients[0])
    is_narrow_depthwise = op.type == "DepthwiseConv2dNative" and inputs[0].dtype == tf.bfloat16
    if is_narrow_depthwise and num_tpu_shards() is None:
        return _narrow_depthwise_gradients(op, inputs, gradients[0])
    kept = types.SimpleNamespace(type=op.type, get_attr=op.get_attr, inputs=inputs, outputs=outputs)
    return private.gradient_of(kept, *gradients)


def _narrow_depthwise_gradients(
    op: tf.Operation, inputs: List[tf.Tensor], gradient: tf.Tensor
) -> List[tf.Tensor]:
    """Gradients of images and kernel in bfloat16, computed in float32 unless oneDNN is better.

    TensorFlow's own kernels are slower in bfloat16, and the one for filters adds up in it: on large
    maps, half of that gradient is lost. oneDNN's add up in float32 and take less than half of the
    time; but those for images are slow if the padding differs from side to side, and those for
    filters if they are not 3 x 3.
    """
    images, kernel = inputs
    narrow = [images, kernel, gradient]
    with tf.control_dependencies([gradient]):  # else casts would be kept from the forward pass
        wide = [tf.cast(each, tf.float32) for each in narrow]
    has_kernels = private.has_onednn() and has_bfloat16() and not _has_accelerator()
    names = ("strides", "padding", "explicit_paddings", "data_format", "dilations")
    settings = {name: op.get_attr(name) for name in names}

    _, filters, outputs = narrow if has_kernels and _is_padded_evenly(op) else wide
    image_gradient = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
        input_sizes=tf.shape(images), filter=filters, out_backprop=outputs, **settings
    )
    shape = kernel.shape.as_list()
    maps, _, outputs = narrow if has_kernels and shape[:2] == [3, 3] else wide
    kernel_gradient = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
        input=maps, filter_sizes=shape, out_backprop=outputs, **settings
    )
    image_gradient.set_shape(images.shape)
    return [tf.cast(each, tf.bfloat16) for each in (image_gradient, kernel_gradient)]


def _is_padded_evenly(op: tf.Operation) -> bool:
    """True for padding SAME that is known to be as wide on the left as on the right, and so on."""
    stride, kernel = op.get_attr("strides")[1], op.inputs[1].shape[:2].as_list()
    sides = op.inputs[0].shape[1:3].as_list()
    if op.get_attr("padding") != b"SAME" or op.get_attr("data_format") != b"NHWC":
        return False
    return all(
        side is not None and (width - 1 - (side - 1) % stride) % 2 == 0
        for side, width in zip(sides, kernel)
    )


def _has_accelerator() -> bool:
    return num_tpu_shards() is not None or bool(tf.config.list_physical_devices("GPU"))


def _is_product(op: tf.Operation) -> bool:
    """True for a convolution whose gradient of the kernel is faster as a product of matrices."""
    if op.type != "Conv2D":
        return False
    images, kernel = op.inputs
    if not (
        kernel.shape[:3] == (1, 1, images.shape[3])  # not in groups
        and op.get_attr("strides") == [1, 1, 1, 1]
        and op.get_attr("data_format") == b"NHWC"
        and op.get_attr("padding") != b"EXPLICIT"
    ):
        return False
    if kernel.dtype != tf.bfloat16:
        return bool(kernel.dtype == tf.float32)
    pixels = images.shape[:3].num_elements()
    return pixels is not None and kernel.shape.num_elements() > _MANY_WEIGHTS * pixels


def _pointwise_gradients(
    op: tf.Operation, inputs: List[tf.Tensor], gradient: tf.Tensor
) -> List[tf.Tensor]:
    """Gradients of images and kernel; the latter as a product of matrices.

    On large maps, the kernel of CPUs for it takes two thirds of the time of TensorFlow's own.
    """
    images, kernel = inputs
    size, (depth, outputs) = tf.shape(images), kernel.shape[2:].as_list()
    image_gradient = tf1.nn.conv2d_backprop_input(size, kernel, gradient, [1, 1, 1, 1], "SAME")
    image_gradient.set_shape(images.shape)
    rows = tf.reshape(images, [-1, depth])
    kernel_gradient = tf.matmul(rows, tf.reshape(gradient, [-1, outputs]), transpose_a=True)
    return [image_gradient, tf.reshape(kernel_gradient, kernel.shape)]


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
    if _has_accelerator():
        return False
    operations = tf1.get_default_graph().get_operations()
    outputs = [op.outputs[0] for op in operations if op.type in _READERS]
    sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in outputs]
    return sum(sizes) > available_memory() / 2

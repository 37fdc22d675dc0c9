"""Gradients of convolutions by other kernels, where TensorFlow's own are slow or inexact."""

from __future__ import annotations

from typing import List, Optional

from estimator_det.compat import private, tf, tf1
from inputs.machine import has_bfloat16

# Weights of a pointwise kernel for each pixel from which, in bfloat16, a product of matrices is
# faster on CPUs than the convolution's own gradient; in float32 it is faster for all.
_MANY_WEIGHTS = 10
# Weights of a pointwise kernel up to which, in float32, such a product is mostly faster for images.
_FEW_WEIGHTS = 1 << 14


def better_gradients(
    op: tf.Operation, inputs: List[tf.Tensor], gradient: tf.Tensor
) -> Optional[List[tf.Tensor]]:
    """Gradients of images and kernel; None where TensorFlow's own are good. Not for a TPU.

    Args:
        op: An operation of the forward pass, of any type.
        inputs: Its inputs, or tensors of the same values.
        gradient: Gradient of its output.
    """
    if op.type == "DepthwiseConv2dNative" and inputs[0].dtype == tf.bfloat16:
        return _depthwise_gradients(op, inputs, gradient)
    is_product = _is_product(op) and not _has_gpu()
    return _pointwise_gradients(inputs, gradient) if is_product else None


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _depthwise_gradients(
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
    has_kernels = private.has_onednn() and has_bfloat16() and not _has_gpu()
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


def _pointwise_gradients(inputs: List[tf.Tensor], gradient: tf.Tensor) -> List[tf.Tensor]:
    """Gradients of images and kernel; the latter as a product of matrices.

    On large maps, the kernel of CPUs for it takes two thirds of the time of TensorFlow's own. For
    images, products with most small kernels take .6 to 1 times, and with large ones up to 1.3.
    """
    images, kernel = inputs
    size, (depth, outputs) = tf.shape(images), kernel.shape[2:].as_list()
    slopes = tf.reshape(gradient, [-1, outputs])
    if kernel.dtype == tf.float32 and depth * outputs <= _FEW_WEIGHTS:
        weights = tf.reshape(kernel, [depth, outputs])
        image_gradient = tf.reshape(tf.matmul(slopes, weights, transpose_b=True), size)
    else:
        image_gradient = tf1.nn.conv2d_backprop_input(size, kernel, gradient, [1, 1, 1, 1], "SAME")
    image_gradient.set_shape(images.shape)
    kernel_gradient = tf.matmul(tf.reshape(images, [-1, depth]), slopes, transpose_a=True)
    return [image_gradient, tf.reshape(kernel_gradient, kernel.shape)]

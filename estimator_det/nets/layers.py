"""Convolutions of tf-slim, with simulated quantization if a quantizer is open.

Arguments, argument scopes and variables are as in `slim.conv2d` and `slim.separable_conv2d`. A
quantized layer rounds its kernel, batch norm included, and its output after the activation.

The argument `padding` may also be `EXPLICIT`: zeros by kernel size, instead of by the size of the
inputs.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, Sequence, Tuple, Union

from estimator_det.compat import slim, tf, tf1
from estimator_det.errors import ConfigError
from estimator_det.nets.hyperparams import DepthwisePenalty
from estimator_det.nets.normalization import NormalizedConvolution, batch_norm, sync_batch_norm
from estimator_det.nets.quantization import (
    ACTIVATION,
    BEFORE_ACTIVATION,
    MEAN,
    PRODUCT,
    RESIDUAL_SUM,
    Quantizer,
    open_quantizer,
)

Sides = Union[int, Sequence[int]]  # height and width, or both
_Kernel = Callable[..., Any]  # see `_kernel`

EXPLICIT = "EXPLICIT"

# Type of the convolutions of a float32 network, if it is another one.
_NARROW: contextvars.ContextVar[Any] = contextvars.ContextVar("narrow", default=None)

# Activations that integer kernels apply while they write the output of a convolution.
_FUSED_ACTIVATIONS = (None, tf.identity, tf.nn.relu, tf.nn.relu6)


def pad_for_kernel(inputs: tf.Tensor, kernel_size: int) -> tf.Tensor:
    """Pads h and w so that a VALID convolution keeps the size at stride 1.

    At stride 2, "SAME" padding depends on the input size; this does not. Some accelerators need
    that, and so do checkpoints trained with explicit padding.

    The odd row and column, if any, are at the bottom and the right.
    """
    before = (kernel_size - 1) // 2
    after = kernel_size // 2
    return tf.pad(inputs, [[0, 0], [before, after], [before, after], [0, 0]])


def choose_padding(is_explicit: bool) -> str:
    """Value of `padding` with or without `use_explicit_padding`."""
    return EXPLICIT if is_explicit else "SAME"


def max_pool(inputs: tf.Tensor, window: int, stride: int, padding: str) -> tf.Tensor:
    """Computes `tf.nn.max_pool2d`; explicit padding is with zeros, too."""
    if padding == EXPLICIT:
        inputs, padding = pad_for_kernel(inputs, window), "VALID"
    return tf.nn.max_pool2d(inputs, window, stride, padding)


@contextlib.contextmanager
def convolutions_of_type(dtype: Optional[tf.DType]) -> Iterator[None]:
    """Context manager: these layers compute in `dtype`, and return float32; None for float32.

    That is the convolution with its batch norm, whose statistics are float32, and its activation.
    What is not such a layer stays float32: residual sums, pooling, products of matrices.
    """
    token = _NARROW.set(dtype)
    try:
        yield
    finally:
        _NARROW.reset(token)


def _narrow(inputs: tf.Tensor) -> tf.Tensor:
    dtype = _NARROW.get()
    if dtype is None:
        return inputs
    # The output of such a layer is there in `dtype`.
    is_output = inputs.op.type == "Cast" and inputs.op.inputs[0].dtype == dtype
    return inputs.op.inputs[0] if is_output else tf.cast(inputs, dtype)


def _wide(outputs: tf.Tensor) -> tf.Tensor:
    return outputs if _NARROW.get() is None else tf.cast(outputs, tf.float32)


def _pad_explicitly(inputs: tf.Tensor, kernel_size: Sides, settings: Dict[str, Any]) -> tf.Tensor:
    if settings.get("padding") != EXPLICIT:
        return inputs
    settings["padding"] = "VALID"
    return pad_for_kernel(inputs, _pair(kernel_size)[0])


def conv2d(inputs: tf.Tensor, num_outputs: int, kernel_size: Sides, **settings: Any) -> tf.Tensor:
    """Computes `slim.conv2d`, quantized if a quantizer is open; the arguments are the same."""
    inputs = _pad_explicitly(_narrow(inputs), kernel_size, settings)
    if "stride" in settings and inputs.shape[1:3].as_list() == [1, 1]:
        # A stride has no effect on one pixel; oneDNN, up to TensorFlow 2.21 at least, computes the
        # bfloat16 gradient of a strided 3x3 kernel there from memory that nobody has written.
        settings["stride"] = 1
    quantizer = open_quantizer()
    if quantizer is None:
        return _wide(slim.conv2d(inputs, num_outputs, kernel_size, **settings))
    layer = _Layer.from_call(slim.conv2d, settings)
    with tf1.variable_scope(layer.scope, "Conv", [inputs]):

        def convolve(kernel: tf.Tensor) -> tf.Tensor:
            rate = _pair(layer.rate)
            return tf.nn.conv2d(inputs, kernel, _pair(layer.stride), layer.padding, dilations=rate)

        shape = (*_pair(kernel_size), inputs.shape[-1], num_outputs)
        kernel = _kernel("weights", shape, inputs.dtype, layer.weights_initializer)
        return layer.output(quantizer, kernel, shape[3:], convolve)


def separable_conv2d(
    inputs: tf.Tensor,
    num_outputs: Optional[int],
    kernel_size: Sides,
    depth_multiplier: int = 1,
    **settings: Any,
) -> tf.Tensor:
    """Computes `slim.separable_conv2d`, quantized if a quantizer is open; same arguments.

    Without `num_outputs` it is the depthwise half only. With `num_outputs`, the values between the
    two halves are quantized, too.
    """
    inputs = _pad_explicitly(_narrow(inputs), kernel_size, settings)
    quantizer = open_quantizer()
    if quantizer is None:
        return _wide(
            slim.separable_conv2d(
                inputs, num_outputs, kernel_size, depth_multiplier=depth_multiplier, **settings
            )
        )
    layer = _Layer.from_call(slim.separable_conv2d, settings)
    with tf1.variable_scope(layer.scope, "SeparableConv2d", [inputs]):

        def convolve_depthwise(kernel: tf.Tensor) -> tf.Tensor:
            strides, rate = (1, *_pair(layer.stride), 1), _pair(layer.rate)
            return tf.nn.depthwise_conv2d(inputs, kernel, strides, layer.padding, dilations=rate)

        shape = (*_pair(kernel_size), inputs.shape[-1], depth_multiplier)
        kernel = _kernel("depthwise_weights", shape, inputs.dtype, layer.weights_initializer)
        if num_outputs is None:
            return layer.output(quantizer, kernel, shape[2:], convolve_depthwise)
        scope = f"{quantizer.scope()}/separable_conv2d"
        depthwise = convolve_depthwise(layer.quantize_kernel(quantizer, scope, kernel))
        depthwise = quantizer.activation(f"{scope}/{ACTIVATION}", depthwise, least=0.0)

        def convolve_pointwise(kernel: tf.Tensor) -> tf.Tensor:
            return tf.nn.conv2d(depthwise, kernel, 1, "VALID")

        if isinstance(layer.weights_regularizer, DepthwisePenalty):
            layer = dataclasses.replace(layer, weights_regularizer=None)
        shape = (1, 1, depthwise.shape[-1], num_outputs)
        initializer = layer.pointwise_initializer or layer.weights_initializer
        pointwise = _kernel("pointwise_weights", shape, inputs.dtype, initializer)
        return layer.output(quantizer, pointwise, shape[3:], convolve_pointwise)


def residual_sum(values: tf.Tensor, shortcut: tf.Tensor) -> tf.Tensor:
    """Adds two tensors; the sum is quantized if a quantizer is open."""
    return quantized(values + shortcut, RESIDUAL_SUM)


def squeeze_excite(
    net: tf.Tensor,
    hidden: int,
    activation: Callable[[tf.Tensor], tf.Tensor],
    gate: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Weights channels by two layers, of `hidden` and all channels, on their means (Hu, 2018)."""
    means = quantized(tf.reduce_mean(net, [1, 2], keepdims=True), MEAN)
    with slim.arg_scope([slim.conv2d], normalizer_fn=None):
        squeezed = conv2d(means, hidden, 1, activation_fn=activation, scope="Conv")
        weights = conv2d(squeezed, net.shape[-1], 1, activation_fn=gate, scope="Conv_1")
    return quantized(net * weights, PRODUCT)


def quantized(values: tf.Tensor, name: str) -> tf.Tensor:
    """Quantizes `values` that are not the output of a convolution, if a quantizer is open."""
    quantizer = open_quantizer()
    if quantizer is None:
        return values
    scope = quantizer.scope()
    return quantizer.activation(f"{scope}/{name}" if scope else name, values)


def ranges_with_suffix(suffix: str) -> ContextManager[None]:
    """Context manager: `suffix` follows the open variable scope in names of ranges."""
    quantizer = open_quantizer()
    if quantizer is None:
        return contextlib.nullcontext()
    return quantizer.renamed(f"{tf1.get_variable_scope().name}{suffix}")


def repeat_scope_in_range_names() -> ContextManager[None]:
    """Context manager: ranges' names repeat the innermost variable scope."""
    # The Object Detection API opens this scope twice, which shows in the names of ranges only.
    return ranges_with_suffix("/" + tf1.get_variable_scope().name.rpartition("/")[2])


def _pair(sides: Sides) -> Tuple[int, int]:
    if isinstance(sides, int):
        return sides, sides
    height, width = sides
    return height, width


def _kernel(name: str, shape: Sequence[int], dtype: Any, initializer: Any) -> _Kernel:
    """Function of a penalty that creates a variable in the open variable scope.

    The shape is HWIO, or HWC and multiplier of a depthwise kernel.
    """
    return functools.partial(slim.model_variable, name, shape, dtype, initializer)


@dataclasses.dataclass(frozen=True)
class _Layer:
    """Arguments of a tf-slim convolution, with tf-slim's defaults."""

    weights_initializer: Any
    biases_initializer: Any
    scope: Any = None
    stride: Sides = 1
    padding: str = "SAME"
    rate: Sides = 1
    activation_fn: Optional[Callable[[tf.Tensor], tf.Tensor]] = tf.nn.relu
    normalizer_fn: Optional[Callable[..., tf.Tensor]] = None
    normalizer_params: Optional[Dict[str, Any]] = None
    pointwise_initializer: Any = None
    weights_regularizer: Optional[Any] = None
    biases_regularizer: Optional[Any] = None

    @classmethod
    def from_call(cls, function: Any, settings: Dict[str, Any]) -> _Layer:
        """Combines the settings of a call with the settings of the open argument scopes."""
        defaults = {
            "weights_initializer": slim.xavier_initializer(),
            "biases_initializer": tf1.zeros_initializer(),
        }
        scope_settings = slim.current_arg_scope().get(slim.arg_scope_func_key(function), {})
        return cls(**{**defaults, **scope_settings, **settings})

    def output(
        self,
        quantizer: Quantizer,
        kernel: _Kernel,
        scale_shape: Tuple[int, ...],
        convolve: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        """Computes the layer's output with a kernel and the function that applies it.

        With `scale_shape`, one factor for each output channel broadcasts with the kernel.
        """
        scope = quantizer.scope()
        if self.normalizer_fn is None:
            outputs = convolve(self.quantize_kernel(quantizer, scope, kernel))
            outputs = self._with_bias(outputs)
        elif self.normalizer_fn in (batch_norm, sync_batch_norm):
            weights = kernel(regularizer=self.weights_regularizer)
            convolution = NormalizedConvolution(
                tf.identity(weights),
                scale_shape,
                convolve,
                lambda folded: quantizer.weights(scope, folded),
            )
            outputs = self.normalizer_fn(
                weights, convolution=convolution, **(self.normalizer_params or {})
            )
        else:
            name = getattr(self.normalizer_fn, "__name__", "normalization")
            raise ConfigError.at(
                "graph_rewriter.quantization",
                f"the {name} of {scope} cannot become part of its convolution",
                "Use batch_norm without force_use_bias in conv_hyperparams, or remove "
                "graph_rewriter",
            )
        if self.activation_fn not in _FUSED_ACTIVATIONS:
            outputs = quantizer.activation(f"{scope}/{BEFORE_ACTIVATION}", outputs)
        if self.activation_fn is not None:
            outputs = self.activation_fn(outputs)
        return quantizer.activation(f"{scope}/{ACTIVATION}", outputs, least=0.0)

    def quantize_kernel(self, quantizer: Quantizer, scope: str, kernel: _Kernel) -> tf.Tensor:
        """Quantizes the kernel, and adds its penalty to the graph."""
        rounded, is_new = quantizer.variable(scope, kernel(regularizer=None))
        penalty = self.weights_regularizer(rounded) if self.weights_regularizer else None
        if is_new and penalty is not None:
            tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, penalty)
        return rounded

    def _with_bias(self, outputs: tf.Tensor) -> tf.Tensor:
        if self.biases_initializer is None:
            return outputs
        bias = slim.model_variable(
            "biases",
            [outputs.shape[-1]],
            outputs.dtype,
            self.biases_initializer,
            regularizer=self.biases_regularizer,
        )
        return tf.nn.bias_add(outputs, bias)

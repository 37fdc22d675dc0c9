"""Batch norm in few graph nodes, and batch norm over the batches of all replicas.

Variables (`BatchNorm/beta`, `gamma`, `moving_mean`, `moving_variance`) and numbers are as in
`slim.batch_norm`. The fused kernel updates the moving averages itself, which saves thirteen nodes
for each layer of a training graph.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple

from estimator_det.compat import num_tpu_shards, slim, tf, tf1


class _Parameters(NamedTuple):
    beta: Any  # float32 [C]
    gamma: Any
    moving_mean: Any
    moving_variance: Any


class NormalizedConvolution(NamedTuple):
    """A convolution with simulated quantization, into which its batch norm is folded."""

    kernel: tf.Tensor  # float [height, width, inputs, outputs], or a depthwise one
    # Shape of one factor per output channel, for broadcasting with the kernel.
    scale_shape: Tuple[int, ...]
    convolve: Callable[[tf.Tensor], tf.Tensor]  # kernel -> outputs [B, h, w, C]
    quantize: Callable[[tf.Tensor], tf.Tensor]  # rounds the kernel after the batch norm's factor

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return math.prod(self.scale_shape)


def _parameters(channels: int, center: bool, scale: bool) -> _Parameters:
    """Variables in the open variable scope; constants instead of unused ones."""

    def variable(name: str, start: float, **settings: Any) -> Any:
        initializer = tf1.constant_initializer(start)
        return tf1.get_variable(name, [channels], tf.float32, initializer=initializer, **settings)

    average = {
        "trainable": False,
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf1.VariableAggregation.MEAN,
    }
    return _Parameters(
        gamma=variable("gamma", 1.0) if scale else tf.ones([channels]),
        beta=variable("beta", 0.0) if center else tf.zeros([channels]),
        moving_mean=variable("moving_mean", 0.0, **average),
        moving_variance=variable("moving_variance", 1.0, **average),
    )


def _with_updates(outputs: tf.Tensor, updates: List[Any], collections: Any) -> tf.Tensor:
    """Adds updates to the collections, or makes `outputs` wait for them if there are none."""
    if collections is None:
        with tf1.control_dependencies(updates):
            return tf.identity(outputs)
    for update in updates:
        tf1.add_to_collections(collections, update)
    return outputs


@slim.add_arg_scope
def batch_norm(
    inputs: tf.Tensor,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    is_training: bool = True,
    updates_collections: Any = tf1.GraphKeys.UPDATE_OPS,
    scope: Any = None,
    folds: bool = False,
    convolution: Optional[NormalizedConvolution] = None,
    over_replicas: bool = False,
) -> tf.Tensor:
    """Batch norm (Ioffe & Szegedy, 2015) of [B, h, w, C] or [B, C], over all axes but the last.

    In training, it uses the batch's statistics and updates the averages, in operations of
    `updates_collections` or, if that is None, with the layer. `folds` makes the averages part of
    the convolution whose output is normalized: the same result and gradients, in less time and half
    the memory. A quantized `convolution` is normalized instead of `inputs`. In training,
    `over_replicas` makes the statistics cover the batches of all replicas, as in `sync_batch_norm`.
    """
    with tf1.variable_scope(scope, "BatchNorm", [inputs]):
        if convolution is not None:
            if not is_training:
                parameters = _parameters(convolution.channels, center, scale)
                return _quantize(convolution, parameters, epsilon)
            inputs = convolution.convolve(convolution.kernel)
        parameters = _parameters(inputs.shape[-1], center, scale)
        if not is_training:
            if folds and _can_fold(inputs):
                return _fold(inputs.op, parameters, epsilon)
            return _fused(inputs, parameters, epsilon)[0]
        if over_replicas:
            moments = _moments_over_replicas(tf.cast(inputs, tf.float32))
            outputs, mean, variance = _normalize(inputs, moments, parameters, epsilon, decay)
        else:
            outputs, mean, variance = _fused(inputs, parameters, epsilon, decay)
        if convolution is not None:
            if not over_replicas:
                moments = tf.nn.moments(tf.cast(inputs, tf.float32), [0, 1, 2])
            # Read before the updates, which may happen in place.
            old_variance = tf.identity(parameters.moving_variance)
            outputs += _rounding_effect(convolution, old_variance, parameters, moments[1], epsilon)
            with tf1.control_dependencies([old_variance]):
                variance = tf.identity(variance)
        updates = [
            parameters.moving_mean.assign(mean, read_value=False),
            parameters.moving_variance.assign(variance, read_value=False),
        ]
        return _with_updates(outputs, updates, updates_collections)


def _fused(
    inputs: tf.Tensor, parameters: _Parameters, epsilon: float, decay: Optional[float] = None
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes by the batch with a decay, else by the averages; also returns new averages."""
    is_training = decay is not None
    values = inputs if inputs.shape.rank == 4 else inputs[:, tf.newaxis, tf.newaxis, :]
    outputs, mean, variance = tf1.nn.fused_batch_norm(
        values,
        parameters.gamma,
        parameters.beta,
        mean=parameters.moving_mean,
        variance=parameters.moving_variance,
        epsilon=epsilon,
        is_training=is_training,
        exponential_avg_factor=1.0 if decay is None else 1.0 - decay,
    )
    return outputs if inputs.shape.rank == 4 else outputs[:, 0, 0, :], mean, variance


def _normalize(
    inputs: tf.Tensor,
    moments: Tuple[tf.Tensor, tf.Tensor],
    parameters: _Parameters,
    epsilon: float,
    decay: float,
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes by these moments, float32 [C] each; also returns the new averages."""
    outputs = tf.nn.batch_normalization(
        tf.cast(inputs, tf.float32), *moments, parameters.beta, parameters.gamma, epsilon
    )
    mean, variance = (
        average + (new - average) * (1.0 - decay)
        for average, new in zip((parameters.moving_mean, parameters.moving_variance), moments)
    )
    return tf.cast(outputs, inputs.dtype), mean, variance


def _can_fold(inputs: tf.Tensor) -> bool:
    """True if batch norm directly follows a plain convolution in a graph."""
    return not tf.executing_eagerly() and inputs.op.type == "Conv2D"


def _fold(convolution: tf.Operation, parameters: _Parameters, epsilon: float) -> tf.Tensor:
    """Folds batch norm into a `Conv2D` operation: one convolution with an offset.

    Separate batch norm would need the convolution's output in the backward pass. The new
    convolution replaces the operation, which nothing reads any more.
    """
    # The factor is folded into the kernel, so that no scaled copy of the outputs is stored.
    images, kernel = convolution.inputs
    factor = parameters.gamma * tf1.rsqrt(parameters.moving_variance + epsilon)
    is_cast = kernel.op.type == "Cast"  # from the float32 of a variable
    wide_kernel = kernel.op.inputs[0] if is_cast else tf.cast(kernel, tf.float32)
    names = ("strides", "explicit_paddings", "dilations")
    outputs = tf.raw_ops.Conv2D(
        input=images,
        filter=tf.cast(wide_kernel * factor, kernel.dtype),
        padding=convolution.get_attr("padding").decode(),
        **{name: list(convolution.get_attr(name)) for name in names},
    )
    offset = parameters.beta - parameters.moving_mean * factor
    return tf.nn.bias_add(outputs, tf.cast(offset, outputs.dtype))


def _quantize(
    convolution: NormalizedConvolution, parameters: _Parameters, epsilon: float
) -> tf.Tensor:
    """Folds batch norm with the moving averages into the quantized convolution."""
    factor = parameters.gamma * tf1.rsqrt(parameters.moving_variance + epsilon)
    outputs = convolution.convolve(convolution.quantize(_scale_kernel(convolution, factor)))
    offset = parameters.beta - parameters.moving_mean * factor
    return tf.nn.bias_add(outputs, tf.cast(offset, outputs.dtype))


def _rounding_effect(
    convolution: NormalizedConvolution,  # convolution to normalize
    moving_variance: tf.Tensor,  # float32 [C], before this step
    parameters: _Parameters,  # variables of the batch norm
    variance: tf.Tensor,  # float32 [C], variance of the batch, with its gradient
    epsilon: float,  # added to variances
) -> tf.Tensor:
    """Change of batch norm's outputs in training by rounding the kernel, [B, h, w, C].

    As in an evaluation, the kernel is rounded after it is multiplied with the factor of the moving
    average. The factor of the batch replaces that factor only in the outputs, so that the levels of
    the kernel change slowly (Krishnamoorthi, "Quantizing deep convolutional networks for efficient
    inference", 2018, section 3.2.2). A rounded kernel is the sum of the kernel and a rounding
    error, and convolutions are linear: the rest is normal batch norm, with its exact gradients.
    """
    expected = tf1.rsqrt(moving_variance + epsilon)
    kernel = _scale_kernel(convolution, parameters.gamma * expected)
    outputs = convolution.convolve(convolution.quantize(kernel) - kernel)
    return outputs * tf.cast(tf1.rsqrt(variance + epsilon) / expected, outputs.dtype)


def _scale_kernel(convolution: NormalizedConvolution, factor: tf.Tensor) -> tf.Tensor:
    factor = tf.reshape(factor, convolution.scale_shape)
    return convolution.kernel * tf.cast(factor, convolution.kernel.dtype)


def _num_replicas() -> int:
    """Number of replicas that train together here: cores of a TPU, or replicas of a strategy."""
    shards = num_tpu_shards()
    if shards is not None:
        return shards
    if not tf1.distribute.has_strategy() or tf1.distribute.in_cross_replica_context():
        return 1
    return int(tf1.distribute.get_strategy().num_replicas_in_sync)


def _moments_over_replicas(inputs: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance per channel, in float32, over the batches of all replicas."""
    axes = list(range(inputs.shape.rank - 1))
    local = [tf.reduce_mean(inputs, axes), tf.reduce_mean(tf.square(inputs), axes)]
    shards = num_tpu_shards()
    if shards is not None:
        mean, mean_square = (tf1.tpu.cross_replica_sum(moment) / shards for moment in local)
    else:
        context = tf1.distribute.get_replica_context()
        mean, mean_square = context.all_reduce(tf1.distribute.ReduceOp.MEAN, local)
    # Rounding can make the difference slightly negative.
    return mean, tf.maximum(mean_square - tf.square(mean), 0.0)


@slim.add_arg_scope
def sync_batch_norm(inputs: tf.Tensor, is_training: bool = True, **settings: Any) -> tf.Tensor:
    """`batch_norm` with statistics over the batches of all replicas; its arguments, but `folds`."""
    over_replicas = is_training and _num_replicas() > 1
    return batch_norm(inputs, is_training=is_training, over_replicas=over_replicas, **settings)


BATCH_NORMS = (slim.batch_norm, batch_norm, sync_batch_norm)
"""Layers that an argument scope for batch norm must name."""


@contextlib.contextmanager
def published_scope(
    decay: float, epsilon: float, *, scale: bool = True, **layer_settings: Any
) -> Iterator[None]:
    """Argument scope of a published network, whose batch norms have an offset.

    The scopes around it decide if batch norm learns and where its averages are updated. Layer
    settings apply to plain and separable convolutions.
    """
    norm_settings = {"center": True, "scale": scale, "decay": decay, "epsilon": epsilon}
    with (
        slim.arg_scope(list(BATCH_NORMS), **norm_settings),
        slim.arg_scope([slim.conv2d, slim.separable_conv2d], **layer_settings),
    ):
        yield

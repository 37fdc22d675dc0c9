"""Batch norm in few graph nodes, and batch norm over the batches of all replicas.

Variables (`BatchNorm/beta`, `gamma`, `moving_mean`, `moving_variance`) and numbers are those of
`slim.batch_norm`. The fused kernel averages the moving statistics itself, which leaves thirteen
nodes fewer for each layer of a training graph.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, NamedTuple, Tuple

from estimator_det.compat import num_tpu_shards, slim, tf, tf1


class _Parameters(NamedTuple):
    beta: Any  # float32 [C]
    gamma: Any
    moving_mean: Any
    moving_variance: Any


def _parameters(channels: int, center: bool, scale: bool) -> _Parameters:
    """Variables in the open variable scope; constants for those not wanted."""

    def variable(name: str, start: Any) -> Any:
        return tf1.get_variable(name, [channels], tf.float32, initializer=start)

    def average(name: str, start: Any) -> Any:
        return tf1.get_variable(
            name,
            [channels],
            tf.float32,
            initializer=start,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf1.VariableAggregation.MEAN,
        )

    zeros, ones = tf1.constant_initializer(0.0), tf1.constant_initializer(1.0)
    return _Parameters(
        gamma=variable("gamma", ones) if scale else tf.ones([channels]),
        beta=variable("beta", zeros) if center else tf.zeros([channels]),
        moving_mean=average("moving_mean", zeros),
        moving_variance=average("moving_variance", ones),
    )


def _with_updates(outputs: tf.Tensor, updates: List[Any], collections: Any) -> tf.Tensor:
    """Hands updates to the collection, or makes `outputs` wait for them where it is None."""
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
) -> tf.Tensor:
    """Batch norm (Ioffe & Szegedy, 2015) over all axes but the last.

    Args:
        inputs: float [B, h, w, C] or [B, C], C static.
        decay: Of the moving averages, per step.
        center: Learn an offset, beta.
        scale: Learn a factor, gamma.
        epsilon: Added to the variance.
        is_training: Use the batch's statistics and move the averages; else use the averages.
        updates_collections: Graph collections that get the two update operations; None runs
            them with the layer.
        scope: Variable scope; "BatchNorm" by default.
        folds: Where the averages are used on the output of a convolution, make them part of the
            convolution: the same result and gradients, in less time and half the memory.

    Returns:
        Like `inputs`.
    """
    with tf1.variable_scope(scope, "BatchNorm", [inputs]):
        values = inputs if inputs.shape.rank == 4 else inputs[:, tf.newaxis, tf.newaxis, :]
        parameters = _parameters(inputs.shape[-1], center, scale)
        if folds and not is_training and _can_fold(inputs):
            return _folded(inputs.op, parameters, epsilon)
        outputs, mean, variance = tf1.nn.fused_batch_norm(
            values,
            parameters.gamma,
            parameters.beta,
            mean=parameters.moving_mean,
            variance=parameters.moving_variance,
            epsilon=epsilon,
            is_training=is_training,
            exponential_avg_factor=1.0 - decay if is_training else 1.0,
        )
        if inputs.shape.rank != 4:
            outputs = outputs[:, 0, 0, :]
        if not is_training:
            return outputs
        updates = [
            parameters.moving_mean.assign(mean, read_value=False),
            parameters.moving_variance.assign(variance, read_value=False),
        ]
        return _with_updates(outputs, updates, updates_collections)


def _can_fold(inputs: tf.Tensor) -> bool:
    """Whether float32 batch norm directly follows a plain convolution in a graph."""
    in_graph = not tf.executing_eagerly()
    return in_graph and inputs.dtype == tf.float32 and inputs.op.type == "Conv2D"


def _folded(convolution: tf.Operation, parameters: _Parameters, epsilon: float) -> tf.Tensor:
    """A `Conv2D` operation and its batch norm as one convolution with an offset.

    With batch norm by itself, the backward pass needs the output of the convolution as well. This
    convolution takes the place of the given one, which nothing reads any more.
    """
    images, kernel = convolution.inputs
    factor = parameters.gamma * tf1.rsqrt(parameters.moving_variance + epsilon)
    names = ("strides", "explicit_paddings", "dilations")
    outputs = tf.raw_ops.Conv2D(
        input=images,
        filter=kernel * factor,
        padding=convolution.get_attr("padding").decode(),
        **{name: list(convolution.get_attr(name)) for name in names},
    )
    return tf.nn.bias_add(outputs, parameters.beta - parameters.moving_mean * factor)


def _num_replicas() -> int:
    """How many replicas train together at this point: cores of a TPU, or those of a strategy."""
    shards = num_tpu_shards()
    if shards is not None:
        return shards
    if not tf1.distribute.has_strategy() or tf1.distribute.in_cross_replica_context():
        return 1
    return int(tf1.distribute.get_strategy().num_replicas_in_sync)


def _moments_over_replicas(inputs: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance per channel, in float32, over every replica's batch."""
    axes = list(range(inputs.shape.rank - 1))
    local = [tf.reduce_mean(inputs, axes), tf.reduce_mean(tf.square(inputs), axes)]
    shards = num_tpu_shards()
    if shards is not None:
        mean, mean_square = (tf1.tpu.cross_replica_sum(moment) / shards for moment in local)
    else:
        context = tf1.distribute.get_replica_context()
        mean, mean_square = context.all_reduce(tf1.distribute.ReduceOp.MEAN, local)
    return mean, tf.maximum(mean_square - tf.square(mean), 0.0)


@slim.add_arg_scope
def sync_batch_norm(
    inputs: tf.Tensor,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    is_training: bool = True,
    updates_collections: Any = tf1.GraphKeys.UPDATE_OPS,
    scope: Any = None,
) -> tf.Tensor:
    """`batch_norm` with statistics over the batches of all replicas that train together."""
    if not is_training or _num_replicas() == 1:
        return batch_norm(
            inputs,
            decay=decay,
            center=center,
            scale=scale,
            epsilon=epsilon,
            is_training=is_training,
            updates_collections=updates_collections,
            scope=scope,
        )
    with tf1.variable_scope(scope, "BatchNorm", [inputs]):
        parameters = _parameters(inputs.shape[-1], center, scale)
        values = tf.cast(inputs, tf.float32)
        mean, variance = _moments_over_replicas(values)
        outputs = tf.nn.batch_normalization(
            values, mean, variance, parameters.beta, parameters.gamma, epsilon
        )
        updates = [
            average.assign_add((new - average) * (1.0 - decay), read_value=False)
            for average, new in (
                (parameters.moving_mean, mean),
                (parameters.moving_variance, variance),
            )
        ]
        return _with_updates(tf.cast(outputs, inputs.dtype), updates, updates_collections)


BATCH_NORMS = (slim.batch_norm, batch_norm, sync_batch_norm)
"""Layers that an argument scope for batch norm must name."""


@contextlib.contextmanager
def published_scope(
    decay: float, epsilon: float, *, scale: bool = True, **layer_settings: Any
) -> Iterator[None]:
    """Argument scope of a published network, whose batch norms have an offset.

    The scopes around decide whether batch norm learns and where its averages are updated.

    Args:
        decay: Of the moving averages of batch norm.
        epsilon: Of batch norm.
        scale: Whether batch norm has a factor too.
        **layer_settings: Of plain and separable convolutions.
    """
    norm_settings = {"center": True, "scale": scale, "decay": decay, "epsilon": epsilon}
    with (
        slim.arg_scope(list(BATCH_NORMS), **norm_settings),
        slim.arg_scope([slim.conv2d, slim.separable_conv2d], **layer_settings),
    ):
        yield

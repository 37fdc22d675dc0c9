"""MobileNets as tables of layers.

MobileNet v1: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
Applications", 2017. Variables are named as in the published classifiers, so their checkpoints can
be restored.
"""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Dict, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf
from estimator_det.nets.hyperparams import truncated_normal
from estimator_det.nets.layers import (
    choose_padding,
    conv2d,
    repeat_scope_in_range_names,
    separable_conv2d,
)
from estimator_det.nets.normalization import batch_norm, published_scope

# Settings with which the published MobileNet v1 was trained.
WEIGHT_DECAY = 0.00004
WEIGHT_STDDEV = 0.09
BATCH_NORM_DECAY = 0.9997
BATCH_NORM_EPSILON = 0.001


class MobileNetLayer(NamedTuple):
    """One row of a MobileNet v1 table: a 3x3 convolution, full or depthwise and pointwise."""

    stride: int
    depth: int  # output channels at depth multiplier 1
    separable: bool = True


V1_LAYERS: Tuple[MobileNetLayer, ...] = (
    MobileNetLayer(2, 32, separable=False),
    MobileNetLayer(1, 64),
    MobileNetLayer(2, 128),
    MobileNetLayer(1, 128),
    MobileNetLayer(2, 256),
    MobileNetLayer(1, 256),
    MobileNetLayer(2, 512),
    MobileNetLayer(1, 512),
    MobileNetLayer(1, 512),
    MobileNetLayer(1, 512),
    MobileNetLayer(1, 512),
    MobileNetLayer(1, 512),
    MobileNetLayer(2, 1024),
    MobileNetLayer(1, 1024),
)
KERNEL = 3


def scaled_depth(depth_multiplier: float, min_depth: int) -> Callable[[float], int]:
    """Function from a table's depth to the real one: scaled, truncated to int, not too small."""
    return lambda depth: max(int(depth * depth_multiplier), min_depth)


def v1_arg_scope() -> ContextManager[None]:
    """Argument scope of the published network's training; depthwise kernels have a penalty, too.

    A configuration's hyperparameters, opened inside this scope, replace its settings.
    """
    return published_scope(
        BATCH_NORM_DECAY,
        BATCH_NORM_EPSILON,
        weights_initializer=truncated_normal(WEIGHT_STDDEV),
        weights_regularizer=slim.l2_regularizer(WEIGHT_DECAY),
        activation_fn=tf.nn.relu6,
        normalizer_fn=batch_norm,
    )


def mobilenet_v1(
    inputs: tf.Tensor,  # float [B, h, w, C], C = 3 for a whole network
    depth: Callable[[float], int],  # channels of a layer from the table's, see `scaled_depth`
    *,
    explicit_padding: bool = False,  # pad before the convolutions by kernel size instead of "SAME"
    layers: Sequence[MobileNetLayer] = V1_LAYERS,  # the table
    first_number: int = 0,  # number of the first layer, in names
) -> Dict[str, tf.Tensor]:
    """Builds the network in the open variable and argument scopes.

    Returns:
        Every activation by name, in order: `Conv2d_0`, `Conv2d_1_depthwise`,
        `Conv2d_1_pointwise`, and so on.
    """
    end_points: Dict[str, tf.Tensor] = {}
    net = inputs
    padding = choose_padding(explicit_padding)
    with repeat_scope_in_range_names():
        for number, layer in enumerate(layers, start=first_number):
            name = f"Conv2d_{number}"
            channels = depth(layer.depth)
            filter_settings: Dict[str, Any] = {"stride": layer.stride, "padding": padding}
            if not layer.separable:
                net = conv2d(net, channels, KERNEL, scope=name, **filter_settings)
                end_points[name] = net
                continue
            # None outputs: only the depthwise half, so that it has a batch norm, too.
            net = separable_conv2d(net, None, KERNEL, scope=f"{name}_depthwise", **filter_settings)
            end_points[f"{name}_depthwise"] = net
            net = conv2d(net, channels, 1, padding="SAME", scope=f"{name}_pointwise")
            end_points[f"{name}_pointwise"] = net
    return end_points

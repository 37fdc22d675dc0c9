"""Layers that enlarge the last maps of a backbone to one fine map: by deconvolutions, or top-down.

Scopes count from the coarsest map; checkpoints depend on them. Batch norm follows a bias, as in
Keras.
"""

from __future__ import annotations

from typing import ContextManager, Sequence

from estimator_det.boxes.geometry import sizes
from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import with_bias
from estimator_det.nets.layers import conv2d, separable_conv2d
from estimator_det.nets.necks.fpn import upsample_twofold
from estimator_det.nets.normalization import batch_norm, published_scope

# Keras' own settings of batch norm.
BATCH_NORM_DECAY = 0.99
BATCH_NORM_EPSILON = 0.001


def arg_scope() -> ContextManager[None]:
    """Argument scope of layers with the defaults of Keras, a bias, batch norm and ReLU."""
    return published_scope(
        BATCH_NORM_DECAY,
        BATCH_NORM_EPSILON,
        weights_initializer=slim.xavier_initializer(),
        weights_regularizer=None,
        activation_fn=tf.nn.relu,
        normalizer_fn=with_bias(batch_norm),
    )


def _deconvolve(net: tf.Tensor, width: int, scope: str) -> tf.Tensor:
    """A transposed 3x3 convolution of stride 2, whose kernel is [3, 3, width, C]."""
    batch, height, length, channels = sizes(net)
    with tf1.variable_scope(scope):
        shape = (3, 3, width, channels)
        kernel = slim.model_variable("weights", shape, net.dtype, slim.xavier_initializer())
        shape = (batch, 2 * height, 2 * length, width)
        return tf.nn.relu(with_bias(batch_norm)(tf.nn.conv2d_transpose(net, kernel, shape, 2)))


def deconvolved_map(net: tf.Tensor, widths: Sequence[int], kernel: int) -> tf.Tensor:
    """Enlarges [B, h, w, C] twofold for each width: a convolution, then a transposed one."""
    for number, width in enumerate(widths):
        net = conv2d(net, width, kernel, scope=f"conv_{number}")
        net = _deconvolve(net, width, f"transposed_{number}")
    return net


def top_down_map(
    end_points: Sequence[tf.Tensor],  # activations, the coarsest first, each twice as large
    widths: Sequence[int],  # channels of all but the last when they are added
    output_width: int,  # channels of the result
    *,
    is_separable: bool = False,  # split the 3x3 convolutions
    interpolation: str = "nearest",  # how coarse maps are enlarged, or "bilinear"
) -> tf.Tensor:
    """Adds coarse activations to fine ones, and returns the finest sum after a 3x3 convolution."""
    convolve = separable_conv2d if is_separable else conv2d

    def project(net: tf.Tensor, width: int, name: str) -> tf.Tensor:
        return conv2d(net, width, 1, activation_fn=None, normalizer_fn=None, scope=name)

    net = project(end_points[0], widths[0], "projection")
    next_widths = (*widths[1:], output_width)
    for number, (fine, width, next_width) in enumerate(zip(end_points[1:], widths, next_widths)):
        if interpolation == "nearest":
            net = upsample_twofold(net)
        else:
            net = tf.image.resize(net, tf.shape(fine)[1:3], interpolation)
        net += project(fine, width, f"lateral_{number}")
        net = convolve(net, next_width, 3, scope=f"merged_{number}")
    return net

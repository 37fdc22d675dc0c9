"""Stacked hourglass networks (Newell et al., 2016), as CenterNet uses them.

An hourglass halves the resolution several times and enlarges it again; at each resolution, a
residual branch leads past the coarser ones. Variable scopes are the paths of the layers in
object-based checkpoints.
"""

from __future__ import annotations

import functools
from typing import ContextManager, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf
from estimator_det.nets.layers import EXPLICIT, conv2d
from estimator_det.nets.necks.fpn import upsample_twofold
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.object_paths import Paths

# The average keeps a tenth only: the published network's momentum, in the sense of Keras.
BATCH_NORM_DECAY = 0.1
BATCH_NORM_EPSILON = 1e-5


class Stage(NamedTuple):
    """One resolution of an hourglass."""

    width: int  # channels
    units: int  # residual units of each branch


STAGES: Tuple[Stage, ...] = (
    Stage(256, 2),
    Stage(256, 2),
    Stage(384, 2),
    Stage(384, 2),
    Stage(384, 2),
    Stage(512, 4),
)
NUM_HOURGLASSES = 2
STEM_WIDTH = 128  # channels after the first convolution


def arg_scope() -> ContextManager[None]:
    """Argument scope of the published network's training."""
    return published_scope(
        BATCH_NORM_DECAY,
        BATCH_NORM_EPSILON,
        weights_initializer=slim.xavier_initializer(),
        weights_regularizer=None,
        activation_fn=tf.nn.relu,
        # Over all replicas; the moving variance averages batch variances, uncorrected for size.
        normalizer_fn=functools.partial(batch_norm, over_replicas=True),
    )


def _residual(net: tf.Tensor, width: int, scope: str, stride: int = 1) -> tf.Tensor:
    """A residual unit: two 3x3 convolutions, added to the input or to a projection of it."""
    residual = conv2d(net, width, 3, stride=stride, padding=EXPLICIT, scope=f"{scope}/conv_block")
    residual = conv2d(residual, width, 3, activation_fn=None, scope=scope)
    if stride > 1 or net.shape[-1] != width:
        net = conv2d(net, width, 1, stride=stride, activation_fn=None, scope=f"{scope}/skip")
    return tf.nn.relu(residual + net)


def _hourglass(net: tf.Tensor, stages: Sequence[Stage], scope: str) -> tf.Tensor:
    """One hourglass: [B, h, w, C] -> [B, h, w, width of the first stage]."""
    (width, units), (inner_width, inner_units) = stages[:2]
    past = inner = net
    for unit in range(units):
        past = _residual(past, width, f"{scope}/encoder_block1/{unit}")
    for unit in range(units):
        stride = 2 if unit == 0 else 1
        inner = _residual(inner, inner_width, f"{scope}/encoder_block2/{unit}", stride)
    if len(stages) > 2:
        inner = _hourglass(inner, stages[1:], f"{scope}/inner_block/0")
    else:
        for unit in range(inner_units):
            inner = _residual(inner, inner_width, f"{scope}/inner_block/{unit}")
    for unit in range(units):
        is_last = unit == units - 1
        inner = _residual(inner, width if is_last else inner_width, f"{scope}/decoder_block/{unit}")
    return past + upsample_twofold(inner)


def hourglass_network(images: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    """Builds the network in the open variable and argument scopes: one map for each hourglass.

    Maps are at stride 4; images need sizes that are multiples of 4 times 2 for each halving.
    """
    width = STAGES[0].width
    stem = "downsample_input/conv_block"
    net = conv2d(images, STEM_WIDTH, 7, stride=2, padding=EXPLICIT, scope=stem)
    net = _residual(net, width, "downsample_input/residual_block", stride=2)
    maps = []
    for number in range(NUM_HOURGLASSES):
        output = _hourglass(net, STAGES, f"hourglass_network/{number}")
        maps.append(conv2d(output, width, 3, scope=f"output_conv/{number}"))
        if number < NUM_HOURGLASSES - 1:
            branches = (("intermediate_conv1", net), ("intermediate_conv2", maps[-1]))
            merged = [
                conv2d(values, width, 1, activation_fn=None, scope=f"{name}/{number}")
                for name, values in branches
            ]
            net = _residual(tf.nn.relu(sum(merged)), width, f"intermediate_residual/{number}")
    return tuple(maps)


def object_paths(scopes: Sequence[str]) -> Paths:
    """Paths of the layers in object-based checkpoints, which have objects of their own.

    A convolution and its batch norm are the objects `conv` and `norm` of one layer.
    """
    norm = "/BatchNorm"
    return {
        scope: f"_network/{scope.removesuffix(norm)}/{'norm' if scope.endswith(norm) else 'conv'}"
        for scope in scopes
    }

"""ResNet v1 with bottleneck units.

He et al., "Deep Residual Learning for Image Recognition", 2015. Variable names, and so checkpoints,
are those of the published classifiers.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, NamedTuple, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm
from estimator_det.nets.padding import pad_for_kernel

# What the published ResNets v1 were trained with.
WEIGHT_DECAY = 0.0001
BATCH_NORM_DECAY = 0.997
BATCH_NORM_EPSILON = 1e-5

ROOT_DEPTH = 64
EXPANSION = 4  # channels of a unit's output for each of its bottleneck


class Block(NamedTuple):
    """One row of a ResNet table: units of the same size."""

    units: int
    bottleneck: int  # channels inside a unit at depth multiplier 1
    stride: int  # between this block and the next


def _blocks(second: int, third: int) -> Tuple[Block, ...]:
    return (Block(3, 64, 2), Block(second, 128, 2), Block(third, 256, 2), Block(3, 512, 1))


V1_BLOCKS: Dict[int, Tuple[Block, ...]] = {
    50: _blocks(4, 6),
    101: _blocks(4, 23),
    152: _blocks(8, 36),
}
"""Tables by the number of layers in the network's name."""


@contextlib.contextmanager
def v1_arg_scope() -> Iterator[None]:
    """Settings the published network was trained with.

    The scopes around decide whether batch norm learns and where its moving averages are updated.
    Every layer is given decay, epsilon and scale explicitly, so that a configuration's own
    hyperparameters cannot replace them; weights, activation and the kind of normalizer they do
    replace. The reference does the same.
    """
    norm_settings: Dict[str, Any] = {
        "decay": BATCH_NORM_DECAY,
        "epsilon": BATCH_NORM_EPSILON,
        "scale": True,
    }
    with (
        slim.arg_scope(list(BATCH_NORMS), **norm_settings),
        slim.arg_scope(
            [slim.conv2d],
            weights_initializer=slim.variance_scaling_initializer(),
            weights_regularizer=slim.l2_regularizer(WEIGHT_DECAY),
            activation_fn=tf.nn.relu,
            normalizer_fn=batch_norm,
            normalizer_params=norm_settings,
        ),
    ):
        yield


def _unit(net: tf.Tensor, bottleneck: int) -> tf.Tensor:
    """A residual unit at stride 1: 1x1, 3x3 and 1x1 convolutions, added to a shortcut."""
    depth = EXPANSION * bottleneck
    shortcut = net
    if net.shape[-1] != depth:
        shortcut = slim.conv2d(net, depth, 1, activation_fn=None, scope="shortcut")
    residual = slim.conv2d(net, bottleneck, 1, scope="conv1")
    residual = slim.conv2d(residual, bottleneck, 3, scope="conv2")
    residual = slim.conv2d(residual, depth, 1, activation_fn=None, scope="conv3")
    return tf.nn.relu(shortcut + residual)


def resnet_v1(
    inputs: tf.Tensor, layers: int, depth: Callable[[float], int] = int
) -> Dict[str, tf.Tensor]:
    """Builds the network in the open variable and argument scopes.

    Blocks are seen at full resolution: what halves it comes after a block's last unit, not within
    it, as detectors need it. Weights are the same either way.

    Args:
        inputs: float [B, h, w, C].
        layers: Which network, a key of `V1_BLOCKS`.
        depth: Channels of a bottleneck from the table's; the first convolution keeps its 64.

    Returns:
        `block1` to `block4`, at strides 4, 8, 16 and 32.

    Raises:
        KeyError: if there is no such network.
    """
    net = slim.conv2d(
        pad_for_kernel(inputs, 7), ROOT_DEPTH, 7, stride=2, padding="VALID", scope="conv1"
    )
    net = tf.nn.max_pool2d(net, 3, 2, "SAME")
    end_points: Dict[str, tf.Tensor] = {}
    for number, block in enumerate(V1_BLOCKS[layers], start=1):
        name = f"block{number}"
        for unit in range(1, block.units + 1):
            with tf1.variable_scope(f"{name}/unit_{unit}/bottleneck_v1"):
                net = _unit(net, depth(block.bottleneck))
        end_points[name] = net
        if block.stride > 1:
            net = tf.nn.max_pool2d(net, 1, block.stride, "VALID")
    return end_points

"""ResNet v1 with bottleneck units.

He et al., "Deep Residual Learning for Image Recognition", 2015. Variable names, and so checkpoints,
are those of the published classifiers.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm
from estimator_det.nets.padding import pad_for_kernel

# What the published ResNets v1 were trained with.
WEIGHT_DECAY = 0.0001
BATCH_NORM_DECAY = 0.997
BATCH_NORM_EPSILON = 1e-5

ROOT_DEPTH = 64
ROOT_STRIDE = 4  # of the input of the first block
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
def v1_arg_scope(weight_decay: float = WEIGHT_DECAY) -> Iterator[None]:
    """Settings the published network was trained with; a weight decay of 0 makes no loss term.

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
            weights_regularizer=slim.l2_regularizer(weight_decay),
            activation_fn=tf.nn.relu,
            normalizer_fn=batch_norm,
            normalizer_params=norm_settings,
        ),
    ):
        yield


def _unit(net: tf.Tensor, bottleneck: int, stride: int = 1, rate: int = 1) -> tf.Tensor:
    """A residual unit: 1x1, 3x3 and 1x1 convolutions, added to a shortcut.

    Args:
        net: float [B, h, w, C].
        bottleneck: Channels inside the unit.
        stride: Of the whole unit; its 3x3 convolution makes it.
        rate: Dilation of the 3x3 convolution; 1 where the stride is more.

    Returns:
        [B, h / stride, w / stride, 4 * bottleneck], sizes rounded up.
    """
    depth = EXPANSION * bottleneck
    shortcut = net
    if net.shape[-1] != depth:
        shortcut = slim.conv2d(net, depth, 1, activation_fn=None, scope="shortcut")
    residual = slim.conv2d(net, bottleneck, 1, scope="conv1")
    if stride > 1:
        shortcut = tf.nn.max_pool2d(shortcut, 1, stride, "VALID")
        # Padded so that it takes the same pixels for every size.
        residual = slim.conv2d(
            pad_for_kernel(residual, 3), bottleneck, 3, stride, padding="VALID", scope="conv2"
        )
    else:
        residual = slim.conv2d(residual, bottleneck, 3, rate=rate, scope="conv2")
    residual = slim.conv2d(residual, depth, 1, activation_fn=None, scope="conv3")
    return tf.nn.relu(shortcut + residual)


def build_block(
    net: tf.Tensor, name: str, block: Block, bottleneck: int, stride: int = 1, rate: int = 1
) -> tf.Tensor:
    """Builds one block in the open variable and argument scopes.

    Args:
        net: float [B, h, w, C].
        name: Of the block's variable scope.
        block: Gives the number of units.
        bottleneck: Channels inside a unit.
        stride: Of the last unit; the others have stride 1.
        rate: Dilation of the 3x3 convolutions.

    Returns:
        [B, h / stride, w / stride, 4 * bottleneck], sizes rounded up.
    """
    for unit in range(1, block.units + 1):
        with tf1.variable_scope(f"{name}/unit_{unit}/bottleneck_v1"):
            net = _unit(net, bottleneck, stride if unit == block.units else 1, rate)
    return net


def resnet_v1(
    inputs: tf.Tensor,
    layers: int,
    depth: Callable[[float], int] = int,
    output_stride: Optional[int] = None,
) -> Dict[str, tf.Tensor]:
    """Builds the network in the open variable and argument scopes.

    Weights are the same with every `output_stride`.

    Args:
        inputs: float [B, h, w, C].
        layers: Which network, a key of `V1_BLOCKS`.
        depth: Channels of a bottleneck from the table's; the first convolution keeps its 64.
        output_stride: Where None, blocks are seen at full resolution: what halves it comes after a
            block's last unit, not within it, as feature pyramids need. A number lets the last unit
            of a block halve the resolution, down to this stride; the blocks after it are dilated
            instead.

    Returns:
        `block1` to `block4`, at strides 4, 8, 16 and 32. With an `output_stride`, at 8, 16, 32 and
        32 or at `output_stride` where that is less.

    Raises:
        KeyError: if there is no such network.
    """
    net = slim.conv2d(
        pad_for_kernel(inputs, 7), ROOT_DEPTH, 7, stride=2, padding="VALID", scope="conv1"
    )
    net = tf.nn.max_pool2d(net, 3, 2, "SAME")
    stride, rate = ROOT_STRIDE, 1
    end_points: Dict[str, tf.Tensor] = {}
    for number, block in enumerate(V1_BLOCKS[layers], start=1):
        name, bottleneck = f"block{number}", depth(block.bottleneck)
        if output_stride is None:
            net = end_points[name] = build_block(net, name, block, bottleneck)
            if block.stride > 1:
                net = tf.nn.max_pool2d(net, 1, block.stride, "VALID")
        elif stride < output_stride:
            net = end_points[name] = build_block(net, name, block, bottleneck, block.stride)
            stride *= block.stride
        else:
            net = end_points[name] = build_block(net, name, block, bottleneck, rate=rate)
            rate *= block.stride
    return end_points

"""EfficientNets, B0 to B7, as one table of rows that two factors scale.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", 2019.
"""

from __future__ import annotations

import contextlib
import math
from typing import Dict, Iterator, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import swish
from estimator_det.nets.inverted_residual import divisible
from estimator_det.nets.layers import conv2d, separable_conv2d, squeeze_excite
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm, published_scope
from estimator_det.nets.object_paths import BACKBONE_PATH, FEATURES_PATH, Paths, functional

WEIGHT_DECAY = 0.000005  # factor of the sum of squares
BATCH_NORM_DECAY = 0.99
BATCH_NORM_EPSILON = 0.001
SQUEEZE = 0.25  # hidden channels of a squeeze-excite gate, per channel of the block's input
CLASSES = 1000  # outputs of the published classifiers
DROP_RATE = 0.2  # share of examples that skip a block behind the last one

STEM_DEPTH, TOP_DEPTH = 32, 1280

Scale = Tuple[float, float]  # factors of channels, and of the number of blocks in a stack

SCALES: Dict[str, Scale] = {
    "b0": (1.0, 1.0),
    "b1": (1.0, 1.1),
    "b2": (1.1, 1.2),
    "b3": (1.2, 1.4),
    "b4": (1.4, 1.8),
    "b5": (1.6, 2.2),
    "b6": (1.8, 2.6),
    "b7": (2.0, 3.1),
}


class Stack(NamedTuple):
    """Blocks of one shape; only the first one has the stride."""

    repeats: int  # number of blocks at scale 1
    depth: int  # output channels at scale 1
    kernel: int = 3  # height and width of the filter's kernel
    stride: int = 1  # stride of the filter
    expansion: int = 6  # factor of the channels inside a block


STACKS: Tuple[Stack, ...] = (
    Stack(1, 16, expansion=1),
    Stack(2, 24, stride=2),
    Stack(2, 40, kernel=5, stride=2),
    Stack(3, 80, stride=2),
    Stack(3, 112, kernel=5),
    Stack(4, 192, kernel=5, stride=2),
    Stack(1, 320),
)

# Blocks at levels 1 to 5, the same for every network, although the larger ones repeat blocks more
# often: published detectors leave their last blocks of a stack in the middle, and of the last
# stack, unused.
END_POINTS = (
    "stack_0/block_0",
    "stack_1/block_1",
    "stack_2/block_1",
    "stack_4/block_2",
    "stack_6/block_0",
)


class _StackBlock(NamedTuple):
    name: str
    stack: Stack
    stride: int
    drop_rate: float


@contextlib.contextmanager
def arg_scope() -> Iterator[None]:
    """Argument scope with which the classifiers were published."""
    penalty = slim.l2_regularizer(2 * WEIGHT_DECAY)
    layers = [slim.conv2d, slim.separable_conv2d, slim.fully_connected]
    with (
        published_scope(
            BATCH_NORM_DECAY,
            BATCH_NORM_EPSILON,
            normalizer_fn=batch_norm,
            activation_fn=swish,
            weights_initializer=slim.variance_scaling_initializer(2.0, "FAN_OUT"),
        ),
        slim.arg_scope(layers, weights_regularizer=penalty, biases_regularizer=penalty),
        slim.arg_scope([slim.separable_conv2d], weights_regularizer=None),
    ):
        yield


def _blocks(scale: Scale, drop_rate: float) -> Iterator[_StackBlock]:
    """Blocks of a network; the rate of skipping one rises linearly."""
    repeats = [math.ceil(scale[1] * stack.repeats) for stack in STACKS]
    rise = drop_rate / sum(repeats)
    number = 0
    for place, (stack, count) in enumerate(zip(STACKS, repeats)):
        for index in range(count):
            stride = 1 if index else stack.stride
            yield _StackBlock(f"stack_{place}/block_{index}", stack, stride, rise * number)
            number += 1


def _skip_some(net: tf.Tensor, rate: float) -> tf.Tensor:
    """Stochastic depth (Huang et al., 2016): a block has no effect on some of the examples."""
    batch = net.shape[0] or tf.shape(net)[0]
    return slim.dropout(net, 1.0 - rate, noise_shape=[batch, 1, 1, 1], is_training=True)


def _block(net: tf.Tensor, block: _StackBlock, width: float, drop_rate: float) -> tf.Tensor:
    inputs, channels, stack = net, net.shape[-1], block.stack
    if stack.expansion > 1:
        net = conv2d(net, channels * stack.expansion, 1, scope="expand")
    net = separable_conv2d(net, None, stack.kernel, stride=block.stride, scope="depthwise")
    with tf1.variable_scope("squeeze_excite"):
        hidden = max(1, int(channels * SQUEEZE))
        net = squeeze_excite(net, hidden, swish, tf.sigmoid)
    net = conv2d(net, divisible(stack.depth * width), 1, activation_fn=None, scope="project")
    if block.stride > 1 or net.shape[-1] != channels:
        return net
    return inputs + (_skip_some(net, drop_rate) if drop_rate else net)


def _build_unused(blocks: Sequence[_StackBlock], channels: int, width: float) -> None:
    """Creates the variables behind the last end point, with the classifier's.

    Published checkpoints have them, and their weight decay is part of the loss.
    """
    net = tf.zeros([1, 1, 1, channels])
    with slim.arg_scope(list(BATCH_NORMS), is_training=False):
        for block in blocks:
            with tf1.variable_scope(block.name):
                net = _block(net, block, width, drop_rate=0.0)
        net = conv2d(net, divisible(TOP_DEPTH * width), 1, scope="top")
        uniform = slim.variance_scaling_initializer(1.0 / 3.0, "FAN_OUT", uniform=True)
        slim.fully_connected(
            net[:, 0, 0, :],
            CLASSES,
            normalizer_fn=None,
            activation_fn=None,
            weights_initializer=uniform,
            scope="logits",
        )


def efficientnet(
    inputs: tf.Tensor, scale: Scale, *, is_training: bool = False, drop_rate: float = DROP_RATE
) -> Dict[str, tf.Tensor]:
    """Builds a network in the open variable and argument scopes.

    Args:
        inputs: float [B, h, w, 3].
        scale: an entry of `SCALES`.
        is_training: True if examples skip blocks at random.
        drop_rate: see `DROP_RATE`.

    Returns:
        Outputs of the blocks `stack_0/block_0`, …, in order, up to the last one of `END_POINTS`.
    """
    width = scale[0]
    net = conv2d(inputs, divisible(STEM_DEPTH * width), 3, stride=2, scope="stem")
    blocks = [*_blocks(scale, drop_rate)]
    num_used = [block.name for block in blocks].index(END_POINTS[-1]) + 1
    end_points = {}
    for block in blocks[:num_used]:
        with tf1.variable_scope(block.name):
            net = _block(net, block, width, block.drop_rate if is_training else 0.0)
        end_points[block.name] = net
    _build_unused(blocks[num_used:], net.shape[-1], width)
    return end_points


def object_paths(scopes: Sequence[str]) -> Paths:
    """Paths of the layers of a network, see `nets.object_paths`.

    Those up to the last end point belong to another object than those that are unused.
    """
    last = max(i for i, scope in enumerate(scopes) if scope.startswith(f"{END_POINTS[-1]}/"))
    return {
        scope: f"{FEATURES_PATH if number <= last else BACKBONE_PATH}/{path}"
        for number, (scope, path) in enumerate(functional(scopes).items())
    }

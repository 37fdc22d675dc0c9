"""ResNet v1 and v2 with bottleneck units.

He et al., "Deep Residual Learning for Image Recognition", 2015, and "Identity Mappings in Deep
Residual Networks", 2016. Variables are named as in the published classifiers, so their checkpoints
can be restored.
"""

from __future__ import annotations

import itertools
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import open_activation
from estimator_det.nets.layers import EXPLICIT, conv2d, max_pool, quantized
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.object_paths import joined
from estimator_det.nets.quantization import ACTIVATION

# Settings with which the published ResNets v1 were trained.
WEIGHT_DECAY = 0.0001
BATCH_NORM_DECAY = 0.997
BATCH_NORM_EPSILON = 1e-5

ROOT_DEPTH = 64
ROOT_STRIDE = 4  # stride of the first block's input
_UNIT = "/bottleneck_v"  # in scopes of v1 and v2
EXPANSION = 4  # output channels of a unit per channel of its bottleneck


class ResNetBlock(NamedTuple):
    """One row of a ResNet table: units of the same size."""

    units: int
    bottleneck: int  # channels inside a unit at depth multiplier 1
    stride: int  # between this block and the next


def _blocks(second: int, third: int) -> Tuple[ResNetBlock, ...]:
    return (
        ResNetBlock(3, 64, 2),
        ResNetBlock(second, 128, 2),
        ResNetBlock(third, 256, 2),
        ResNetBlock(3, 512, 1),
    )


V1_BLOCKS: Dict[int, Tuple[ResNetBlock, ...]] = {
    50: _blocks(4, 6),
    101: _blocks(4, 23),
    152: _blocks(8, 36),
}
"""Tables by the number of layers in the network's name."""


def v1_arg_scope(
    weight_decay: float = WEIGHT_DECAY, *, tf2_line: bool = False
) -> ContextManager[None]:
    """Argument scope of the published network's training; weight decay 0 adds no loss term.

    The scopes around it decide if batch norm learns and where its moving averages are updated. Like
    in the Object Detection API, every layer has decay, epsilon and scale as explicit arguments, so
    that a configuration's hyperparameters cannot replace them; they do replace weights, activation
    and the kind of normalizer. In the TF2 line they replace all, and the penalty is twice as large.
    """
    norm_settings: Optional[Dict[str, Any]] = {
        "decay": BATCH_NORM_DECAY,
        "epsilon": BATCH_NORM_EPSILON,
        "scale": True,
    }
    if tf2_line:
        norm_settings, weight_decay = None, 2 * weight_decay
    return published_scope(
        BATCH_NORM_DECAY,
        BATCH_NORM_EPSILON,
        weights_initializer=slim.variance_scaling_initializer(),
        weights_regularizer=slim.l2_regularizer(weight_decay),
        activation_fn=tf.nn.relu,
        normalizer_fn=batch_norm,
        normalizer_params=norm_settings,
    )


def _keras_unit(
    net: tf.Tensor, bottleneck: int, depth: int, stride: int, *, is_first: bool
) -> tf.Tensor:
    """A residual unit of the TF2 line, whose activation also limits the sum.

    The stride is in the first 1x1 convolution and in the shortcut, which is a convolution in the
    first unit of a block.
    """
    shortcut = net
    if is_first:
        shortcut = conv2d(net, depth, 1, stride=stride, activation_fn=None, scope="shortcut")
    residual = conv2d(net, bottleneck, 1, stride=stride, scope="conv1")
    residual = conv2d(residual, bottleneck, 3, scope="conv2")
    residual = conv2d(residual, depth, 1, activation_fn=None, scope="conv3")
    return quantized(open_activation()(shortcut + residual), ACTIVATION)


def build_keras_block(
    net: tf.Tensor, number: int, layers: int, depth: Callable[[float], int] = int
) -> tf.Tensor:
    """Builds block `number`, from 1, of the TF2 line's network; its first unit has the stride."""
    block = V1_BLOCKS[layers][number - 1]
    widths = depth(block.bottleneck), depth(EXPANSION * block.bottleneck)
    for unit in range(1, block.units + 1):
        with tf1.variable_scope(f"block{number}/unit_{unit}/bottleneck_v1"):
            is_first = unit == 1
            stride = 2 if is_first and number > 1 else 1
            net = _keras_unit(net, *widths, stride, is_first=is_first)
    return net


def keras_resnet_v1(
    inputs: tf.Tensor,
    layers: int,
    depth: Callable[[float], int] = int,
    num_blocks: int = 4,
    pool_padding: str = "SAME",
) -> Dict[str, tf.Tensor]:
    """Builds the network of the TF2 line in the open variable and argument scopes.

    Returns `block1`, … at strides 4, 8, 16 and 32. Keras' own network pads the pooling explicitly.
    """
    net = conv2d(inputs, depth(ROOT_DEPTH), 7, stride=2, padding=EXPLICIT, scope="conv1")
    net = max_pool(net, 3, 2, pool_padding)
    end_points: Dict[str, tf.Tensor] = {}
    for number in range(1, num_blocks + 1):
        net = end_points[f"block{number}"] = build_keras_block(net, number, layers, depth)
    return end_points


def _preactivated_unit(
    net: tf.Tensor, bottleneck: int, stride: int, *, is_first: bool
) -> tf.Tensor:
    """A residual unit of v2: batch norm and activation come before the convolutions.

    The stride is in the 3x3 convolution; the first unit of a block has a projection as shortcut.
    """
    depth = EXPANSION * bottleneck
    linear: Dict[str, Any] = {"activation_fn": None, "normalizer_fn": None}
    active = tf.nn.relu(batch_norm(net, scope="preact/BatchNorm"))
    shortcut = max_pool(net, 1, stride, "VALID") if stride > 1 else net
    if is_first:
        shortcut = conv2d(active, depth, 1, stride=stride, scope="shortcut", **linear)
    residual = conv2d(active, bottleneck, 1, scope="conv1")
    residual = conv2d(residual, bottleneck, 3, stride=stride, padding=EXPLICIT, scope="conv2")
    return shortcut + conv2d(residual, depth, 1, scope="conv3", **linear)


def keras_resnet_v2(inputs: tf.Tensor, layers: int) -> tf.Tensor:
    """Builds Keras' own ResNet v2 in the open variable and argument scopes: stride 32.

    Its last batch norm exists in checkpoints only, because detectors leave the network before it.
    """
    net = conv2d(
        inputs,
        ROOT_DEPTH,
        7,
        stride=2,
        padding=EXPLICIT,
        activation_fn=None,
        normalizer_fn=None,
        scope="conv1",
    )
    net = max_pool(net, 3, 2, EXPLICIT)
    for number, block in enumerate(V1_BLOCKS[layers], start=1):
        for unit in range(1, block.units + 1):
            with tf1.variable_scope(f"block{number}/unit_{unit}/bottleneck_v2"):
                stride = block.stride if unit == block.units else 1
                net = _preactivated_unit(net, block.bottleneck, stride, is_first=unit == 1)
    batch_norm(net, is_training=False, scope="postnorm/BatchNorm")
    return net


def keras_order(scopes: Sequence[str]) -> List[str]:
    """Scopes of the layers in the order in which Keras counts them; see `nets.object_paths`."""
    order: List[str] = []
    for _, unit in itertools.groupby(scopes, lambda scope: scope.rpartition(_UNIT)[0]):
        branches: Tuple[List[str], List[str]] = ([], [])
        for scope in unit:
            branches["/shortcut" not in scope].append(scope)
        order += joined(*branches)
    return order


def _unit(net: tf.Tensor, bottleneck: int, stride: int = 1, rate: int = 1) -> tf.Tensor:
    """A residual unit: 1x1, 3x3 and 1x1 convolutions, added to a shortcut.

    The 3x3 convolution has the stride and the dilation `rate`. The result is
    [B, h / stride, w / stride, 4 * bottleneck], sizes rounded up.
    """
    depth = EXPANSION * bottleneck
    shortcut = net
    if net.shape[-1] != depth:
        shortcut = conv2d(net, depth, 1, activation_fn=None, scope="shortcut")
    residual = conv2d(net, bottleneck, 1, scope="conv1")
    if stride > 1:
        shortcut = tf.nn.max_pool2d(shortcut, 1, stride, "VALID")
        # Explicit padding, so that the same pixels are used for every input size.
        residual = conv2d(residual, bottleneck, 3, stride=stride, padding=EXPLICIT, scope="conv2")
    else:
        residual = conv2d(residual, bottleneck, 3, rate=rate, scope="conv2")
    residual = conv2d(residual, depth, 1, activation_fn=None, scope="conv3")
    return quantized(tf.nn.relu(shortcut + residual), ACTIVATION)


def build_block(
    net: tf.Tensor, name: str, block: ResNetBlock, bottleneck: int, stride: int = 1, rate: int = 1
) -> tf.Tensor:
    """Builds one block in the open variable and argument scopes.

    The last unit has the stride, the others have 1. The result is
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

    Returns `block1` to `block4`, at strides 4, 8, 16 and 32, for feature pyramids: resolution is
    halved after a block's last unit, not within it. With an `output_stride`, the last unit of a
    block halves the resolution, down to this stride, and later blocks are dilated: the strides are
    8, 16, 32 and 32, or `output_stride` if that is less. Weights are the same in all cases.
    """
    net = conv2d(inputs, ROOT_DEPTH, 7, stride=2, padding=EXPLICIT, scope="conv1")
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

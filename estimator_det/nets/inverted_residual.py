"""MobileNets of inverted residuals, as tables of layers: v2, v3 large and small, EdgeTPU.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018; Howard et al.,
"Searching for MobileNetV3", 2019. Variables are named as in the published classifiers, so their
checkpoints can be restored. The tables end before the pooling, where detectors leave the networks.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Dict, Iterator, NamedTuple, Tuple, Union

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import open_activation, truncated_normal
from estimator_det.nets.layers import (
    choose_padding,
    conv2d,
    pad_for_kernel,
    residual_sum,
    separable_conv2d,
    squeeze_excite,
)
from estimator_det.nets.normalization import (
    BATCH_NORMS,
    batch_norm,
    sync_batch_norm,
)

# The Object Detection API's settings for detectors on these backbones.
WEIGHT_DECAY = 0.00004
WEIGHT_STDDEV = 0.09
BATCH_NORM_DECAY = 0.9997

DIVISOR = 8  # widths are rounded to multiples of this, which suits vector units
SQUEEZE = 4  # a squeeze-excite gate has a quarter as many hidden channels
# The published gates multiply by this instead of 1/6; checkpoints were trained with it.
GATE_SLOPE = 0.16667

Activation = Callable[[tf.Tensor], tf.Tensor]
ScaleDepth = Callable[[float], int]


def hard_swish(inputs: tf.Tensor) -> tf.Tensor:
    """Maps x to x * relu6(x + 3) / 6, a cheap x * sigmoid(x)."""
    return inputs * tf.nn.relu6(inputs + 3.0) * (1.0 / 6.0)


def hard_sigmoid(inputs: tf.Tensor) -> tf.Tensor:
    """Maps x to relu6(x + 3) / 6 to five digits, a cheap sigmoid."""
    return tf.nn.relu6(inputs + 3.0) * GATE_SLOPE


def divisible(channels: float, least: int = DIVISOR) -> int:
    """Rounds `channels` to a multiple of `DIVISOR`, at least `least`, never 10 % down."""
    rounded = max(least, int(channels + DIVISOR / 2) // DIVISOR * DIVISOR)
    return rounded + DIVISOR if rounded < 0.9 * channels else rounded


def depth_function(depth_multiplier: float, min_depth: int) -> ScaleDepth:
    """Function from a table's depth to the real one: scaled, rounded to eights, not too small."""
    return lambda depth: divisible(depth * depth_multiplier, min_depth)


class PlainConv(NamedTuple):
    """A plain convolution."""

    depth: int  # output channels at depth multiplier 1
    kernel: int = 1  # height and width of the kernel
    stride: int = 1  # stride in both directions
    activation: Activation = tf.nn.relu6  # activation after the batch norm


class InvertedResidual(NamedTuple):
    """An inverted residual: widen, filter channels, narrow, add the input if shapes agree."""

    depth: int  # output channels at depth multiplier 1
    stride: int = 1  # stride of the filter
    # Factor of the channels inside the block, rounded to a multiple of eight channels. There is no
    # widening layer if it would add no channels, or at 0.
    expansion: float = 6
    kernel: int = 3  # height and width of the filter's kernel
    activation: Activation = tf.nn.relu6  # activation inside the block; its output has none
    squeeze: bool = False  # True if a squeeze-excite gate weights the filtered channels
    fused: bool = False  # True if one full convolution widens and filters
    residual: bool = True  # True if the input is added to an output of the same shape


Layers = Tuple[Union[PlainConv, InvertedResidual], ...]

# `layer_4` has 1/4 of the resolution, `layer_7` and `layer_8/expansion_output` 1/8, `layer_14` and
# `layer_15/expansion_output` 1/16, `layer_18` and `layer_19` 1/32.
V2_LAYERS: Layers = (
    PlainConv(32, 3, stride=2),
    InvertedResidual(16, expansion=0),
    InvertedResidual(24, 2),
    InvertedResidual(24),
    InvertedResidual(32, 2),
    *[InvertedResidual(32)] * 2,
    InvertedResidual(64, 2),
    *[InvertedResidual(64)] * 3,
    *[InvertedResidual(96)] * 3,
    InvertedResidual(160, 2),
    *[InvertedResidual(160)] * 2,
    InvertedResidual(320),
    PlainConv(1280),
)


def _relu(
    depth: int, stride: int, expansion: float, kernel: int, squeeze: bool = False
) -> InvertedResidual:
    return InvertedResidual(depth, stride, expansion, kernel, tf.nn.relu, squeeze)


def _swish(
    depth: int, stride: int, expansion: float, kernel: int, squeeze: bool = False
) -> InvertedResidual:
    return InvertedResidual(depth, stride, expansion, kernel, hard_swish, squeeze)


# The detectors' v3 networks: after the last stride, half the channels of the classifiers.
V3_LARGE_LAYERS: Layers = (
    PlainConv(16, 3, stride=2, activation=hard_swish),
    _relu(16, 1, 1, 3),
    _relu(24, 2, 4, 3),
    _relu(24, 1, 3, 3),
    _relu(40, 2, 3, 5, squeeze=True),
    *[_relu(40, 1, 3, 5, squeeze=True)] * 2,
    _swish(80, 2, 6, 3),
    _swish(80, 1, 2.5, 3),
    *[_swish(80, 1, 184 / 80, 3)] * 2,
    *[_swish(112, 1, 6, 3, squeeze=True)] * 2,
    _swish(80, 2, 6, 5, squeeze=True),
    *[_swish(80, 1, 6, 5, squeeze=True)] * 2,
    PlainConv(480, activation=hard_swish),
)
V3_SMALL_LAYERS: Layers = (
    PlainConv(16, 3, stride=2, activation=hard_swish),
    _relu(16, 2, 1, 3, squeeze=True),
    _relu(24, 2, 72 / 16, 3),
    _relu(24, 1, 88 / 24, 3),
    _swish(40, 2, 4, 5, squeeze=True),
    *[_swish(40, 1, 6, 5, squeeze=True)] * 2,
    *[_swish(48, 1, 3, 5, squeeze=True)] * 2,
    _swish(48, 2, 6, 5, squeeze=True),
    *[_swish(48, 1, 6, 5, squeeze=True)] * 2,
    PlainConv(288, activation=hard_swish),
)


def _fused(depth: int, stride: int, expansion: float) -> InvertedResidual:
    return InvertedResidual(depth, stride, expansion, 3, tf.nn.relu, fused=True)


EDGETPU_LAYERS: Layers = (
    PlainConv(32, 3, stride=2, activation=tf.nn.relu),
    _fused(16, 1, 1),
    _fused(32, 2, 8),
    *[_fused(32, 1, 4)] * 3,
    _fused(48, 2, 8),
    *[_fused(48, 1, 4)] * 3,
    _relu(96, 2, 8, 3),
    *[_relu(96, 1, 4, 3)] * 3,
    _relu(96, 1, 8, 3)._replace(residual=False),
    *[_relu(96, 1, 4, 3)] * 3,
    _relu(160, 2, 8, 5),
    *[_relu(160, 1, 4, 5)] * 3,
    _relu(192, 1, 8, 3),
)


@contextlib.contextmanager
def arg_scope() -> Iterator[None]:
    """Argument scope of the API's detectors on these backbones.

    The scopes around it decide if batch norm learns, and where its averages are updated. A
    configuration's hyperparameters, opened inside this scope, replace its settings, except
    activations and the offset and factor of batch norms.
    """
    with (
        slim.arg_scope(list(BATCH_NORMS), decay=BATCH_NORM_DECAY),
        slim.arg_scope(
            [slim.conv2d, slim.separable_conv2d],
            weights_initializer=truncated_normal(WEIGHT_STDDEV),
            normalizer_fn=batch_norm,
        ),
        slim.arg_scope([slim.conv2d], weights_regularizer=slim.l2_regularizer(WEIGHT_DECAY)),
        slim.arg_scope([slim.separable_conv2d], weights_regularizer=None),
    ):
        yield


@contextlib.contextmanager
def _network_scope() -> Iterator[None]:
    """Argument scope of properties that no scope around the networks may change."""
    settings = slim.current_arg_scope().get(slim.arg_scope_func_key(slim.conv2d), {})
    # A configuration may choose batch norm over all replicas, because it is batch norm, too.
    current = settings.get("normalizer_fn")
    normalizer = sync_batch_norm if current is sync_batch_norm else batch_norm
    with (
        slim.arg_scope(list(BATCH_NORMS), center=True, scale=True),
        slim.arg_scope(
            [slim.conv2d, slim.separable_conv2d], normalizer_fn=normalizer, padding="SAME"
        ),
    ):
        yield


def _block(
    inputs: tf.Tensor, block: InvertedResidual, depth: ScaleDepth, padding: str
) -> Dict[str, tf.Tensor]:
    """Builds a block and returns `expansion_output` (if any), `depthwise_output`, `output`."""
    outputs: Dict[str, tf.Tensor] = {}
    net = inputs
    channels = inputs.shape[-1]
    kernel, stride = block.kernel, block.stride
    with slim.arg_scope([slim.conv2d, slim.separable_conv2d], activation_fn=block.activation):
        inner = divisible(channels * block.expansion) if block.expansion else channels
        if inner > channels:
            widening = {"kernel_size": kernel, "stride": stride} if block.fused else {}
            net = conv2d(net, inner, **{"kernel_size": 1, **widening}, scope="expand")
            outputs["expansion_output"] = net
        if not block.fused:
            net = separable_conv2d(
                net, None, kernel, stride=stride, padding=padding, scope="depthwise"
            )
            outputs["depthwise_output"] = net
        if block.squeeze:
            hidden = divisible(net.shape[-1] / SQUEEZE)
            with tf1.variable_scope("squeeze_excite"):
                net = squeeze_excite(net, hidden, tf.nn.relu, hard_sigmoid)
        net = conv2d(net, depth(block.depth), 1, activation_fn=None, scope="project")
    same_shape = stride == 1 and net.shape[-1] == channels
    outputs["output"] = residual_sum(net, inputs) if block.residual and same_shape else net
    return outputs


def inverted_residual_net(
    inputs: tf.Tensor,
    layers: Layers,
    depth: ScaleDepth,
    *,
    explicit_padding: bool = False,
    pad_whole_blocks: bool = False,
    tf2_line: bool = False,
) -> Dict[str, tf.Tensor]:
    """Builds a network in the open variable and argument scopes.

    Args:
        inputs: float [B, h, w, 3].
        layers: the table.
        depth: channels of a layer from the table's, see `depth_function`.
        explicit_padding: pad before convolutions by kernel size instead of "SAME".
        pad_whole_blocks: with `explicit_padding`, pad a block's input in addition to "SAME" inside
            it, so that maps grow by the kernel size minus 1 at every block: the API pads the
            v3 networks in this way, and checkpoints trained with it expect it.
        tf2_line: the open argument scope also decides on activations, and on offset and factor of
            batch norms.

    Returns:
        Every activation by name, in order: `layer_1`, …, one for each row of the table; for a block
        also `layer_n/expansion_output` (if it widens its input), `layer_n/depthwise_output`
        (unless it is fused) and `layer_n/output`, which is `layer_n`.
    """
    end_points: Dict[str, tf.Tensor] = {}
    net = inputs
    padding = choose_padding(explicit_padding)
    pads_blocks = explicit_padding and pad_whole_blocks
    if tf2_line:
        layers = tuple(row._replace(activation=open_activation()) for row in layers)
    with contextlib.nullcontext() if tf2_line else _network_scope():
        for number, row in enumerate(layers, start=1):
            name = f"layer_{number}"
            if isinstance(row, PlainConv):
                net = conv2d(
                    net,
                    depth(row.depth),
                    row.kernel,
                    stride=row.stride,
                    padding=padding if row.kernel > 1 else "SAME",
                    activation_fn=row.activation,
                )
                end_points[name] = net
                continue
            if pads_blocks:
                net = pad_for_kernel(net, row.kernel)
            with tf1.variable_scope(None, "expanded_conv"):  # expanded_conv, expanded_conv_1, ...
                outputs = _block(net, row, depth, "SAME" if pads_blocks else padding)
            net = outputs["output"]
            end_points[name] = net
            end_points.update({f"{name}/{part}": tensor for part, tensor in outputs.items()})
    return end_points

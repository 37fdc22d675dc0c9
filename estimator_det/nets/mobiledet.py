"""MobileDets: backbones that were searched for one accelerator each, as tables of layers.

Xiong et al., "MobileDets: Searching for Object Detection Architectures for Mobile Accelerators",
2020. All layers, of four kinds, follow one pattern: change the number of channels, filter in space,
optionally excite channels, project linearly, and optionally add the input. Variables are named
as in the published detectors, so their checkpoints can be restored.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable, Dict, Iterator, NamedTuple, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import truncated_normal
from estimator_det.nets.inverted_residual import hard_swish
from estimator_det.nets.layers import conv2d, residual_sum, separable_conv2d, squeeze_excite
from estimator_det.nets.normalization import batch_norm, published_scope

Activation = Callable[[tf.Tensor], tf.Tensor]

WEIGHT_DECAY = 0.00004
BATCH_NORM_DECAY = 0.99
BATCH_NORM_EPSILON = 0.01
MULTIPLE = 8  # the number of channels is a multiple of this
SQUEEZE = 0.25  # hidden channels of squeeze-and-excite per channel
# Deviation of a normal distribution cut at two deviations, relative to the uncut one.
CUT_NARROWING = 0.87962566103423978


class MobileDetLayer(NamedTuple):
    """One row of a table."""

    # Name of its variable scope: `IBN` (inverted bottleneck), `IBNNoExpansion`, `FusedConv` or
    # `TuckerConv`.
    kind: str
    depth: int  # output channels at depth multiplier 1
    kernel: int = 3  # height and width of the spatial kernel
    stride: int = 1  # stride of the spatial kernel
    skip: bool = True  # True if the input is added to the output
    expansion: int = 1  # channels inside, per input channel (`IBN`, `FusedConv`)
    # Channels before and after the spatial kernel, per input and per output channel (`TuckerConv`).
    ranks: Tuple[float, float] = (0.25, 0.25)


class MobileDet(NamedTuple):
    """A backbone: a strided 3x3 convolution, then stages, each with an end point."""

    stem: int  # channels of the first convolution at depth multiplier 1
    # Rows by stage; stage n ends at the activation `Cn`, with 1/2^n of the resolution.
    stages: Tuple[Tuple[MobileDetLayer, ...], ...]
    hard_swish: bool = False  # True for x * relu6(x + 3) / 6 as non-linearity, else relu6
    squeeze_excite: bool = False  # True if layers with depthwise kernels weight their channels


def _ibn(depth: int, expansion: int, kernel: int = 3) -> MobileDetLayer:
    return MobileDetLayer("IBN", depth, kernel, expansion=expansion)


def _fused(depth: int, expansion: int, kernel: int = 3) -> MobileDetLayer:
    return MobileDetLayer("FusedConv", depth, kernel, expansion=expansion)


def _tucker(depth: int, rank_in: float, rank_out: float) -> MobileDetLayer:
    return MobileDetLayer("TuckerConv", depth, ranks=(rank_in, rank_out))


def _plain(layer: MobileDetLayer) -> MobileDetLayer:
    """Copy of a layer without the sum with its input."""
    return layer._replace(skip=False)


def _down(layer: MobileDetLayer) -> MobileDetLayer:
    """Copy of a layer with stride 2 and without the sum."""
    return layer._replace(stride=2, skip=False)


CPU = MobileDet(
    stem=16,
    hard_swish=True,
    squeeze_excite=True,
    stages=(
        (MobileDetLayer("IBNNoExpansion", 8, skip=False),),
        (_down(_ibn(16, 4)),),
        (_down(_ibn(32, 8)), _ibn(32, 4), _ibn(32, 4), _ibn(32, 4)),
        (
            *(_down(_ibn(72, 8, kernel=5)), _ibn(72, 8), _ibn(72, 4, kernel=5), _ibn(72, 4)),
            *(_plain(_ibn(72, 8)), _ibn(72, 8), _ibn(72, 8), _ibn(72, 8)),
        ),
        (
            *(_down(_ibn(104, 8, kernel=5)), _ibn(104, 4, kernel=5), _ibn(104, 4, kernel=5)),
            *(_ibn(104, 4), _plain(_ibn(144, 8))),
        ),
    ),
)

DSP = MobileDet(
    stem=32,
    stages=(
        (MobileDetLayer("IBNNoExpansion", 24, skip=False),),
        (_down(_fused(32, 4)), _fused(32, 4), _ibn(32, 4), _tucker(32, 0.25, 0.75)),
        (_down(_fused(64, 8)), _ibn(64, 4), _fused(64, 4), _fused(64, 4)),
        (
            *(_down(_fused(120, 8)), _ibn(120, 4), _ibn(120, 8), _ibn(120, 8)),
            *(_plain(_fused(144, 8)), _ibn(144, 8), _ibn(144, 8), _ibn(144, 8)),
        ),
        (
            *(_down(_ibn(160, 4)), _ibn(160, 4), _fused(160, 4), _tucker(160, 0.75, 0.75)),
            _plain(_ibn(240, 8)),
        ),
    ),
)

EDGETPU = MobileDet(
    stem=32,
    stages=(
        (_plain(_tucker(16, 0.25, 0.75)),),
        (_down(_fused(16, 8)), _fused(16, 4), _fused(16, 8), _fused(16, 4)),
        (_down(_fused(40, 8, kernel=5)), _fused(40, 4), _fused(40, 4), _fused(40, 4)),
        (
            *(_down(_ibn(72, 8)), _ibn(72, 8), _fused(72, 4), _fused(72, 4)),
            *(_plain(_ibn(96, 8, kernel=5)), _ibn(96, 8, kernel=5), _ibn(96, 8), _ibn(96, 8)),
        ),
        (
            *(_down(_ibn(120, 8, kernel=5)), _ibn(120, 8), _ibn(120, 4, kernel=5), _ibn(120, 8)),
            _plain(_ibn(384, 8, kernel=5)),
        ),
    ),
)

GPU = MobileDet(
    stem=32,
    stages=(
        (_plain(_tucker(16, 0.25, 0.25)),),
        (_down(_fused(32, 8)), *(_tucker(32, 0.25, 0.25),) * 3),
        (_down(_fused(64, 8)), _fused(64, 8), _fused(64, 8), _fused(64, 4)),
        (
            *(_down(_fused(128, 8)), *(_fused(128, 4),) * 3),
            *(_plain(_fused(128, 8)), *(_fused(128, 8),) * 3),
        ),
        (_down(_fused(128, 4)), *(_fused(128, 4),) * 3, _plain(_ibn(384, 8))),
    ),
)


def rounded_channels(depth: float, multiplier: float) -> int:
    """Channels of a layer: scaled, rounded (halves up) to a multiple of 8, and at least 8."""
    return max(int(depth * multiplier / MULTIPLE + 0.5) * MULTIPLE, MULTIPLE)


def _he_stddev(fan_in: int) -> float:
    return math.sqrt(2.0 / fan_in) / CUT_NARROWING


def he_normal(shape: Any, dtype: Any = tf.float32) -> tf.Tensor:
    """Initializes whole kernels (He et al., 2015): truncated normal, variance 2 / fan-in."""
    stddev = _he_stddev(math.prod(int(side) for side in shape[:-1]))
    return truncated_normal(stddev)(shape, dtype)


def he_depthwise(kernel: int) -> Callable[..., tf.Tensor]:
    """Initializer of depthwise kernels, whose fan-in is the kernel's area only."""
    return truncated_normal(_he_stddev(kernel * kernel))


@contextlib.contextmanager
def _arg_scope() -> Iterator[None]:
    """Argument scope with all settings of a layer, so that no scope around can change them."""
    with (
        published_scope(
            BATCH_NORM_DECAY,
            BATCH_NORM_EPSILON,
            padding="SAME",
            normalizer_fn=batch_norm,
            normalizer_params=None,
            weights_regularizer=slim.l2_regularizer(WEIGHT_DECAY),
        ),
        slim.arg_scope([slim.conv2d], weights_initializer=he_normal),
    ):
        yield


def _apply(
    inputs: tf.Tensor, layer: MobileDetLayer, depth: int, activation: Activation, excites: bool
) -> tf.Tensor:
    """Builds a row of a table: [B, h, w, c] -> [B, ceil(h / stride), ceil(w / stride), depth]."""
    net = inputs
    spatial: Dict[str, Any] = {"stride": layer.stride, "activation_fn": activation}
    widened = net.shape[-1] * layer.expansion
    if layer.kind == "TuckerConv":
        net = conv2d(
            net, rounded_channels(net.shape[-1], layer.ranks[0]), 1, activation_fn=activation
        )
        net = conv2d(net, rounded_channels(depth, layer.ranks[1]), layer.kernel, **spatial)
    elif layer.kind == "FusedConv":
        net = conv2d(net, widened, layer.kernel, **spatial)
    else:
        if layer.kind == "IBN":
            net = conv2d(net, widened, 1, activation_fn=activation)
        initializer = he_depthwise(layer.kernel)
        net = separable_conv2d(net, None, layer.kernel, weights_initializer=initializer, **spatial)
    if excites:
        hidden = rounded_channels(net.shape[-1], SQUEEZE)
        with tf1.variable_scope("SqueezeExcite"):
            net = squeeze_excite(net, hidden, activation, tf.nn.sigmoid)
    net = conv2d(net, depth, 1, activation_fn=None)
    return residual_sum(net, inputs) if layer.skip else net


def mobiledet(
    inputs: tf.Tensor, network: MobileDet, depth_multiplier: float = 1.0
) -> Dict[str, tf.Tensor]:
    """Builds a backbone in the open variable scope.

    Activations are `C1` to `C5`; `Cn` has 1/2^n of the resolution, rounded up.
    """
    activation: Activation = hard_swish if network.hard_swish else tf.nn.relu6
    end_points: Dict[str, tf.Tensor] = {}
    with _arg_scope():
        stem = rounded_channels(network.stem, depth_multiplier)
        net = conv2d(inputs, stem, 3, stride=2, activation_fn=activation, scope="Conv")
        for number, stage in enumerate(network.stages, start=1):
            for layer in stage:
                depth = rounded_channels(layer.depth, depth_multiplier)
                with tf1.variable_scope(None, layer.kind):  # `kind`, `kind_1`, and so on
                    net = _apply(net, layer, depth, activation, network.squeeze_excite)
            end_points[f"C{number}"] = net
    return end_points

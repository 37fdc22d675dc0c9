"""MnasFPN: a feature pyramid of searched cells for mobile detectors.

Chen et al., "MnasFPN: Learning Latency-aware Pyramid Architecture for Object Detection on Mobile
Devices", 2020. Variables are named as in the published detector, so its checkpoints can be
restored.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import truncated_normal
from estimator_det.nets.layers import choose_padding, conv2d, max_pool, separable_conv2d
from estimator_det.nets.mobiledet import he_normal
from estimator_det.nets.necks.fpn import upsample_twofold
from estimator_det.nets.normalization import batch_norm, published_scope

WEIGHT_DECAY = 0.0001
BACKBONE_WEIGHT_DECAY = 0.00004
DEPTHWISE_STDDEV = 0.536  # He initialization of 3x3 kernels, used for all sizes
BATCH_NORM_DECAY = 0.99
BATCH_NORM_EPSILON = 0.01
POOL = 3  # side of the max pooling windows

LEVELS = (3, 4, 5, 6)
"""Level n has 1/2^n of the image's resolution."""


class CellBlock(NamedTuple):
    """One row of a cell: two maps, resampled to one level and width, summed, and convolved."""

    inputs: Tuple[int, int]  # numbers of two maps: the cell's inputs first, then its blocks
    level: int  # level of the output
    kernel: int  # height and width of the depthwise kernel
    width: int  # channels inside, at depth multiplier 1


CELL = (
    CellBlock((1, 2), level=4, kernel=3, width=256),
    CellBlock((0, 4), level=3, kernel=3, width=128),
    CellBlock((5, 4), level=4, kernel=3, width=128),
    CellBlock((4, 3), level=5, kernel=5, width=128),
    CellBlock((4, 3), level=6, kernel=3, width=96),
)
NUM_CELLS = 4


class Options(NamedTuple):
    """Options of a pyramid."""

    depth: int  # channels of every map at depth multiplier 1
    scale_depth: Callable[[float], int]  # function from a table's channels to the real ones
    explicit_padding: bool = False  # pad with zeros by kernel size instead of "SAME"


@contextlib.contextmanager
def arg_scope(weight_decay: float) -> Iterator[None]:
    """Argument scope of the published detector, for its backbone and its pyramid."""
    regularizer = slim.l2_regularizer(weight_decay)
    with (
        published_scope(BATCH_NORM_DECAY, BATCH_NORM_EPSILON, weights_regularizer=regularizer),
        slim.arg_scope([slim.conv2d], weights_initializer=he_normal),
        slim.arg_scope(
            [slim.separable_conv2d], weights_initializer=truncated_normal(DEPTHWISE_STDDEV)
        ),
    ):
        yield


def _linear(net: tf.Tensor, width: int, scope: str) -> tf.Tensor:
    return conv2d(
        net, width, 1, padding="SAME", activation_fn=None, normalizer_fn=batch_norm, scope=scope
    )


def _resample(
    level: int, net: tf.Tensor, from_level: int, width: int, options: Options
) -> tf.Tensor:
    """Resamples a map to another level and width."""
    # The 1x1 convolution runs at the lower resolution, which is cheaper.
    if from_level < level:
        stride = 2 ** (level - from_level)
        net = max_pool(net, POOL, stride, choose_padding(options.explicit_padding))
    net = _linear(net, width, "Conv1x1")
    for _ in range(from_level - level):
        net = upsample_twofold(net)
    return net


def _block(
    block: CellBlock, maps: Sequence[tf.Tensor], levels: Sequence[int], options: Options
) -> tf.Tensor:
    net = None
    for number, source in enumerate(block.inputs):
        with tf1.variable_scope(f"input_{number}"):
            width = options.scale_depth(block.width)
            term = _resample(block.level, maps[source], levels[source], width, options)
            net = term if net is None else net + term
    return separable_conv2d(
        tf.nn.relu6(net),
        options.scale_depth(options.depth),
        block.kernel,
        padding=choose_padding(options.explicit_padding),
        activation_fn=None,
        normalizer_fn=batch_norm,
        scope="SepConv",
    )


def _cell(inputs: Sequence[tf.Tensor], options: Options) -> List[tf.Tensor]:
    """Builds a cell; its outputs are the last blocks' maps, plus inputs of the same depth."""
    maps, levels = list(inputs), list(LEVELS)
    for number, block in enumerate(CELL):
        with tf1.variable_scope(f"block_{number}"):
            maps.append(_block(block, maps, levels, options))
            levels.append(block.level)
    return [
        block_map + input_map if block_map.shape[-1] == input_map.shape[-1] else block_map
        for block_map, input_map in zip(maps[-len(inputs) :], inputs)
    ]


def mnasfpn(activations: Sequence[tf.Tensor], options: Options) -> Tuple[tf.Tensor, ...]:
    """Builds maps at levels 3 to 6, each [B, h_i, w_i, c], of activations at levels 3, 4 and 5.

    Level 6 is max-pooled from level 5. Variables are in the open scope.
    """
    coarsest = max_pool(activations[-1], POOL, 2, choose_padding(options.explicit_padding))
    with (
        arg_scope(WEIGHT_DECAY),
        slim.arg_scope(
            [slim.conv2d], weights_regularizer=None
        ),  # the published detector has no penalty on this kernel
    ):
        coarsest = _linear(coarsest, options.scale_depth(options.depth), "C6_Conv1x1")
    maps = [*activations, coarsest]
    with arg_scope(WEIGHT_DECAY):
        for number in range(NUM_CELLS):
            with tf1.variable_scope(f"cell_{number}"):
                maps = _cell(maps, options)
    return tuple(maps)

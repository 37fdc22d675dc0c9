"""MnasFPN: a feature pyramid of searched cells for mobile detectors.

Chen et al., "MnasFPN: Learning Latency-aware Pyramid Architecture for Object Detection on Mobile
Devices", 2020. Variable names, and so checkpoints, are those of the published detector.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.nets.initializers import truncated_normal
from estimator_det.nets.necks.fpn import upsample_twofold
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.padding import pad_for_kernel
from estimator_det.nets.searched import he_normal

WEIGHT_DECAY = 0.0001
BACKBONE_WEIGHT_DECAY = 0.00004
DEPTHWISE_STDDEV = 0.536  # He et al.'s for 3x3 kernels, used for all
BATCH_NORM_DECAY = 0.99
BATCH_NORM_EPSILON = 0.01
POOL = 3  # side of the max pooling windows

LEVELS = (3, 4, 5, 6)
"""Level n has 1/2^n of the image's resolution."""


class Block(NamedTuple):
    """One row of a cell: two maps brought to one level and width, summed, and convolved.

    Attributes:
        inputs: Two maps by number: the cell's inputs first, then its blocks.
        level: Of the output.
        kernel: Side of the depthwise kernel.
        width: Channels within, at depth multiplier 1.
    """

    inputs: Tuple[int, int]
    level: int
    kernel: int
    width: int


CELL = (
    Block((1, 2), level=4, kernel=3, width=256),
    Block((0, 4), level=3, kernel=3, width=128),
    Block((5, 4), level=4, kernel=3, width=128),
    Block((4, 3), level=5, kernel=5, width=128),
    Block((4, 3), level=6, kernel=3, width=96),
)
NUM_CELLS = 4


class Options(NamedTuple):
    """How a pyramid is made.

    Attributes:
        depth: Channels of every map at depth multiplier 1.
        scaled: Function from a table's channels to the real ones.
        explicit_padding: Pad with zeros by kernel size alone, not by "SAME".
    """

    depth: int
    scaled: Callable[[float], int]
    explicit_padding: bool = False


@contextlib.contextmanager
def arg_scope(weight_decay: float) -> Iterator[None]:
    """Settings of the published detector, for its backbone and its pyramid.

    Args:
        weight_decay: L2 weight of every kernel.
    """
    regularizer = slim.l2_regularizer(weight_decay)
    with (
        published_scope(BATCH_NORM_DECAY, BATCH_NORM_EPSILON, weights_regularizer=regularizer),
        slim.arg_scope([slim.conv2d], weights_initializer=he_normal),
        slim.arg_scope(
            [slim.separable_conv2d], weights_initializer=truncated_normal(DEPTHWISE_STDDEV)
        ),
    ):
        yield


def _padded(net: tf.Tensor, kernel: int, options: Options) -> tf.Tensor:
    return pad_for_kernel(net, kernel) if options.explicit_padding else net


def _padding(options: Options) -> str:
    return "VALID" if options.explicit_padding else "SAME"


def _pooled(net: tf.Tensor, stride: int, options: Options) -> tf.Tensor:
    return tf.nn.max_pool2d(_padded(net, POOL, options), POOL, stride, _padding(options))


def _linear(net: tf.Tensor, width: int, scope: str) -> tf.Tensor:
    return slim.conv2d(
        net, width, 1, padding="SAME", activation_fn=None, normalizer_fn=batch_norm, scope=scope
    )


def _brought_to(
    level: int, net: tf.Tensor, from_level: int, width: int, options: Options
) -> tf.Tensor:
    """A map at another level and width; the 1x1 convolution works where pixels are fewer."""
    if from_level < level:
        net = _pooled(net, 2 ** (level - from_level), options)
    net = _linear(net, width, "Conv1x1")
    for _ in range(from_level - level):
        net = upsample_twofold(net)
    return net


def _block(
    block: Block, maps: Sequence[tf.Tensor], levels: Sequence[int], options: Options
) -> tf.Tensor:
    net = None
    for number, source in enumerate(block.inputs):
        with tf1.variable_scope(f"input_{number}"):
            width = options.scaled(block.width)
            term = _brought_to(block.level, maps[source], levels[source], width, options)
            net = term if net is None else net + term
    return slim.separable_conv2d(
        _padded(tf.nn.relu6(net), block.kernel, options),
        options.scaled(options.depth),
        block.kernel,
        depth_multiplier=1,
        padding=_padding(options),
        activation_fn=None,
        normalizer_fn=batch_norm,
        scope="SepConv",
    )


def _cell(inputs: Sequence[tf.Tensor], options: Options) -> List[tf.Tensor]:
    """The last blocks' maps, plus the inputs where the number of channels allows it."""
    maps, levels = list(inputs), list(LEVELS)
    for number, block in enumerate(CELL):
        with tf1.variable_scope(f"block_{number}"):
            maps.append(_block(block, maps, levels, options))
            levels.append(block.level)
    return [
        out + before if out.shape[-1] == before.shape[-1] else out
        for out, before in zip(maps[-len(inputs) :], inputs)
    ]


def _check_sizes(maps: Sequence[tf.Tensor]) -> None:
    """Refuses maps whose sides are not halved exactly from level to level."""
    for axis in (1, 2):
        finest = maps[0].shape[axis]
        for level, features in zip(LEVELS, maps):
            side = features.shape[axis]
            if None not in (finest, side) and side << (level - LEVELS[0]) != finest:
                sizes = [m.shape[1:3].as_list() for m in maps]
                raise ConfigError(
                    f"MnasFPN needs maps whose sides halve from level to level; got {sizes}. Make "
                    f"the image's sides multiples of {2 ** LEVELS[-1]}, for example with "
                    f"feature_extractor.pad_to_multiple: {2 ** LEVELS[-1]}"
                )


def mnasfpn(activations: Sequence[tf.Tensor], options: Options) -> Tuple[tf.Tensor, ...]:
    """Builds the pyramid in the open variable scope.

    Args:
        activations: The backbone's at levels 3, 4 and 5, [B, h / 8, w / 8, c] and so on.
        options: How the pyramid is made.

    Returns:
        Four maps [B, h_i, w_i, c] at levels 3 to 6; level 6 comes from max pooling level 5.

    Raises:
        ConfigError: if the sides do not halve from level to level.
    """
    coarsest = _pooled(activations[-1], 2, options)
    with (
        arg_scope(WEIGHT_DECAY),
        slim.arg_scope([slim.conv2d], weights_regularizer=None),  # not for this one kernel
    ):
        coarsest = _linear(coarsest, options.scaled(options.depth), "C6_Conv1x1")
    maps = [*activations, coarsest]
    _check_sizes(maps)
    with arg_scope(WEIGHT_DECAY):
        for number in range(NUM_CELLS):
            with tf1.variable_scope(f"cell_{number}"):
                maps = _cell(maps, options)
    return tuple(maps)

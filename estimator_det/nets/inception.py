"""Inception v2 and v3 as tables of blocks.

v2: Ioffe & Szegedy, "Batch Normalization", 2015. v3: Szegedy et al., "Rethinking the Inception
Architecture for Computer Vision", 2016. Variables are named as in the published classifiers,
irregular names included, so their checkpoints can be restored. A detector that needs only a part of
a network builds a slice of its table.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

from estimator_det.compat import tf, tf1
from estimator_det.nets.hyperparams import truncated_normal
from estimator_det.nets.layers import conv2d, separable_conv2d

SEPARABLE_MULTIPLIER = 8  # depthwise channels per colour in the first layer of v2, at most


class InceptionConv(NamedTuple):
    """A convolution."""

    name: str  # name of its variable scope; it does not always match the kernel
    kernel: Tuple[int, int]  # height and width
    depth: int  # output channels at depth multiplier 1
    stride: int = 1  # stride in both directions
    padding: str = "SAME"  # "SAME" or "VALID"
    # Deviation of the initial weights; None for the initializer of the argument scope.
    stddev: Optional[float] = None
    is_separable: bool = False  # True if it is split into depthwise and pointwise halves


class InceptionPool(NamedTuple):
    """3x3 pooling: "max" or "avg"."""

    kind: str
    stride: int = 1
    padding: str = "SAME"
    name: str = ""


class Fork(NamedTuple):
    """Convolutions of one input, with their outputs concatenated."""

    arms: Tuple[InceptionConv, ...]


ModuleLayer = Union[InceptionConv, InceptionPool, Fork]
Branches = Tuple[Tuple[ModuleLayer, ...], ...]


class Mixed(NamedTuple):
    """Chains of layers on one input, with their outputs concatenated."""

    name: str  # name of the activation; the variables are in `name/Branch_0` and so on
    branches: Branches  # the chains


InceptionBlock = Union[InceptionConv, InceptionPool, Mixed]  # each has one named activation


def conv(name: str, depth: int, stride: int = 1, **settings: Any) -> InceptionConv:
    """A convolution whose name ends with its kernel: "0b_1x7" is `Conv2d_0b_1x7`."""
    height, width = name.rpartition("_")[2].split("x")
    return InceptionConv(f"Conv2d_{name}", (int(height), int(width)), depth, stride, **settings)


# Initial deviations of v2's 1x1 convolutions.
BEFORE_LARGER = 0.09
AFTER_POOLING = 0.1


def _v2_mixed(
    letters: str, plain: int, triple: Tuple[int, int], double: Tuple[int, int], pool: str, last: int
) -> Mixed:
    """Block of four branches: 1x1; 1x1 and 3x3; 1x1 and two 3x3; pooling and 1x1."""
    return Mixed(
        f"Mixed_{letters}",
        (
            (conv("0a_1x1", plain),),
            (conv("0a_1x1", triple[0], stddev=BEFORE_LARGER), conv("0b_3x3", triple[1])),
            (
                conv("0a_1x1", double[0], stddev=BEFORE_LARGER),
                conv("0b_3x3", double[1]),
                conv("0c_3x3", double[1]),
            ),
            (InceptionPool(pool), conv("0b_1x1", last, stddev=AFTER_POOLING)),
        ),
    )


def _v2_halving(letters: str, first: Tuple[int, int], second: Tuple[int, int]) -> Mixed:
    """Block that halves the resolution: 1x1 and 3x3; 1x1 and two 3x3; pooling."""
    return Mixed(
        f"Mixed_{letters}",
        (
            (conv("0a_1x1", first[0], stddev=BEFORE_LARGER), conv("1a_3x3", first[1], 2)),
            (
                conv("0a_1x1", second[0], stddev=BEFORE_LARGER),
                conv("0b_3x3", second[1]),
                conv("1a_3x3", second[1], 2),
            ),
            (InceptionPool("max", 2),),
        ),
    )


V2_BLOCKS: Tuple[InceptionBlock, ...] = (
    conv("1a_7x7", 64, 2, stddev=1.0, is_separable=True),
    InceptionPool("max", 2, name="MaxPool_2a_3x3"),
    conv("2b_1x1", 64, stddev=0.1),
    conv("2c_3x3", 192),
    InceptionPool("max", 2, name="MaxPool_3a_3x3"),
    _v2_mixed("3b", 64, (64, 64), (64, 96), "avg", 32),
    _v2_mixed("3c", 64, (64, 96), (64, 96), "avg", 64),
    _v2_halving("4a", (128, 160), (64, 96)),
    _v2_mixed("4b", 224, (64, 96), (96, 128), "avg", 128),
    _v2_mixed("4c", 192, (96, 128), (96, 128), "avg", 128),
    _v2_mixed("4d", 160, (128, 160), (128, 160), "avg", 96),
    _v2_mixed("4e", 96, (128, 192), (160, 192), "avg", 96),
    _v2_halving("5a", (128, 192), (192, 256)),
    _v2_mixed("5b", 352, (192, 320), (160, 224), "avg", 128),
    _v2_mixed("5c", 352, (192, 320), (192, 224), "max", 128),
)


def _v3_35(letters: str, second: Tuple[InceptionConv, InceptionConv], last: int) -> Mixed:
    """Block of four branches at 35x35: 1x1; 1x1 and 5x5; 1x1 and two 3x3; pooling and 1x1."""
    return Mixed(
        f"Mixed_{letters}",
        (
            (conv("0a_1x1", 64),),
            second,
            (conv("0a_1x1", 64), conv("0b_3x3", 96), conv("0c_3x3", 96)),
            (InceptionPool("avg"), conv("0b_1x1", last)),
        ),
    )


def _v3_17(letters: str, inner: int) -> Mixed:
    """Block of four branches at 17x17, with 7x7 kernels split into 1x7 and 7x1."""
    return Mixed(
        f"Mixed_{letters}",
        (
            (conv("0a_1x1", 192),),
            (conv("0a_1x1", inner), conv("0b_1x7", inner), conv("0c_7x1", 192)),
            (
                conv("0a_1x1", inner),
                conv("0b_7x1", inner),
                conv("0c_1x7", inner),
                conv("0d_7x1", inner),
                conv("0e_1x7", 192),
            ),
            (InceptionPool("avg"), conv("0b_1x1", 192)),
        ),
    )


def _v3_8(letters: str, second_arm: str) -> Mixed:
    """Block of four branches at 8x8, two of which fork at their end."""
    return Mixed(
        f"Mixed_{letters}",
        (
            (conv("0a_1x1", 320),),
            (conv("0a_1x1", 384), Fork((conv("0b_1x3", 384), conv(second_arm, 384)))),
            (
                conv("0a_1x1", 448),
                conv("0b_3x3", 384),
                Fork((conv("0c_1x3", 384), conv("0d_3x1", 384))),
            ),
            (InceptionPool("avg"), conv("0b_1x1", 192)),
        ),
    )


V3_BLOCKS: Tuple[InceptionBlock, ...] = (
    conv("1a_3x3", 32, 2, padding="VALID"),
    conv("2a_3x3", 32, padding="VALID"),
    conv("2b_3x3", 64),
    InceptionPool("max", 2, "VALID", "MaxPool_3a_3x3"),
    conv("3b_1x1", 80, padding="VALID"),
    conv("4a_3x3", 192, padding="VALID"),
    InceptionPool("max", 2, "VALID", "MaxPool_5a_3x3"),
    _v3_35("5b", (conv("0a_1x1", 48), conv("0b_5x5", 64)), 32),
    _v3_35("5c", (conv("0b_1x1", 48), InceptionConv("Conv_1_0c_5x5", (5, 5), 64)), 64),
    _v3_35("5d", (conv("0a_1x1", 48), conv("0b_5x5", 64)), 64),
    Mixed(
        "Mixed_6a",
        (
            (InceptionConv("Conv2d_1a_1x1", (3, 3), 384, 2, "VALID"),),
            (
                conv("0a_1x1", 64),
                conv("0b_3x3", 96),
                InceptionConv("Conv2d_1a_1x1", (3, 3), 96, 2, "VALID"),
            ),
            (InceptionPool("max", 2, "VALID"),),
        ),
    ),
    _v3_17("6b", 128),
    _v3_17("6c", 160),
    _v3_17("6d", 160),
    _v3_17("6e", 192),
    Mixed(
        "Mixed_7a",
        (
            (conv("0a_1x1", 192), conv("1a_3x3", 320, 2, padding="VALID")),
            (
                conv("0a_1x1", 192),
                conv("0b_1x7", 192),
                conv("0c_7x1", 192),
                conv("1a_3x3", 192, 2, padding="VALID"),
            ),
            (InceptionPool("max", 2, "VALID"),),
        ),
    ),
    _v3_8("7b", "0b_3x1"),
    _v3_8("7c", "0c_3x1"),
)

ScaleDepth = Callable[[float], int]


def _convolve(net: tf.Tensor, conv: InceptionConv, depth: ScaleDepth) -> tf.Tensor:
    settings: Dict[str, Any] = {"stride": conv.stride, "padding": conv.padding, "scope": conv.name}
    if conv.stddev is not None:
        settings["weights_initializer"] = truncated_normal(conv.stddev)
    channels = depth(conv.depth)
    if not conv.is_separable:
        return conv2d(net, channels, conv.kernel, **settings)
    multiplier = min(channels // 3, SEPARABLE_MULTIPLIER)
    return separable_conv2d(net, channels, conv.kernel, multiplier, **settings)


def _apply(net: tf.Tensor, layer: ModuleLayer, depth: ScaleDepth) -> tf.Tensor:
    if isinstance(layer, InceptionConv):
        return _convolve(net, layer, depth)
    if isinstance(layer, Fork):
        return tf.concat([_convolve(net, arm, depth) for arm in layer.arms], axis=-1)
    pool = tf.nn.max_pool2d if layer.kind == "max" else tf.nn.avg_pool2d
    return pool(net, ksize=3, strides=layer.stride, padding=layer.padding)


def mix(net: tf.Tensor, branches: Branches, depth: ScaleDepth = int) -> tf.Tensor:
    """Builds chains of layers on `net`, [B, h, w, C], and concatenates their channels."""
    outputs = []
    for number, branch in enumerate(branches):
        output = net
        with tf1.variable_scope(f"Branch_{number}"):
            for layer in branch:
                output = _apply(output, layer, depth)
        outputs.append(output)
    return tf.concat(outputs, axis=-1)


def inception(
    inputs: tf.Tensor, depth: ScaleDepth = int, blocks: Sequence[InceptionBlock] = V2_BLOCKS
) -> Dict[str, tf.Tensor]:
    """Builds a network, or a part of one, in the open variable and argument scopes.

    Argument scopes set normalization, activation and regularization, and the initial weights of
    v3 and of the larger kernels of v2. Blocks are `V2_BLOCKS` (ends at `Mixed_5c`, stride 32),
    `V3_BLOCKS` (ends at `Mixed_7c`, stride 32), or a slice of one, whose inputs are the activation
    before it. Returns every activation by the name of its block, in order.
    """
    end_points: Dict[str, tf.Tensor] = {}
    net = inputs
    for block in blocks:
        if isinstance(block, Mixed):
            with tf1.variable_scope(block.name):
                net = mix(net, block.branches, depth)
        else:
            net = _apply(net, block, depth)
        end_points[block.name] = net
    return end_points

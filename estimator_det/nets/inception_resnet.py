"""Inception-ResNet v2, in the two parts that two-stage detectors build.

Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning",
2016. Unlike in the published classifier, every layer of the first part pads its input ("SAME"), so
that cells of the feature map are aligned with the image. Variables are named as in the
classifier, except `Repeat`, which is `Repeat_2` in the classifier.
"""

from __future__ import annotations

import itertools
from typing import ContextManager, Dict, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import inception
from estimator_det.nets.inception import (
    Branches,
    InceptionBlock,
    InceptionConv,
    InceptionPool,
    Mixed,
    conv,
)
from estimator_det.nets.layers import conv2d
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.object_paths import joined

# Settings with which the published network was trained.
BATCH_NORM_DECAY = 0.9997
BATCH_NORM_EPSILON = 0.001

ATROUS_STRIDE = 8  # stride of the first part at which its last blocks are dilated


class Residual(NamedTuple):
    """Residual block: branches, then a 1x1 convolution to the input's channels, then a sum."""

    name: str  # name of the variable scope of such a block, without its number
    branches: Branches  # the chains of layers
    scale: float  # factor of the branches; values below 1 keep the training of deep networks stable
    repeats: int  # number of such blocks in a row


STEM: Tuple[InceptionBlock, ...] = (
    conv("1a_3x3", 32, 2),
    conv("2a_3x3", 32),
    conv("2b_3x3", 64),
    InceptionPool("max", 2, name="MaxPool_3a_3x3"),
    conv("3b_1x1", 80),
    conv("4a_3x3", 192),
    InceptionPool("max", 2, name="MaxPool_5a_3x3"),
    Mixed(
        "Mixed_5b",
        (
            (conv("1x1", 96),),
            (conv("0a_1x1", 48), conv("0b_5x5", 64)),
            (conv("0a_1x1", 64), conv("0b_3x3", 96), conv("0c_3x3", 96)),
            (InceptionPool("avg"), conv("0b_1x1", 64)),
        ),
    ),
)
BLOCK35 = Residual(
    "block35",
    (
        (conv("1x1", 32),),
        (conv("0a_1x1", 32), conv("0b_3x3", 32)),
        (conv("0a_1x1", 32), conv("0b_3x3", 48), conv("0c_3x3", 64)),
    ),
    scale=0.17,
    repeats=10,
)
BLOCK17 = Residual(
    "block17",
    (
        (conv("1x1", 192),),
        (conv("0a_1x1", 128), conv("0b_1x7", 160), conv("0c_7x1", 192)),
    ),
    scale=0.1,
    repeats=20,
)
BLOCK8 = Residual(
    "block8",
    (
        (conv("1x1", 192),),
        (conv("0a_1x1", 192), conv("0b_1x3", 224), conv("0c_3x1", 256)),
    ),
    scale=0.2,
    repeats=9,
)
LAST_BLOCK8 = BLOCK8._replace(name="Block8", scale=1.0, repeats=1)
LAST_DEPTH = 1536


def _mixed_6a(stride: int) -> Mixed:
    return Mixed(
        "Mixed_6a",
        (
            (conv("1a_3x3", 384, stride),),
            (conv("0a_1x1", 256), conv("0b_3x3", 256), conv("1a_3x3", 384, stride)),
            (InceptionPool("max", stride),),
        ),
    )


def _mixed_7a(padding: str) -> Mixed:
    def halving(depth: int) -> InceptionConv:
        return conv("1a_3x3", depth, 2, padding=padding)

    return Mixed(
        "Mixed_7a",
        (
            (conv("0a_1x1", 256), halving(384)),
            (conv("0a_1x1", 256), halving(288)),
            (conv("0a_1x1", 256), conv("0b_3x3", 288), halving(320)),
            (InceptionPool("max", 2, padding),),
        ),
    )


def arg_scope() -> ContextManager[None]:
    """Argument scope of the detectors' layers: batch norm without a factor, no weight penalty."""
    return published_scope(
        BATCH_NORM_DECAY, BATCH_NORM_EPSILON, scale=False, normalizer_fn=batch_norm
    )


def _add(net: tf.Tensor, block: Residual) -> tf.Tensor:
    """Adds a residual block in the open variable scope, [B, h, w, C] -> [B, h, w, C]."""
    change = conv2d(
        inception.mix(net, block.branches),
        net.shape[-1],
        1,
        normalizer_fn=None,
        activation_fn=None,
        scope="Conv2d_1x1",
    )
    return net + block.scale * change


def _repeat(net: tf.Tensor, scope: str, block: Residual) -> tf.Tensor:
    for number in range(1, block.repeats + 1):
        with tf1.variable_scope(f"{scope}/{block.name}_{number}"):
            net = tf.nn.relu(_add(net, block))
    return net


def first_part(inputs: tf.Tensor, output_stride: int) -> tf.Tensor:
    """Builds the layers before `Mixed_7a` in the open variable and argument scopes.

    The result is [B, h / output_stride, w / output_stride, 1088], sizes rounded up. With an output
    stride of 8 instead of 16, the blocks after the last change of resolution are dilated.
    """
    is_dilated = output_stride == ATROUS_STRIDE
    *_, net = inception.inception(inputs, blocks=STEM).values()
    net = _repeat(net, "Repeat", BLOCK35)
    *_, net = inception.inception(net, blocks=(_mixed_6a(1 if is_dilated else 2),)).values()
    with slim.arg_scope([slim.conv2d], rate=2 if is_dilated else 1):
        return _repeat(net, "Repeat_1", BLOCK17)


def second_part(inputs: tf.Tensor, *, tf2_line: bool = False) -> tf.Tensor:
    """Builds `Mixed_7a` and the layers after it in the open variable and argument scopes.

    Crops [N, h, w, 1088] become [N, (h - 1) / 2, (w - 1) / 2, 1536], sizes rounded down. In the TF2
    line `Mixed_7a` pads its input, too: sizes are h / 2 and w / 2, rounded up.
    """
    mixed = _mixed_7a("SAME" if tf2_line else "VALID")
    *_, net = inception.inception(inputs, blocks=(mixed,)).values()
    net = _repeat(net, "Repeat", BLOCK8)
    with tf1.variable_scope(LAST_BLOCK8.name):
        net = _add(net, LAST_BLOCK8)
    return conv2d(net, LAST_DEPTH, 1, scope="Conv2d_7b_1x1")


def keras_order(scopes: Sequence[str]) -> List[str]:
    """Scopes of the layers in the order in which Keras counts them; see `nets.object_paths`."""
    order: List[str] = []
    for _, block in itertools.groupby(scopes, _block_of):
        branches: Dict[str, List[str]] = {}
        for scope in block:
            branches.setdefault(scope.partition("/Branch_")[2][:1], []).append(scope)
        order += joined(*branches.values())
    return order


def _block_of(scope: str) -> str:
    """The block with the branch of a layer; the layer itself outside of branches."""
    block, branch, _ = scope.partition("/Branch_")
    return block if branch else f"{scope}/"

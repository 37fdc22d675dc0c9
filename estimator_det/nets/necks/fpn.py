"""Pyramids of feature maps that share one depth: top-down (FPN) and pooled (PPN)."""

from __future__ import annotations

import collections
from typing import Any, Counter, Dict, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.images.resize import height_and_width
from estimator_det.nets.layers import (
    choose_padding,
    conv2d,
    quantized,
    ranges_with_suffix,
    separable_conv2d,
)
from estimator_det.nets.object_paths import Paths, layers_of, list_paths

Maps = Tuple[tf.Tensor, ...]

KERNEL = 3


class LayerOptions(NamedTuple):
    """Options of a pyramid's layers."""

    depth: int  # channels of every map
    # Pad before the 3x3 convolutions by kernel size instead of "SAME".
    explicit_padding: bool = False
    # Split the 3x3 convolutions into depthwise and pointwise halves, with a single batch norm.
    use_depthwise: bool = False
    # A level enlarges the smoothed map of the next coarser level, instead of its sum (TF2 line).
    enlarges_smoothed: bool = False


def upsample_twofold(features: tf.Tensor) -> tf.Tensor:
    """Repeats every pixel of [B, h, w, C] twice along both axes: [B, 2 h, 2 w, C]."""
    # Reshapes and copies compile for accelerators, where a resize may not.
    height, width = height_and_width(features)
    depth = features.shape[3]
    columns = tf.reshape(features, [-1, height, 1, width, 1, depth])
    copies = tf.tile(columns, [1, 1, 2, 1, 2, 1])
    return tf.reshape(copies, [-1, 2 * height, 2 * width, depth])


def _convolution(net: tf.Tensor, options: LayerOptions, stride: int, name: str) -> tf.Tensor:
    convolve = separable_conv2d if options.use_depthwise else conv2d
    padding = choose_padding(options.explicit_padding)
    return convolve(net, options.depth, KERNEL, stride=stride, padding=padding, scope=name)


def _upsample_to(coarse: tf.Tensor, lateral: tf.Tensor, cut: bool) -> tf.Tensor:
    """Upsamples `coarse` to the size of `lateral`."""
    upsampled = upsample_twofold(coarse)
    coarse_size: Any = upsampled.shape[1:3].as_list()
    lateral_size: Any = lateral.shape[1:3].as_list()
    is_static = None not in coarse_size + lateral_size
    if not cut or (is_static and coarse_size == lateral_size):
        return upsampled
    height, width = lateral_size if None not in lateral_size else tf.unstack(tf.shape(lateral)[1:3])
    return upsampled[:, :height, :width, :]


def top_down_maps(end_points: Sequence[tf.Tensor], options: LayerOptions) -> Maps:
    """Adds coarse activations to fine ones (Lin et al., "Feature Pyramid Networks", 2017).

    Every activation is projected by a 1x1 convolution without normalization or activation; from the
    coarsest down, each level adds the next coarser one, enlarged twofold. All but the coarsest are
    smoothed by a 3x3 convolution. Scopes are `projection_n` and `smoothing_n`, counted from 1 at
    the finest; checkpoints depend on them. With explicit padding an enlarged map may be larger than
    the next finer one; it is cut at the bottom and the right.
    """
    maps: List[tf.Tensor] = []
    with ranges_with_suffix("/top_down"):
        for number in range(len(end_points), 0, -1):
            lateral = conv2d(
                end_points[number - 1],
                options.depth,
                1,
                padding="SAME",
                activation_fn=None,
                normalizer_fn=None,
                scope=f"projection_{number}",
            )
            if not maps:
                merged = lateral
                maps.append(merged)
                continue
            merged = _upsample_to(merged, lateral, cut=options.explicit_padding) + lateral
            suffix = f"_{len(maps) - 1}" if len(maps) > 1 else ""
            merged = quantized(merged, f"add{suffix}/activation_AddV2_quant")
            maps.append(_convolution(merged, options, stride=1, name=f"smoothing_{number}"))
            if options.enlarges_smoothed:
                merged = maps[-1]
    return tuple(reversed(maps))


def coarse_maps(features: tf.Tensor, names: Sequence[str], options: LayerOptions) -> Maps:
    """Adds coarser maps to a pyramid: a 3x3 convolution of stride 2 for each scope name."""
    maps = []
    for name in names:
        features = _convolution(features, options, stride=2, name=name)
        maps.append(features)
    return tuple(maps)


def object_paths(scopes: Sequence[str], prefix: str = "_") -> Paths:
    """Paths of the layers of a pyramid in the scope `fpn`; see `nets.object_paths`.

    Each list counts from the coarsest level, but the list of coarse maps, from the finest. The
    `prefix` begins the names of their owners.
    """
    places: Dict[str, Tuple[str, int]] = {}
    counts: Counter[str] = collections.Counter()
    for layer in layers_of(scope for scope in scopes if scope.startswith("fpn/")):
        kind = layer.partition("/")[2].partition("_")[0]
        number = counts[kind]
        counts[kind] += 1
        if kind == "projection":
            above = f"residual_blocks/{number - 1}" if number else "top_layers"
            places[layer] = (f"{prefix}fpn_features_generator/{above}", 0)
        elif kind == "smoothing":
            places[layer] = (f"{prefix}fpn_features_generator/conv_layers/{number}", 0)
        else:
            places[layer] = (f"{prefix}coarse_feature_layers/{number}", 0)
    return list_paths(scopes, places)


NUM_POOLED_MAPS = 6


def pooled_maps(features: tf.Tensor, base_depth: int = 0) -> Maps:
    """Builds a pooling pyramid (Jin et al., "Pooling Pyramid Network", 2018).

    Each map is max-pooled to half the size of the one before it. `base_depth` above 0 puts a 1x1
    convolution before the first map, in the scope `Base_Conv2d_1x1_<depth>`.
    """
    if base_depth:
        name = f"Base_Conv2d_1x1_{base_depth}"
        features = conv2d(features, base_depth, 1, padding="SAME", scope=name)
    maps = [features]
    while len(maps) < NUM_POOLED_MAPS:
        maps.append(tf.nn.max_pool2d(maps[-1], 2, 2, "SAME"))
    return tuple(maps)

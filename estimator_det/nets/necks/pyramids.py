"""Feature maps of several resolutions on top of a backbone."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Callable, Counter, Dict, NamedTuple, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.nets.hyperparams import keras_defaults
from estimator_det.nets.layers import choose_padding, conv2d, separable_conv2d
from estimator_det.nets.object_paths import PLACES, Paths, layers_of, list_paths


class FeatureMap(NamedTuple):
    """One row of a detector's list of feature maps."""

    # Backbone activation to use unchanged; empty for a new layer of half the resolution on the map
    # before it.
    end_point: str = ""
    # Channels of a new layer at depth multiplier 1; unused for a backbone activation.
    depth: int = 0
    kernel_size: int = 3  # kernel of a new layer's strided convolution


_EXTRA_LAYER = re.compile(r".+_[12]_Conv2d_(\d+)_\dx\d.*")

EXTRA_LAYERS = tuple(FeatureMap(depth=depth) for depth in (512, 256, 256, 128))
"""New layers of most detectors."""


def extended_maps(
    end_points: Dict[str, tf.Tensor],
    maps: Sequence[FeatureMap],
    depth: Callable[[float], int],
    *,
    explicit_padding: bool = False,
    use_depthwise: bool = False,
    keras_depthwise: bool = False,
) -> Tuple[tf.Tensor, ...]:
    """Returns backbone activations and smaller and smaller extra layers (Liu et al., "SSD", 2016).

    An extra layer is a 1x1 convolution to half its depth, then a convolution of stride 2, which
    is split into depthwise and pointwise halves if `use_depthwise`. Names contain the last backbone
    activation, the row number, the kernel and the depth; checkpoints depend on them. The first row
    must name a backbone activation. In the TF2 line (`keras_depthwise`), hyperparameters do not
    apply to depthwise kernels.
    """
    result = []
    base = ""
    for row, (end_point, table_depth, kernel_size) in enumerate(maps):
        if end_point:
            if end_point not in end_points:
                raise ValueError(
                    f"feature map {row}: the backbone has no activation {end_point!r}; "
                    f"it has {sorted(end_points)}"
                )
            base = end_point
            result.append(end_points[end_point])
            continue
        if not result:
            raise ValueError("feature map 0 must be an activation of the backbone")
        half, full = depth(table_depth / 2), depth(table_depth)
        net = conv2d(result[-1], half, 1, padding="SAME", scope=f"{base}_1_Conv2d_{row}_1x1_{half}")
        name = f"{base}_2_Conv2d_{row}_{kernel_size}x{kernel_size}_s2_{full}"
        strided: Dict[str, Any] = {"stride": 2, "padding": choose_padding(explicit_padding)}
        if use_depthwise:
            with keras_defaults() if keras_depthwise else contextlib.nullcontext():
                net = separable_conv2d(net, None, kernel_size, scope=f"{name}_depthwise", **strided)
            net = conv2d(net, full, 1, padding="SAME", scope=name)
        else:
            net = conv2d(net, full, kernel_size, scope=name, **strided)
        result.append(net)
    return tuple(result)


def object_paths(scopes: Sequence[str]) -> Paths:
    """Paths of the extra layers among some scopes; see `nets.object_paths`.

    Each map has a list of its layers.
    """
    places: Dict[str, Tuple[str, int]] = {}
    counts: Counter[str] = Counter()
    for layer in layers_of(scopes):
        match = _EXTRA_LAYER.fullmatch(layer)
        if match:
            places[layer] = (f"feature_map_generator/convolutions/{match[1]}", counts[match[1]])
            counts[match[1]] += PLACES
    return list_paths(scopes, places)

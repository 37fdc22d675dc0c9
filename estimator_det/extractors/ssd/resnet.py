"""Single-shot extractors on ResNet v1: feature pyramids (FPN) and pooling pyramids (PPN)."""

from __future__ import annotations

import functools

from estimator_det.extractors.maps import Backbone, MapLayout, fpn_pyramid, pooling_pyramid
from estimator_det.extractors.recipe import Recipe, subtract_channel_means
from estimator_det.extractors.ssd.registry import EXTRACTORS, register_keras
from estimator_det.nets import resnet
from estimator_det.nets.necks import fpn

MIN_SIZE = 129
BLOCKS = ("block1", "block2", "block3", "block4")
POOLED_DEPTH = 1024


def _backbone(layers: int, is_scaled: bool) -> Backbone:
    """Builds a ResNet; `depth_multiplier` and `min_depth` apply only if `is_scaled`."""
    return lambda inputs, options: resnet.resnet_v1(
        inputs, layers, options.depth if is_scaled else int
    )


def _keras_backbone(layers: int) -> Backbone:
    return lambda inputs, options: resnet.keras_resnet_v1(inputs, layers, options.depth)


for _layers in resnet.V1_BLOCKS:
    EXTRACTORS.register(f"ssd_resnet{_layers}_v1_fpn")(
        Recipe(
            scope=f"resnet_v1_{_layers}",
            arg_scope=resnet.v1_arg_scope,
            layout=MapLayout(
                _backbone(_layers, is_scaled=True),
                fpn_pyramid(BLOCKS, "bottom_up_block{}", 5, plain=True),
            ),
            normalize=subtract_channel_means,
            min_size=MIN_SIZE,
            takes=("fpn",),
            refuses=("use_explicit_padding",),
            ignores=("use_depthwise",),
        ),
    )
    register_keras(
        f"ssd_resnet{_layers}_v1_fpn",
        fpn.object_paths,
        resnet.keras_order,
        arg_scope=functools.partial(resnet.v1_arg_scope, tf2_line=True),
        backbone=_keras_backbone(_layers),
    )
    EXTRACTORS.register(f"ssd_resnet{_layers}_v1_ppn")(
        Recipe(
            scope=f"resnet_v1_{_layers}",
            arg_scope=resnet.v1_arg_scope,
            layout=MapLayout(
                _backbone(_layers, is_scaled=False),
                pooling_pyramid("block3", POOLED_DEPTH),
                fpn.NUM_POOLED_MAPS,
            ),
            normalize=subtract_channel_means,
            min_size=MIN_SIZE,
            refuses=("depth_multiplier",),
            ignores=("min_depth", "use_explicit_padding", "use_depthwise"),
        ),
    )

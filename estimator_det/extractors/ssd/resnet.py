"""Single-shot extractors on ResNet v1: feature pyramids (FPN) and pooling pyramids (PPN)."""

from __future__ import annotations

import functools

from estimator_det.extractors.base import subtract_channel_means
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import resnet
from estimator_det.nets.necks import fpn

MIN_SIZE = 129
BLOCKS = ("block1", "block2", "block3", "block4")
POOLED_DEPTH = 1024


def _backbone(layers: int, is_scaled: bool) -> recipe.Backbone:
    """Builds a ResNet; `depth_multiplier` and `min_depth` apply only if `is_scaled`."""
    return lambda inputs, options: resnet.resnet_v1(
        inputs, layers, options.depth if is_scaled else int
    )


def _keras_backbone(layers: int) -> recipe.Backbone:
    return lambda inputs, options: resnet.keras_resnet_v1(inputs, layers, options.depth)


for _layers in resnet.V1_BLOCKS:
    recipe.register_recipe(
        f"ssd_resnet{_layers}_v1_fpn",
        recipe.Recipe(
            scope=f"resnet_v1_{_layers}",
            base_scope=resnet.v1_arg_scope,
            backbone=_backbone(_layers, is_scaled=True),
            pyramid=recipe.fpn_pyramid(BLOCKS, "bottom_up_block{}", 5, plain=True),
            normalize=subtract_channel_means,
            min_size=MIN_SIZE,
            takes=("fpn",),
            refuses=("use_explicit_padding",),
            ignores=("use_depthwise",),
        ),
    )
    recipe.register_keras(
        f"ssd_resnet{_layers}_v1_fpn",
        fpn.object_paths,
        resnet.keras_order,
        base_scope=functools.partial(resnet.v1_arg_scope, tf2_line=True),
        backbone=_keras_backbone(_layers),
    )
    recipe.register_recipe(
        f"ssd_resnet{_layers}_v1_ppn",
        recipe.Recipe(
            scope=f"resnet_v1_{_layers}",
            base_scope=resnet.v1_arg_scope,
            backbone=_backbone(_layers, is_scaled=False),
            pyramid=recipe.pooling_pyramid("block3", POOLED_DEPTH),
            map_count=fpn.NUM_POOLED_MAPS,
            normalize=subtract_channel_means,
            min_size=MIN_SIZE,
            takes=(),
            refuses=("depth_multiplier",),
            ignores=("min_depth", "use_explicit_padding", "use_depthwise"),
        ),
    )

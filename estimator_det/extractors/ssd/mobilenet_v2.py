"""Single-shot extractors on MobileNet v2."""

from __future__ import annotations

from typing import Dict

from estimator_det.compat import tf
from estimator_det.extractors.base import to_plus_minus_one
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import inverted_residual as nets
from estimator_det.nets.necks.pyramids import FeatureMap

EXTRA_LAYERS = tuple(FeatureMap(depth=depth) for depth in (512, 256, 256, 128))

# The last layer is narrower below a feature pyramid that `use_depthwise` makes light.
LIGHT_FPN_LAYERS: nets.Layers = (*nets.V2_LAYERS[:-1], nets.Conv(256))


def _v2(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
    depth = nets.rounded_depth(options.depth_multiplier, options.min_depth)
    return nets.mobilenet_v2(inputs, depth, explicit_padding=options.use_explicit_padding)


def _v2_for_fpn(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
    depth = nets.rounded_depth(options.depth_multiplier, options.min_depth)
    layers = LIGHT_FPN_LAYERS if options.use_depthwise else nets.V2_LAYERS
    return nets.mobilenet_v2(
        inputs, depth, explicit_padding=options.use_explicit_padding, layers=layers
    )


recipe.register_recipe(
    "ssd_mobilenet_v2",
    recipe.Recipe(
        scope="MobilenetV2",
        base_scope=nets.arg_scope,
        backbone=_v2,
        pyramid=recipe.extended(
            FeatureMap("layer_15/expansion_output"), FeatureMap("layer_19"), *EXTRA_LAYERS
        ),
        normalize=to_plus_minus_one,
    ),
    also=("ssd_mobilenet_v2_keras",),
)

recipe.register_recipe(
    "ssd_mobilenet_v2_fpn",
    recipe.Recipe(
        scope="MobilenetV2",
        base_scope=nets.arg_scope,
        backbone=_v2_for_fpn,
        pyramid=recipe.fpn_pyramid(
            ("layer_4", "layer_7", "layer_14", "layer_19"), "bottom_up_Conv2d_{}", 20
        ),
        normalize=to_plus_minus_one,
        takes=("fpn",),
    ),
    also=("ssd_mobilenet_v2_fpn_keras",),
)

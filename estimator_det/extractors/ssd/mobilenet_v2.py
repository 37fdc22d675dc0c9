"""Single-shot extractors on MobileNet v2."""

from __future__ import annotations

from typing import Dict

from estimator_det.compat import tf
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import inverted_residual as nets
from estimator_det.nets.necks.pyramids import EXTRA_LAYERS, FeatureMap

# The last layer is narrower if `use_depthwise` makes the feature pyramid light.
LIGHT_FPN_LAYERS: nets.Layers = (*nets.V2_LAYERS[:-1], nets.Conv(256))


def _v2(light_layers: nets.Layers) -> recipe.Backbone:
    def build(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
        return nets.inverted_residual_net(
            inputs,
            light_layers if options.use_depthwise else nets.V2_LAYERS,
            nets.rounded_depth(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
        )

    return build


recipe.register_recipe(
    "ssd_mobilenet_v2",
    recipe.Recipe(
        scope="MobilenetV2",
        base_scope=nets.arg_scope,
        backbone=_v2(nets.V2_LAYERS),
        pyramid=recipe.extended_pyramid(
            FeatureMap("layer_15/expansion_output"), FeatureMap("layer_19"), *EXTRA_LAYERS
        ),
    ),
    aliases=("ssd_mobilenet_v2_keras",),
)

recipe.register_recipe(
    "ssd_mobilenet_v2_fpn",
    recipe.Recipe(
        scope="MobilenetV2",
        base_scope=nets.arg_scope,
        backbone=_v2(LIGHT_FPN_LAYERS),
        pyramid=recipe.fpn_pyramid(
            ("layer_4", "layer_7", "layer_14", "layer_19"), "bottom_up_Conv2d_{}", 20
        ),
        takes=("fpn",),
    ),
    aliases=("ssd_mobilenet_v2_fpn_keras",),
)

"""Single-shot extractors on MobileNet v3 and on its relative for the EdgeTPU."""

from __future__ import annotations

from typing import Dict

from estimator_det.compat import tf
from estimator_det.extractors.base import to_plus_minus_one
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import inverted_residual as nets
from estimator_det.nets.necks.pyramids import FeatureMap

EXTRA_LAYERS = tuple(FeatureMap(depth=depth) for depth in (512, 256, 256, 128))


def _v3(layers: nets.Layers) -> recipe.Backbone:
    def build(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
        return nets.inverted_residual_net(
            inputs,
            layers,
            nets.rounded_depth(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
            pad_whole_blocks=True,
        )

    return build


recipe.register_recipe(
    "ssd_mobilenet_v3_large",
    recipe.Recipe(
        scope="MobilenetV3",
        base_scope=nets.arg_scope,
        backbone=_v3(nets.V3_LARGE_LAYERS),
        pyramid=recipe.extended(
            FeatureMap("layer_14/expansion_output"), FeatureMap("layer_17"), *EXTRA_LAYERS
        ),
        normalize=to_plus_minus_one,
        takes=(),
    ),
)

recipe.register_recipe(
    "ssd_mobilenet_v3_small",
    recipe.Recipe(
        scope="MobilenetV3",
        base_scope=nets.arg_scope,
        backbone=_v3(nets.V3_SMALL_LAYERS),
        pyramid=recipe.extended(
            FeatureMap("layer_10/expansion_output"), FeatureMap("layer_13"), *EXTRA_LAYERS
        ),
        normalize=to_plus_minus_one,
        takes=(),
    ),
)

recipe.register_recipe(
    "ssd_mobilenet_edgetpu",
    recipe.Recipe(
        scope="MobilenetEdgeTPU",
        base_scope=nets.arg_scope,
        backbone=_v3(nets.EDGETPU_LAYERS),
        pyramid=recipe.extended(
            FeatureMap("layer_18/expansion_output"), FeatureMap("layer_23"), *EXTRA_LAYERS
        ),
        normalize=to_plus_minus_one,
        takes=(),
        # Its fused convolutions do not fit together when padded so; the reference fails, too.
        refuses=("use_explicit_padding",),
    ),
)

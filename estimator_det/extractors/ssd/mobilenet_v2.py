"""Single-stage extractors on MobileNets of inverted residuals: v2, v3, EdgeTPU."""

from __future__ import annotations

from typing import Dict

from estimator_det.compat import tf
from estimator_det.extractors import base
from estimator_det.nets import inverted_residual as nets
from estimator_det.nets.necks.pyramids import FeatureMap

EXTRA_LAYERS = tuple(FeatureMap(depth=depth) for depth in (512, 256, 256, 128))

# Where a light feature pyramid stands on MobileNet v2, its last layer is narrower.
LIGHT_FPN_LAYERS: nets.Layers = (*nets.V2_LAYERS[:-1], nets.Conv(256))


def _v2(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
    depth = nets.rounded_depth(options.depth_multiplier, options.min_depth)
    return nets.mobilenet_v2(inputs, depth, explicit_padding=options.use_explicit_padding)


def _v2_for_fpn(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
    depth = nets.rounded_depth(options.depth_multiplier, options.min_depth)
    layers = LIGHT_FPN_LAYERS if options.use_depthwise else nets.V2_LAYERS
    return nets.mobilenet_v2(
        inputs, depth, explicit_padding=options.use_explicit_padding, layers=layers
    )


def _v3(layers: nets.Layers) -> base.Backbone:
    def build(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
        return nets.inverted_residual_net(
            inputs,
            layers,
            nets.rounded_depth(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
            pad_whole_blocks=True,
        )

    return build


base.register_recipe(
    "ssd_mobilenet_v2",
    base.Recipe(
        scope="MobilenetV2",
        base_scope=nets.arg_scope,
        backbone=_v2,
        pyramid=base.extended(
            FeatureMap("layer_15/expansion_output"), FeatureMap("layer_19"), *EXTRA_LAYERS
        ),
        normalize=base.to_plus_minus_one,
    ),
    also=("ssd_mobilenet_v2_keras",),
)

base.register_recipe(
    "ssd_mobilenet_v2_fpn",
    base.Recipe(
        scope="MobilenetV2",
        base_scope=nets.arg_scope,
        backbone=_v2_for_fpn,
        pyramid=base.fpn_pyramid(
            ("layer_4", "layer_7", "layer_14", "layer_19"), "bottom_up_Conv2d_{}", 20
        ),
        normalize=base.to_plus_minus_one,
        takes=("fpn",),
    ),
    also=("ssd_mobilenet_v2_fpn_keras",),
)

base.register_recipe(
    "ssd_mobilenet_v3_large",
    base.Recipe(
        scope="MobilenetV3",
        base_scope=nets.arg_scope,
        backbone=_v3(nets.V3_LARGE_LAYERS),
        pyramid=base.extended(
            FeatureMap("layer_14/expansion_output"), FeatureMap("layer_17"), *EXTRA_LAYERS
        ),
        normalize=base.to_plus_minus_one,
        takes=(),
    ),
)

base.register_recipe(
    "ssd_mobilenet_v3_small",
    base.Recipe(
        scope="MobilenetV3",
        base_scope=nets.arg_scope,
        backbone=_v3(nets.V3_SMALL_LAYERS),
        pyramid=base.extended(
            FeatureMap("layer_10/expansion_output"), FeatureMap("layer_13"), *EXTRA_LAYERS
        ),
        normalize=base.to_plus_minus_one,
        takes=(),
    ),
)

base.register_recipe(
    "ssd_mobilenet_edgetpu",
    base.Recipe(
        scope="MobilenetEdgeTPU",
        base_scope=nets.arg_scope,
        backbone=_v3(nets.EDGETPU_LAYERS),
        pyramid=base.extended(
            FeatureMap("layer_18/expansion_output"), FeatureMap("layer_23"), *EXTRA_LAYERS
        ),
        normalize=base.to_plus_minus_one,
        takes=(),
        # Its fused convolutions do not fit together when padded so; the reference fails, too.
        refuses=("use_explicit_padding",),
    ),
)

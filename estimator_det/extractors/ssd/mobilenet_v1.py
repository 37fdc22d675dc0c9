"""Single-stage extractors on MobileNet v1."""

from __future__ import annotations

from typing import Dict

from estimator_det.compat import tf
from estimator_det.extractors import base
from estimator_det.nets import mobilenet
from estimator_det.nets.necks.pyramids import FeatureMap


def _v1(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
    return mobilenet.mobilenet_v1(
        inputs, options.depth, explicit_padding=options.use_explicit_padding
    )


def _v1_for_fpn(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
    """MobileNet v1; its last two layers are narrower where the pyramid is light, too."""
    layers = mobilenet.V1_LAYERS
    if options.use_depthwise:
        layers = (*layers[:-2], mobilenet.Layer(2, 512), mobilenet.Layer(1, 256))
    return mobilenet.mobilenet_v1(
        inputs, options.depth, explicit_padding=options.use_explicit_padding, layers=layers
    )


base.register_recipe(
    "ssd_mobilenet_v1",
    base.Recipe(
        scope="MobilenetV1",
        base_scope=mobilenet.v1_arg_scope,
        backbone=_v1,
        pyramid=base.extended(
            FeatureMap("Conv2d_11_pointwise"),
            FeatureMap("Conv2d_13_pointwise"),
            FeatureMap(depth=512),
            FeatureMap(depth=256),
            FeatureMap(depth=256),
            FeatureMap(depth=128),
        ),
        normalize=base.to_plus_minus_one,
    ),
    also=("ssd_mobilenet_v1_keras",),
)

base.register_recipe(
    "ssd_mobilenet_v1_fpn",
    base.Recipe(
        scope="MobilenetV1",
        base_scope=mobilenet.v1_arg_scope,
        backbone=_v1_for_fpn,
        pyramid=base.fpn_pyramid(
            (
                "Conv2d_3_pointwise",
                "Conv2d_5_pointwise",
                "Conv2d_11_pointwise",
                "Conv2d_13_pointwise",
            ),
            "bottom_up_Conv2d_{}",
            14,
        ),
        normalize=base.to_plus_minus_one,
        takes=("fpn",),
    ),
    also=("ssd_mobilenet_v1_fpn_keras",),
)

base.register_recipe(
    "ssd_mobilenet_v1_ppn",
    base.Recipe(
        scope="MobilenetV1",
        base_scope=mobilenet.v1_arg_scope,
        backbone=_v1,
        pyramid=base.pooling_pyramid("Conv2d_11_pointwise"),
        normalize=base.to_plus_minus_one,
        takes=(),
        ignores=("use_depthwise",),
    ),
)

"""Single-shot extractors on MobileNets: v1 and the one for embedded devices, v2, v3, EdgeTPU."""

from __future__ import annotations

import contextlib
from typing import Dict, Iterator, Optional

from estimator_det.compat import slim, tf
from estimator_det.extractors.maps import (
    Backbone,
    MapLayout,
    MapOptions,
    extended_pyramid,
    fpn_pyramid,
    pooling_pyramid,
)
from estimator_det.extractors.recipe import OVERRIDE, Recipe
from estimator_det.extractors.ssd.registry import EXTRACTORS, register_keras
from estimator_det.nets import inverted_residual, mobilenet
from estimator_det.nets.necks import fpn, pyramids
from estimator_det.nets.necks.pyramids import EXTRA_LAYERS, FeatureMap

EMBEDDED_SIZE = 256  # height and width in pixels


def _v1(inputs: tf.Tensor, options: MapOptions) -> Dict[str, tf.Tensor]:
    return mobilenet.mobilenet_v1(
        inputs, options.depth, explicit_padding=options.use_explicit_padding
    )


def _v1_for_fpn(inputs: tf.Tensor, options: MapOptions) -> Dict[str, tf.Tensor]:
    """Builds MobileNet v1, with narrower last layers if `use_depthwise` makes the pyramid light."""
    layers = mobilenet.V1_LAYERS
    if options.use_depthwise:
        layers = (*layers[:-2], mobilenet.MobileNetLayer(2, 512), mobilenet.MobileNetLayer(1, 256))
    return mobilenet.mobilenet_v1(
        inputs, options.depth, explicit_padding=options.use_explicit_padding, layers=layers
    )


EXTRACTORS.register("ssd_mobilenet_v1")(
    Recipe(
        scope="MobilenetV1",
        arg_scope=mobilenet.v1_arg_scope,
        layout=MapLayout(
            _v1,
            extended_pyramid(
                FeatureMap("Conv2d_11_pointwise"), FeatureMap("Conv2d_13_pointwise"), *EXTRA_LAYERS
            ),
        ),
        takes=("num_layers",),
    ),
)
register_keras("ssd_mobilenet_v1", pyramids.object_paths)

EXTRACTORS.register("ssd_mobilenet_v1_fpn")(
    Recipe(
        scope="MobilenetV1",
        arg_scope=mobilenet.v1_arg_scope,
        layout=MapLayout(
            _v1_for_fpn,
            fpn_pyramid(
                [f"Conv2d_{n}_pointwise" for n in (3, 5, 11, 13)], "bottom_up_Conv2d_{}", 14
            ),
        ),
        takes=("fpn",),
    ),
)
register_keras("ssd_mobilenet_v1_fpn", fpn.object_paths)

EXTRACTORS.register("ssd_mobilenet_v1_ppn")(
    Recipe(
        scope="MobilenetV1",
        arg_scope=mobilenet.v1_arg_scope,
        layout=MapLayout(_v1, pooling_pyramid("Conv2d_11_pointwise"), fpn.NUM_POOLED_MAPS),
        ignores=("use_depthwise",),
        has_extra_layers=False,
    ),
)


@contextlib.contextmanager
def _embedded_scope() -> Iterator[None]:
    """Argument scope of MobileNet v1, without a regularizer on depthwise kernels."""
    with (
        mobilenet.v1_arg_scope(),
        slim.arg_scope([slim.separable_conv2d], weights_regularizer=None),
    ):
        yield


EXTRACTORS.register("embedded_ssd_mobilenet_v1")(
    Recipe(
        scope="MobilenetV1",
        arg_scope=_embedded_scope,
        layout=MapLayout(
            _v1,
            extended_pyramid(
                FeatureMap("Conv2d_11_pointwise"),
                FeatureMap("Conv2d_13_pointwise"),
                FeatureMap(depth=512),
                FeatureMap(depth=256),
                FeatureMap(depth=256, kernel_size=2),  # the size of the 2x2 map before it
            ),
        ),
        min_size=EMBEDDED_SIZE,
        is_size_exact=True,
        refuses=("pad_to_multiple",),
        ignores=(OVERRIDE,),
    ),
)


def _inverted_residuals(
    layers: inverted_residual.Layers,
    light_layers: Optional[inverted_residual.Layers] = None,  # layers with `use_depthwise`
    *,
    pad_whole_blocks: bool = False,
) -> Backbone:
    def build(inputs: tf.Tensor, options: MapOptions) -> Dict[str, tf.Tensor]:
        return inverted_residual.inverted_residual_net(
            inputs,
            light_layers if light_layers and options.use_depthwise else layers,
            inverted_residual.depth_function(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
            pad_whole_blocks=pad_whole_blocks,
            tf2_line=options.tf2_line,
        )

    return build


V2_LAYERS = inverted_residual.V2_LAYERS
# The last layer is narrower if `use_depthwise` makes the feature pyramid light.
LIGHT_FPN_LAYERS = (*V2_LAYERS[:-1], inverted_residual.PlainConv(256))

EXTRACTORS.register("ssd_mobilenet_v2")(
    Recipe(
        scope="MobilenetV2",
        arg_scope=inverted_residual.arg_scope,
        layout=MapLayout(
            _inverted_residuals(V2_LAYERS),
            extended_pyramid(
                FeatureMap("layer_15/expansion_output"), FeatureMap("layer_19"), *EXTRA_LAYERS
            ),
        ),
        takes=("num_layers",),
    ),
)
# Keras uses the settings of MobileNet v1, with which depthwise kernels have a penalty, too.
register_keras("ssd_mobilenet_v2", pyramids.object_paths, arg_scope=mobilenet.v1_arg_scope)
EXTRACTORS.register("ssd_mobilenet_v2_fpn")(
    Recipe(
        scope="MobilenetV2",
        arg_scope=inverted_residual.arg_scope,
        layout=MapLayout(
            _inverted_residuals(V2_LAYERS, LIGHT_FPN_LAYERS),
            fpn_pyramid(("layer_4", "layer_7", "layer_14", "layer_19"), "bottom_up_Conv2d_{}", 20),
        ),
        takes=("fpn",),
    ),
)
register_keras(
    "ssd_mobilenet_v2_fpn",
    fpn.object_paths,
    arg_scope=mobilenet.v1_arg_scope,
    backbone=_inverted_residuals(V2_LAYERS),  # The last layer is wide for a light pyramid, too.
)

for _type, _scope, _layers, _end_points in (
    (
        "ssd_mobilenet_v3_large",
        "MobilenetV3",
        inverted_residual.V3_LARGE_LAYERS,
        ("layer_14/expansion_output", "layer_17"),
    ),
    (
        "ssd_mobilenet_v3_small",
        "MobilenetV3",
        inverted_residual.V3_SMALL_LAYERS,
        ("layer_10/expansion_output", "layer_13"),
    ),
    (
        "ssd_mobilenet_edgetpu",
        "MobilenetEdgeTPU",
        inverted_residual.EDGETPU_LAYERS,
        ("layer_18/expansion_output", "layer_23"),
    ),
):
    EXTRACTORS.register(_type)(
        Recipe(
            scope=_scope,
            arg_scope=inverted_residual.arg_scope,
            layout=MapLayout(
                _inverted_residuals(_layers, pad_whole_blocks=True),
                extended_pyramid(*map(FeatureMap, _end_points), *EXTRA_LAYERS),
            ),
            # Maps of fused convolutions do not fit with this padding; the Object Detection API
            # fails, too.
            refuses=("use_explicit_padding",) if _type == "ssd_mobilenet_edgetpu" else (),
        ),
    )

"""Single-shot extractors on MobileNet v3 and on its relative for the EdgeTPU."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from estimator_det.compat import tf
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import inverted_residual as nets
from estimator_det.nets.necks.pyramids import EXTRA_LAYERS, FeatureMap


def _register(
    name: str, scope: str, layers: nets.Layers, end_points: Sequence[str], **limits: Any
) -> None:
    def backbone(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
        return nets.inverted_residual_net(
            inputs,
            layers,
            nets.rounded_depth(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
            pad_whole_blocks=True,
        )

    network = recipe.Recipe(
        scope=scope,
        base_scope=nets.arg_scope,
        backbone=backbone,
        pyramid=recipe.extended_pyramid(*map(FeatureMap, end_points), *EXTRA_LAYERS),
        takes=(),
        **limits,
    )
    recipe.register_recipe(name, network)


_register(
    "ssd_mobilenet_v3_large",
    "MobilenetV3",
    nets.V3_LARGE_LAYERS,
    ("layer_14/expansion_output", "layer_17"),
)
_register(
    "ssd_mobilenet_v3_small",
    "MobilenetV3",
    nets.V3_SMALL_LAYERS,
    ("layer_10/expansion_output", "layer_13"),
)
_register(
    "ssd_mobilenet_edgetpu",
    "MobilenetEdgeTPU",
    nets.EDGETPU_LAYERS,
    ("layer_18/expansion_output", "layer_23"),
    # Maps of fused convolutions do not fit with this padding; the reference fails, too.
    refuses=("use_explicit_padding",),
)

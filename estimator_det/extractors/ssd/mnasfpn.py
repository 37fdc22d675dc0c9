"""Single-shot extractor on MobileNet v2 and MnasFPN."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.extractors.base import OVERRIDE, ExtractorEntry, FpnLevels
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import inverted_residual
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.necks import mnasfpn

LEVELS = FpnLevels(mnasfpn.LEVELS[0], mnasfpn.LEVELS[-1], depth=48)


def _backbone(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
    with (
        tf1.variable_scope("MobilenetV2"),
        inverted_residual.arg_scope(),
        mnasfpn.arg_scope(mnasfpn.BACKBONE_WEIGHT_DECAY),
    ):
        return inverted_residual.inverted_residual_net(
            inputs,
            inverted_residual.V2_LAYERS[:-1],
            inverted_residual.rounded_depth(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
        )


def _pyramid(
    end_points: Dict[str, tf.Tensor], options: recipe.ExtractorOptions
) -> Tuple[tf.Tensor, ...]:
    settings = mnasfpn.Options(
        depth=options.fpn.depth,
        scale_depth=inverted_residual.rounded_depth(options.depth_multiplier, options.min_depth),
        explicit_padding=options.use_explicit_padding,
    )
    with tf1.variable_scope("MnasFPN"):
        return mnasfpn.mnasfpn(
            [end_points[name] for name in ("layer_7", "layer_14", "layer_18")], settings
        )


MNASFPN = recipe.Recipe(
    scope="",
    base_scope=no_scope,
    backbone=_backbone,
    pyramid=_pyramid,
    takes=("fpn",),
    ignores=("use_depthwise", "conv_hyperparams", OVERRIDE),
    quantizes=False,
)


def _build(network: recipe.Recipe, config: Any, is_training: bool) -> recipe.FixedExtractor:
    options = recipe.make_options(network, config, is_training)
    if not config.HasField("fpn"):
        options = dataclasses.replace(options, fpn=LEVELS)
    elif options.fpn[:2] != LEVELS[:2]:
        raise ConfigError(
            "feature_extractor.fpn",
            f"MnasFPN has min_level {LEVELS.min_level} and max_level "
            f"{LEVELS.max_level}; given: {options.fpn.min_level} and "
            f"{options.fpn.max_level}",
        )
    return recipe.FixedExtractor(network, options)


recipe.EXTRACTORS.register("ssd_mobilenet_v2_mnasfpn")(ExtractorEntry(MNASFPN, _build))

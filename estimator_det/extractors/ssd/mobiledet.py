"""Single-stage extractors on networks found by search: MobileDets, MnasFPN, SpaghettiNets."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Optional, Tuple, Type

from estimator_det.compat import tf, tf1
from estimator_det.extractors import base
from estimator_det.nets import inverted_residual, searched, spaghettinet
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.necks import mnasfpn
from estimator_det.nets.necks.pyramids import FeatureMap
from estimator_det.nets.padding import pad_to_multiple

OVERRIDE = "override_base_feature_extractor_hyperparams"


class FixedExtractor(base.RecipeExtractor):
    """One whose every layer is as published: `conv_hyperparams` has no effect on it.

    Its backbone and its pyramid open their variable scopes themselves.
    """

    def extract(self, inputs: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        """Normalized [B, H, W, C] -> feature maps [B, h_i, w_i, c_i], large to small.

        Raises:
            ValueError: if the images are too small for the network.
        """
        recipe, options = self.recipe, self.options
        images = base.large_enough(inputs, recipe.min_size)
        images = pad_to_multiple(images, options.pad_to_multiple)
        return recipe.pyramid(recipe.backbone(images, options), options)


def _register(
    name: str,
    make_recipe: Callable[[bool], base.Recipe],
    extractor: Type[base.RecipeExtractor],
    default_fpn: Optional[base.FpnLevels] = None,
) -> None:
    """Makes a type known whose backbone never takes `conv_hyperparams`, as in the reference."""

    @base.EXTRACTORS.register(name)
    def make(config: Any, is_training: bool) -> base.RecipeExtractor:
        recipe = make_recipe(is_training)
        options = base.options_of(recipe, config, is_training)
        if default_fpn is not None and not config.HasField("fpn"):
            options = dataclasses.replace(options, fpn=default_fpn)
        return extractor(recipe, options)


def _mobiledet(scope: str, network: searched.Network) -> Callable[[bool], base.Recipe]:
    def backbone(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
        return searched.mobiledet(inputs, network, options.depth_multiplier)

    recipe = base.Recipe(
        scope=scope,
        base_scope=no_scope,
        backbone=backbone,
        pyramid=base.extended(
            FeatureMap("C4"),
            FeatureMap("C5"),
            FeatureMap(depth=512),
            FeatureMap(depth=256),
            FeatureMap(depth=256),
            FeatureMap(depth=128),
        ),
        normalize=base.to_plus_minus_one,
        takes=(),
        refuses=("use_explicit_padding",),
        ignores=(OVERRIDE,),
    )
    return lambda is_training: recipe


def _mnasfpn_backbone(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
    levels = options.fpn
    if (levels.min_level, levels.max_level) != (mnasfpn.LEVELS[0], mnasfpn.LEVELS[-1]):
        raise ValueError(
            f"feature_extractor.fpn: MnasFPN has min_level {mnasfpn.LEVELS[0]} and max_level "
            f"{mnasfpn.LEVELS[-1]}; got {levels.min_level} and {levels.max_level}"
        )
    with (
        tf1.variable_scope("MobilenetV2"),
        inverted_residual.arg_scope(),
        mnasfpn.arg_scope(mnasfpn.BACKBONE_WEIGHT_DECAY),
    ):
        return inverted_residual.mobilenet_v2(
            inputs,
            inverted_residual.rounded_depth(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
            layers=inverted_residual.V2_LAYERS[:-1],
        )


def _mnasfpn_pyramid(
    end_points: Dict[str, tf.Tensor], options: base.ExtractorOptions
) -> Tuple[tf.Tensor, ...]:
    settings = mnasfpn.Options(
        depth=options.fpn.depth,
        scaled=inverted_residual.rounded_depth(options.depth_multiplier, options.min_depth),
        explicit_padding=options.use_explicit_padding,
    )
    with tf1.variable_scope("MnasFPN"):
        return mnasfpn.mnasfpn(
            [end_points[name] for name in ("layer_7", "layer_14", "layer_18")], settings
        )


MNASFPN = base.Recipe(
    scope="",
    base_scope=no_scope,
    backbone=_mnasfpn_backbone,
    pyramid=_mnasfpn_pyramid,
    normalize=base.to_plus_minus_one,
    takes=("fpn",),
    ignores=("use_depthwise", OVERRIDE),
)
MNASFPN_LEVELS = base.FpnLevels(mnasfpn.LEVELS[0], mnasfpn.LEVELS[-1], depth=48)


def _spaghettinet(is_training: bool) -> base.Recipe:
    def backbone(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
        name = options.architecture or spaghettinet.DEFAULT_NETWORK
        with tf1.variable_scope(name):
            return spaghettinet.spaghettinet(
                inputs,
                name,
                is_training=is_training,
                explicit_padding=options.use_explicit_padding,
            )

    def pyramid(
        nodes: Dict[str, tf.Tensor], options: base.ExtractorOptions
    ) -> Tuple[tf.Tensor, ...]:
        del options  # nothing of it applies
        return tuple(nodes[name] for name in spaghettinet.OUTPUTS)

    return base.Recipe(
        scope="",
        base_scope=no_scope,
        backbone=backbone,
        pyramid=pyramid,
        normalize=base.to_plus_minus_one,
        takes=("spaghettinet_arch_name",),
        ignores=("depth_multiplier", "min_depth", "pad_to_multiple", "use_depthwise", OVERRIDE),
    )


for _type, _scope, _network in (
    ("ssd_mobiledet_cpu", "MobileDetCPU", searched.CPU),
    ("ssd_mobiledet_dsp", "MobileDetDSP", searched.DSP),
    ("ssd_mobiledet_edgetpu", "MobileDetEdgeTPU", searched.EDGETPU),
    ("ssd_mobiledet_gpu", "MobileDetGPU", searched.GPU),
):
    _register(_type, _mobiledet(_scope, _network), base.RecipeExtractor)
_register("ssd_mobilenet_v2_mnasfpn", lambda is_training: MNASFPN, FixedExtractor, MNASFPN_LEVELS)
_register("ssd_spaghettinet", _spaghettinet, FixedExtractor)

"""Single-shot extractors on MobileDets, one network for each kind of accelerator."""

from __future__ import annotations

from typing import Dict

from estimator_det.compat import tf
from estimator_det.extractors.base import OVERRIDE
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import searched
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.necks.pyramids import EXTRA_LAYERS, FeatureMap


def mobiledet_recipe(scope: str, network: searched.Network) -> recipe.Recipe:
    """Builds the recipe of a MobileDet; the backbone ignores `conv_hyperparams`, as published."""

    def backbone(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
        return searched.mobiledet(inputs, network, options.depth_multiplier)

    return recipe.Recipe(
        scope=scope,
        base_scope=no_scope,
        backbone=backbone,
        pyramid=recipe.extended_pyramid(FeatureMap("C4"), FeatureMap("C5"), *EXTRA_LAYERS),
        takes=(),
        refuses=("use_explicit_padding",),
        ignores=(OVERRIDE,),
    )


for _type, _scope, _network in (
    ("ssd_mobiledet_cpu", "MobileDetCPU", searched.CPU),
    ("ssd_mobiledet_dsp", "MobileDetDSP", searched.DSP),
    ("ssd_mobiledet_edgetpu", "MobileDetEdgeTPU", searched.EDGETPU),
    ("ssd_mobiledet_gpu", "MobileDetGPU", searched.GPU),
):
    recipe.register_recipe(_type, mobiledet_recipe(_scope, _network))

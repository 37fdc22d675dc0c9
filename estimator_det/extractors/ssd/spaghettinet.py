"""Single-shot extractor on SpaghettiNets."""

from __future__ import annotations

from typing import Dict, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.extractors.base import OVERRIDE
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import spaghettinet
from estimator_det.nets.hyperparams import no_scope


def _backbone(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
    name = options.architecture or spaghettinet.DEFAULT_NETWORK
    with tf1.variable_scope(name):
        return spaghettinet.spaghettinet(
            inputs,
            name,
            is_training=options.is_training,
            explicit_padding=options.use_explicit_padding,
        )


def _pyramid(
    nodes: Dict[str, tf.Tensor], options: recipe.ExtractorOptions
) -> Tuple[tf.Tensor, ...]:
    del options  # the networks are fixed
    return tuple(nodes[name] for name in spaghettinet.OUTPUTS)


recipe.register_recipe(
    "ssd_spaghettinet",
    recipe.Recipe(
        scope="",
        base_scope=no_scope,
        backbone=_backbone,
        pyramid=_pyramid,
        takes=("spaghettinet_arch_name",),
        ignores=(
            "depth_multiplier",
            "min_depth",
            "pad_to_multiple",
            "use_depthwise",
            "conv_hyperparams",
            OVERRIDE,
        ),
        quantizes=False,  # the network itself simulates quantization
    ),
    extractor=recipe.FixedExtractor,
)

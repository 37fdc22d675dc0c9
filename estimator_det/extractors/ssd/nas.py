"""Single-shot extractors on searched networks: MobileDets, PNASNet, MnasFPN, SpaghettiNets."""

from __future__ import annotations

from typing import Dict, Iterator, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.rules import rules
from estimator_det.config.text import nearest
from estimator_det.errors import Problem, error
from estimator_det.extractors.maps import FpnLevels, MapLayout, MapOptions, extended_pyramid
from estimator_det.extractors.recipe import OVERRIDE, Recipe
from estimator_det.extractors.ssd.registry import EXTRACTORS
from estimator_det.nets import inverted_residual, mobiledet, nasnet, spaghettinet
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.necks import mnasfpn
from estimator_det.nets.necks.pyramids import EXTRA_LAYERS, FeatureMap
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.protos import ssd_pb2


def mobiledet_recipe(scope: str, network: mobiledet.MobileDet) -> Recipe[MapLayout]:
    """Builds the recipe of a MobileDet; the backbone ignores `conv_hyperparams`, as published."""
    return Recipe(
        scope=scope,
        arg_scope=no_scope,
        layout=MapLayout(
            lambda inputs, options: mobiledet.mobiledet(inputs, network, options.depth_multiplier),
            extended_pyramid(FeatureMap("C4"), FeatureMap("C5"), *EXTRA_LAYERS),
        ),
        refuses=("use_explicit_padding",),
        ignores=(OVERRIDE,),
    )


for _type, _scope, _network in (
    ("ssd_mobiledet_cpu", "MobileDetCPU", mobiledet.CPU),
    ("ssd_mobiledet_dsp", "MobileDetDSP", mobiledet.DSP),
    ("ssd_mobiledet_edgetpu", "MobileDetEdgeTPU", mobiledet.EDGETPU),
    ("ssd_mobiledet_gpu", "MobileDetGPU", mobiledet.GPU),
):
    EXTRACTORS.register(_type)(mobiledet_recipe(_scope, _network))


EXTRA_LAYERS_SCOPE = "SSD_feature_maps"


def _pnasnet(inputs: tf.Tensor, options: MapOptions) -> Dict[str, tf.Tensor]:
    """Builds the published network; `depth_multiplier` and `min_depth` affect extra layers only."""
    # Innermost, because batch norm learns even if an override freezes it.
    with slim.arg_scope(list(BATCH_NORMS), is_training=options.is_training):
        return nasnet.searched_network(inputs, is_training=options.is_training)


EXTRACTORS.register("ssd_pnasnet")(
    Recipe(
        scope="",
        arg_scope=nasnet.arg_scope,
        layout=MapLayout(
            _pnasnet,
            extended_pyramid(
                FeatureMap("Cell_7"), FeatureMap("Cell_11"), *EXTRA_LAYERS, scope=EXTRA_LAYERS_SCOPE
            ),
        ),
        min_size=1,
        takes=("num_layers",),
        # The published classifier is evaluated with moving averages of its variables.
        classifier_suffix="/ExponentialMovingAverage",
        quantizes=False,
    ),
)


def _mobilenet_v2(inputs: tf.Tensor, options: MapOptions) -> Dict[str, tf.Tensor]:
    with (
        tf1.variable_scope("MobilenetV2"),
        inverted_residual.arg_scope(),
        mnasfpn.arg_scope(mnasfpn.BACKBONE_WEIGHT_DECAY),
    ):
        return inverted_residual.inverted_residual_net(
            inputs,
            inverted_residual.V2_LAYERS[:-1],
            inverted_residual.depth_function(options.depth_multiplier, options.min_depth),
            explicit_padding=options.use_explicit_padding,
        )


def _mnasfpn(end_points: Dict[str, tf.Tensor], options: MapOptions) -> Tuple[tf.Tensor, ...]:
    settings = mnasfpn.Options(
        depth=options.fpn.depth,
        scale_depth=inverted_residual.depth_function(options.depth_multiplier, options.min_depth),
        explicit_padding=options.use_explicit_padding,
    )
    with tf1.variable_scope("MnasFPN"):
        return mnasfpn.mnasfpn(
            [end_points[name] for name in ("layer_7", "layer_14", "layer_18")], settings
        )


EXTRACTORS.register("ssd_mobilenet_v2_mnasfpn")(
    Recipe(
        scope="",
        arg_scope=no_scope,
        layout=MapLayout(
            _mobilenet_v2,
            _mnasfpn,
            fixed_levels=FpnLevels(mnasfpn.LEVELS[0], mnasfpn.LEVELS[-1], depth=48),
        ),
        takes=("fpn",),
        ignores=("use_depthwise", "conv_hyperparams", OVERRIDE),
        quantizes=False,
    ),
)


@rules(ssd_pb2.SsdFeatureExtractor)
def _check_architecture(config: ssd_pb2.SsdFeatureExtractor, at: str) -> Iterator[Problem]:
    name, known = config.spaghettinet_arch_name, list(spaghettinet.NETWORKS)
    if config.type == "ssd_spaghettinet" and name and name not in known:
        message = f"{name!r} is not known{nearest(name, known)}"
        yield error(f"{at}.spaghettinet_arch_name", message, f"use one of {known}")


def _spaghettinet(inputs: tf.Tensor, options: MapOptions) -> Dict[str, tf.Tensor]:
    name = options.architecture or spaghettinet.DEFAULT_NETWORK
    with tf1.variable_scope(name):
        return spaghettinet.spaghettinet(
            inputs,
            name,
            is_training=options.is_training,
            explicit_padding=options.use_explicit_padding,
        )


EXTRACTORS.register("ssd_spaghettinet")(
    Recipe(
        scope="",
        arg_scope=no_scope,
        layout=MapLayout(
            _spaghettinet,
            lambda nodes, _: tuple(nodes[name] for name in spaghettinet.OUTPUTS),
            len(spaghettinet.OUTPUTS),
        ),
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
)

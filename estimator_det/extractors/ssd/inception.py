"""Single-stage extractors on Inception and PNASNet, and the one for embedded devices."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.extractors import base
from estimator_det.nets import inception, mobilenet, nasnet
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.necks import pyramids
from estimator_det.nets.necks.pyramids import FeatureMap
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.nets.padding import pad_to_multiple

EMBEDDED_SIZE = 256  # height and width in pixels
OVERRIDE = "override_base_feature_extractor_hyperparams"


def _register_inception(
    name: str, scope: str, blocks: Sequence[inception.Block], *maps: FeatureMap
) -> None:
    def backbone(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
        return inception.inception(inputs, options.depth, blocks)

    recipe = base.Recipe(
        scope=scope,
        base_scope=no_scope,
        backbone=backbone,
        pyramid=base.extended(*maps),
        normalize=base.to_plus_minus_one,
    )

    @base.EXTRACTORS.register(name)
    def make(config: Any, is_training: bool) -> base.RecipeExtractor:
        if not config.override_base_feature_extractor_hyperparams:
            raise ValueError(
                f"feature_extractor.{OVERRIDE} must be true for {name}: its network has no "
                "settings of its own, every layer takes those of conv_hyperparams"
            )
        return base.RecipeExtractor(recipe, base.options_of(recipe, config, is_training))


_register_inception(
    "ssd_inception_v2",
    "InceptionV2",
    inception.V2_BLOCKS,
    FeatureMap("Mixed_4c"),
    FeatureMap("Mixed_5c"),
    FeatureMap(depth=512),
    FeatureMap(depth=256),
    FeatureMap(depth=256),
    FeatureMap(depth=128),
)
_register_inception(
    "ssd_inception_v3",
    "InceptionV3",
    inception.V3_BLOCKS,
    FeatureMap("Mixed_5d"),
    FeatureMap("Mixed_6e"),
    FeatureMap("Mixed_7c"),
    FeatureMap(depth=512),
    FeatureMap(depth=256),
    FeatureMap(depth=128),
)


@contextlib.contextmanager
def _embedded_scope() -> Iterator[None]:
    """The settings of MobileNet v1, but depthwise kernels are not regularized."""
    with (
        mobilenet.v1_arg_scope(),
        slim.arg_scope([slim.separable_conv2d], weights_regularizer=None),
    ):
        yield


def _embedded(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
    wanted = [EMBEDDED_SIZE, EMBEDDED_SIZE]
    message = f"image size must be {EMBEDDED_SIZE} x {EMBEDDED_SIZE} pixels"
    sides = inputs.shape[1:3].as_list()
    if None in sides:
        found = tf.shape(inputs)
        right = tf.reduce_all(tf.equal(found[1:3], wanted))
        with tf1.control_dependencies([tf1.Assert(right, [message, found])]):
            inputs = tf.ensure_shape(tf.identity(inputs), [None, *wanted, None])
    elif sides != wanted:
        raise ValueError(f"{message} for embedded_ssd_mobilenet_v1; got {sides}")
    return mobilenet.mobilenet_v1(
        inputs, options.depth, explicit_padding=options.use_explicit_padding
    )


EMBEDDED_MAPS = (
    FeatureMap("Conv2d_11_pointwise"),
    FeatureMap("Conv2d_13_pointwise"),
    FeatureMap(depth=512),
    FeatureMap(depth=256),
    FeatureMap(depth=256, kernel_size=2),  # no larger than the 2x2 map before it
)


def _embedded_maps(
    end_points: Dict[str, tf.Tensor], options: base.ExtractorOptions
) -> Tuple[tf.Tensor, ...]:
    return pyramids.extended_maps(
        end_points,
        EMBEDDED_MAPS,
        options.depth,
        explicit_padding=options.use_explicit_padding,
        use_depthwise=options.use_depthwise,
    )


EMBEDDED = base.Recipe(
    scope="MobilenetV1",
    base_scope=_embedded_scope,
    backbone=_embedded,
    pyramid=_embedded_maps,
    normalize=base.to_plus_minus_one,
    takes=(),
    refuses=("pad_to_multiple",),
    ignores=(OVERRIDE,),
)


@base.EXTRACTORS.register("embedded_ssd_mobilenet_v1")
def _make_embedded(config: Any, is_training: bool) -> base.RecipeExtractor:
    return base.RecipeExtractor(EMBEDDED, base.options_of(EMBEDDED, config, is_training))


def _pnasnet(is_training: bool) -> base.Recipe:
    def backbone(inputs: tf.Tensor, options: base.ExtractorOptions) -> Dict[str, tf.Tensor]:
        del options  # the published network alone exists
        # Innermost: it learns even where an override's batch norm must not.
        with slim.arg_scope(list(BATCH_NORMS), is_training=is_training):
            return nasnet.searched_network(inputs, is_training=is_training)

    return base.Recipe(
        scope="SSD_feature_maps",
        base_scope=nasnet.arg_scope,
        backbone=backbone,
        pyramid=base.extended(
            FeatureMap("Cell_7"),
            FeatureMap("Cell_11"),
            FeatureMap(depth=512),
            FeatureMap(depth=256),
            FeatureMap(depth=256),
            FeatureMap(depth=128),
        ),
        normalize=base.to_plus_minus_one,
        # Of the published classifier, the moving averages are what it is evaluated with.
        classifier_suffix="/ExponentialMovingAverage",
    )


class PnasnetExtractor(base.RecipeExtractor):
    """PNASNet-5 large; `depth_multiplier` and `min_depth` are of the extra layers alone.

    The recipe's variable scope is that of the extra layers; the network has none.
    """

    def extract(self, inputs: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        """Normalized [B, H, W, C] -> feature maps [B, h_i, w_i, c_i], large to small."""
        recipe, options = self.recipe, self.options
        override = options.conv_scope if options.override_base else no_scope
        with recipe.base_scope(), override():
            end_points = recipe.backbone(pad_to_multiple(inputs, options.pad_to_multiple), options)
        with tf1.variable_scope(recipe.scope), options.conv_scope():
            return recipe.pyramid(end_points, options)


@base.EXTRACTORS.register("ssd_pnasnet")
def _make_pnasnet(config: Any, is_training: bool) -> PnasnetExtractor:
    recipe = _pnasnet(is_training)
    return PnasnetExtractor(recipe, base.options_of(recipe, config, is_training))

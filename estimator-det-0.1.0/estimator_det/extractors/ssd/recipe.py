"""What a feature extractor of a single-shot detector is, and how a recipe becomes one.

A recipe names the network, the activations, the extra layers and the pixel scale. One entry in a
module of this package adds a type string of `feature_extractor { type: … }`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Protocol, Sequence, Tuple, Type

from estimator_det.compat import tf, tf1
from estimator_det.config.fields import check_supported, is_news
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError
from estimator_det.extractors.base import (
    FINEST_FPN_LEVEL,
    FpnLevels,
    large_enough,
    make_fpn_levels,
    to_plus_minus_one,
)
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope, no_scope
from estimator_det.nets.mobilenet import scaled_depth
from estimator_det.nets.necks import fpn, pyramids
from estimator_det.nets.padding import pad_to_multiple

EXTRACTORS: Registry[Callable[..., Extractor]] = Registry(
    "SSD feature extractor", reserved=[f"ssd_efficientnet-b{i}_bifpn_keras" for i in range(8)]
)

OVERRIDE = "override_base_feature_extractor_hyperparams"

# Fields of the message that only some types take; they must not be set for the others.
SPECIAL_FIELDS = (
    "num_layers",
    "fpn",
    "spaghettinet_arch_name",
)


class Extractor(Protocol):
    """Images to feature maps; holds no state between calls."""

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        """float32 [B, h, w, 3], pixels 0..255 -> the pixel scale of the network, same shape."""

    def classifier_name(self, name: str) -> str:
        """Name of a variable in a classifier's checkpoint, from its name inside the extractor."""

    def extract(self, inputs: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        """Normalized [B, H, W, C] -> feature maps [B, h_i, w_i, c_i], large to small.

        Raises:
            ConfigError: if the images are too small for the network.
        """


DEFAULT_LEVELS = FpnLevels()


@dataclass(frozen=True)
class ExtractorOptions:
    """Settings of a `SsdFeatureExtractor` message.

    Attributes:
        conv_scope: Argument scope of the extra layers.
        backbone_scope: Argument scope of the backbone, inside of the recipe's; it is `conv_scope`
            where the message overrides the backbone's settings.
        is_training: Whether batch norm learns.
        depth_multiplier: Scales the channels of every layer.
        min_depth: Lower bound of a layer's channels.
        pad_to_multiple: Inputs are padded with zeros to multiples of this.
        use_explicit_padding: Pad by kernel size alone, not by "SAME".
        use_depthwise: Split the extra layers' strided convolutions.
        num_layers: How many feature maps to make; None for all.
        fpn: Levels of a feature pyramid.
        architecture: Name of a network among those of one type (`spaghettinet_arch_name`).
    """

    conv_scope: ArgScope
    backbone_scope: ArgScope = no_scope
    is_training: bool = False
    depth_multiplier: float = 1.0
    min_depth: int = 16
    pad_to_multiple: int = 1
    use_explicit_padding: bool = False
    use_depthwise: bool = False
    num_layers: Optional[int] = None
    fpn: FpnLevels = DEFAULT_LEVELS
    architecture: str = ""

    def __post_init__(self) -> None:
        for field, value, least in (
            ("min_depth", self.min_depth, 0),
            ("pad_to_multiple", self.pad_to_multiple, 1),
            ("num_layers", self.num_layers, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"feature_extractor.{field} must be {least} or more; got {value}")
        scaled_depth(self.depth_multiplier, self.min_depth)

    @property
    def depth(self) -> Callable[[float], int]:
        """Function from a table's channels to the real ones."""
        return scaled_depth(self.depth_multiplier, self.min_depth)


Backbone = Callable[[tf.Tensor, ExtractorOptions], Dict[str, tf.Tensor]]
Pyramid = Callable[[Dict[str, tf.Tensor], ExtractorOptions], Tuple[tf.Tensor, ...]]


@dataclass(frozen=True)
class Recipe:
    """How to make an extractor.

    Attributes:
        scope: Variable scope of backbone and extra layers; checkpoints depend on it. Empty where
            the two open scopes of their own.
        base_scope: Argument scope the backbone was published with.
        backbone: (inputs, options) -> activations by name.
        pyramid: (activations, options) -> feature maps.
        normalize: Pixel scaling.
        min_size: Least height and width of an image, in pixels.
        takes: The `SPECIAL_FIELDS` that this type knows; the others must not be set.
        refuses: Other fields that must keep their defaults, as in the reference.
        ignores: Other fields without effect, as in the reference; setting them is no error.
        has_extra_layers: Whether there are layers after the backbone. Without them
            `conv_hyperparams` has no effect, unless it overrides the backbone's settings.
        classifier_suffix: Follows a variable's name in checkpoints of the classifier.
    """

    scope: str
    base_scope: ArgScope
    backbone: Backbone
    pyramid: Pyramid
    normalize: Callable[[tf.Tensor], tf.Tensor] = to_plus_minus_one
    min_size: int = 33
    takes: Tuple[str, ...] = ("num_layers",)
    refuses: Tuple[str, ...] = ()
    ignores: Tuple[str, ...] = ()
    has_extra_layers: bool = True
    classifier_suffix: str = ""


def extended(*maps: pyramids.FeatureMap) -> Pyramid:
    """A pyramid of backbone activations and extra layers, cut to `num_layers` rows."""

    def build(end_points: Dict[str, tf.Tensor], options: ExtractorOptions) -> Tuple[tf.Tensor, ...]:
        if options.num_layers is not None and options.num_layers > len(maps):
            raise ConfigError(
                f"feature_extractor.num_layers: {options.num_layers} is more than the "
                f"{len(maps)} feature maps this extractor has"
            )
        return pyramids.extended_maps(
            end_points,
            maps[: options.num_layers],
            options.depth,
            explicit_padding=options.use_explicit_padding,
            use_depthwise=options.use_depthwise,
        )

    return build


def fpn_pyramid(
    end_points: Sequence[str], coarse_name: str, first_coarse: int, *, plain: bool = False
) -> Pyramid:
    """A feature pyramid on four backbone activations, in the variable scope `fpn`.

    Args:
        end_points: Activations at levels 2, 3, 4 and 5, finest first.
        coarse_name: Scope of the strided convolutions above level 5, with `{}` for a number.
        first_coarse: That number at level 6; it grows by one for each level.
        plain: Whether `use_depthwise` and `use_explicit_padding` have no effect on the pyramid.

    Returns:
        A pyramid from `fpn.min_level` to `fpn.max_level`, finest first.
    """
    top = FINEST_FPN_LEVEL + len(end_points) - 1

    def build(activations: Dict[str, tf.Tensor], options: ExtractorOptions) -> fpn.Maps:
        levels = options.fpn
        if not FINEST_FPN_LEVEL <= levels.min_level <= top:
            raise ConfigError(
                f"feature_extractor.fpn.min_level must be {FINEST_FPN_LEVEL} to {top}, the levels "
                f"of the backbone; got {levels.min_level}"
            )
        first, last = (level - FINEST_FPN_LEVEL for level in levels[:2])
        layer = fpn.LayerOptions(
            depth=options.depth(levels.depth),
            explicit_padding=options.use_explicit_padding and not plain,
            use_depthwise=options.use_depthwise and not plain,
        )
        with tf1.variable_scope("fpn"):
            maps = fpn.top_down_maps(
                [activations[name] for name in end_points[first : last + 1]], layer
            )
            names = [coarse_name.format(first_coarse + n) for n in range(levels.max_level - top)]
            return maps + fpn.coarse_maps(maps[-1], names, layer)

    return build


def pooling_pyramid(end_point: str, base_depth: int = 0, num_maps: int = 6) -> Pyramid:
    """A pyramid of one activation, halved again and again by max pooling; see `fpn.pooled_maps`."""

    def build(activations: Dict[str, tf.Tensor], options: ExtractorOptions) -> fpn.Maps:
        del options  # nothing of it applies
        return fpn.pooled_maps(activations[end_point], num_maps, base_depth)

    return build


@dataclass(frozen=True)
class RecipeExtractor:
    """An extractor made of a recipe and the configuration's options."""

    recipe: Recipe
    options: ExtractorOptions

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        return self.recipe.normalize(images)

    def classifier_name(self, name: str) -> str:
        return name + self.recipe.classifier_suffix

    def extract(self, inputs: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        recipe, options = self.recipe, self.options
        images = self._prepared(inputs)
        scope = tf1.variable_scope(recipe.scope) if recipe.scope else contextlib.nullcontext()
        with scope:
            with recipe.base_scope(), options.backbone_scope():
                end_points = recipe.backbone(images, options)
            with options.conv_scope():
                maps = recipe.pyramid(end_points, options)
        return _after(list(end_points.values())[-1], maps) if options.is_training else maps

    def _prepared(self, inputs: tf.Tensor) -> tf.Tensor:
        images = large_enough(inputs, self.recipe.min_size)
        return pad_to_multiple(images, self.options.pad_to_multiple)


def _after(last: tf.Tensor, maps: Tuple[tf.Tensor, ...]) -> Tuple[tf.Tensor, ...]:
    """The maps, with all layers of the backbone run too: those that no map uses have averages.

    Where batch norm moves its averages in place, nothing else would run these layers.
    """
    with tf.control_dependencies([last]):
        return tuple(tf.identity(features) for features in maps)


class FixedExtractor(RecipeExtractor):
    """An extractor whose every layer is as published: `conv_hyperparams` has no effect on it."""

    def extract(self, inputs: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        end_points = self.recipe.backbone(self._prepared(inputs), self.options)
        return self.recipe.pyramid(end_points, self.options)


def options_of(recipe: Recipe, config: Any, is_training: bool) -> ExtractorOptions:
    """Options of a type; fields that it ignores have their defaults.

    Args:
        recipe: Of the type.
        config: `SsdFeatureExtractor` message.
        is_training: Whether batch norm learns.

    Raises:
        ConfigError: if a field is set that the type does not know or refuses, or is out of range.
    """
    check_supported(config, "feature_extractor")
    _check_fields(config.type, recipe, config)
    known = type(config)()
    known.CopyFrom(config)
    for field in recipe.ignores:
        known.ClearField(field)
    scope = make_arg_scope(known.conv_hyperparams, is_training)
    overrides = known.override_base_feature_extractor_hyperparams
    return ExtractorOptions(
        conv_scope=scope,
        backbone_scope=scope if overrides else no_scope,
        is_training=is_training,
        depth_multiplier=known.depth_multiplier,
        min_depth=known.min_depth,
        pad_to_multiple=known.pad_to_multiple,
        use_explicit_padding=known.use_explicit_padding,
        use_depthwise=known.use_depthwise,
        num_layers=known.num_layers if known.HasField("num_layers") else None,
        fpn=make_fpn_levels(known.fpn),
        architecture=known.spaghettinet_arch_name,
    )


def _check_fields(name: str, recipe: Recipe, config: Any) -> None:
    for field in SPECIAL_FIELDS:
        # An explicit `false` is accepted.
        if field not in recipe.takes and config.HasField(field) and getattr(config, field):
            raise ConfigError(
                f"feature_extractor.{field} is not supported by {name}; leave it out"
                + (f". Of such fields it takes {list(recipe.takes)}" if recipe.takes else "")
            )
    for field in recipe.refuses:
        default = config.DESCRIPTOR.fields_by_name[field].default_value
        if getattr(config, field) != default:
            raise ConfigError(
                f"feature_extractor.{field} must be {default} for {name}; "
                f"got {getattr(config, field)}. Remove it"
            )


def register_recipe(
    name: str,
    recipe: Recipe,
    also: Sequence[str] = (),
    extractor: Type[RecipeExtractor] = RecipeExtractor,
) -> None:
    """Makes `feature_extractor { type: name }` known, under the names in `also` too."""

    @EXTRACTORS.register(name, *also)
    def make(config: Any, is_training: bool) -> RecipeExtractor:
        return extractor(recipe, options_of(recipe, config, is_training))


def make_extractor(config: Any, is_training: bool) -> Extractor:
    """The extractor of a `SsdFeatureExtractor` message; builds no graph.

    Args:
        config: The message.
        is_training: Whether batch norm learns: the model trains and does not freeze batch norm.

    Raises:
        ConfigError: if the type is unknown or an option is out of range.
    """
    return EXTRACTORS.get(config.type)(config, is_training)


def ignored_fields(config: Any) -> Tuple[str, ...]:
    """Fields of a `SsdFeatureExtractor` message with a value that has no effect on its type.

    Raises:
        ConfigError: as `make_extractor`.
    """
    recipe = getattr(make_extractor(config, is_training=True), "recipe", None)
    if recipe is None:
        return ()
    ignores = recipe.ignores
    overrides = config.override_base_feature_extractor_hyperparams and OVERRIDE not in ignores
    if not recipe.has_extra_layers and not overrides:
        ignores += ("conv_hyperparams",)
    fields = config.DESCRIPTOR.fields_by_name
    return tuple(name for name in ignores if is_news(config, fields[name]))

"""Feature extractors of single-shot detectors, and recipes that describe them.

A recipe names the network, the activations, the extra layers and the pixel scale. One entry in a
module of this package adds a type string of `feature_extractor { type: … }`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.extractors.base import (
    OVERRIDE,
    RecipeRules,
    assert_image_size,
    check_image_size,
    scale_to_unit_range,
)
from estimator_det.images.resize import pad_to_multiple, static_size
from estimator_det.nets.hyperparams import ArgScope, no_scope
from estimator_det.nets.mobilenet import scaled_depth
from estimator_det.nets.necks import fpn, pyramids
from estimator_det.nets.necks.bifpn import BifpnOptions
from estimator_det.nets.normalization import batch_norm
from estimator_det.nets.object_paths import (
    BACKBONE_PATH,
    KERAS,
    ObjectPaths,
    Paths,
    functional,
    nested,
)
from estimator_det.protos import fpn_pb2, ssd_pb2

EXTRACTORS: Registry[Recipe] = Registry(
    "SSD feature extractor",
    tpu="use ssd_mobilenet_v1 or another feature extractor made for TPU",
    chosen_by="SsdFeatureExtractor.type",
)

# Fields that only some types have; they must not be set for the others.
SPECIAL_FIELDS = ("num_layers", "fpn", "bifpn", "spaghettinet_arch_name")

FINEST_FPN_LEVEL = 2
"""Level of the finest activation a feature pyramid can use; level n is at stride 2^n."""
COARSEST_BACKBONE_LEVEL = 5
MOST_LEVELS = 20


class FpnLevels(NamedTuple):
    """Levels of a feature pyramid (an `fpn` message); level n is at stride 2^n."""

    min_level: int  # finest level
    max_level: int  # coarsest level
    depth: int  # channels of every level at depth multiplier 1


@dataclass(frozen=True)
class ExtractorOptions:
    """Settings of a `SsdFeatureExtractor` message."""

    conv_scope: ArgScope  # argument scope of the extra layers
    fpn: FpnLevels  # levels of a feature pyramid
    # Argument scope of the backbone, inside the recipe's; equal to `conv_scope` if the message
    # overrides the backbone's settings.
    backbone_scope: ArgScope = no_scope
    is_training: bool = False  # True if batch norm learns
    depth_multiplier: float = 1.0  # factor of every layer's channels
    min_depth: int = 16  # lower bound of a layer's channels
    pad_to_multiple: int = 1  # inputs are padded with zeros to multiples of this
    use_explicit_padding: bool = False  # pad by kernel size instead of "SAME"
    use_depthwise: bool = False  # split the extra layers' strided convolutions
    num_layers: Optional[int] = None  # number of feature maps; None for all
    architecture: str = ""  # name of a network among those of one type (`spaghettinet_arch_name`)
    tf2_line: bool = False  # build the network of the TF2 line
    bifpn: Optional[BifpnOptions] = None  # settings of a bidirectional pyramid

    @property
    def depth(self) -> Callable[[float], int]:
        """Function from a table's channels to the real ones."""
        return scaled_depth(self.depth_multiplier, self.min_depth)


Backbone = Callable[[tf.Tensor, ExtractorOptions], Dict[str, tf.Tensor]]
Pyramid = Callable[[Dict[str, tf.Tensor], ExtractorOptions], Tuple[tf.Tensor, ...]]


@dataclass(frozen=True)
class Recipe(RecipeRules):
    """Parts and rules of an extractor; its call with a message builds the extractor."""

    # Variable scope of backbone and extra layers; checkpoints depend on it. Empty if the two have
    # scopes in themselves.
    scope: str
    base_scope: ArgScope  # argument scope with which the backbone was published
    backbone: Backbone  # (inputs, options) -> activations by name
    pyramid: Pyramid  # (activations, options) -> feature maps
    normalize: Callable[[tf.Tensor], tf.Tensor] = scale_to_unit_range  # pixel scaling
    min_size: int = 33  # least height and width of an image, in pixels
    # The `SPECIAL_FIELDS` that this type has; the others must not be set.
    takes: Tuple[str, ...] = ("num_layers",)
    # Other fields that must have their defaults, like in the reference.
    refuses: Tuple[str, ...] = ()
    # Other fields without effect, like in the reference; setting them is allowed.
    ignores: Tuple[str, ...] = ()
    # True if there are layers after the backbone. Without them `conv_hyperparams` has no effect,
    # unless it overrides the backbone's settings.
    has_extra_layers: bool = True
    classifier_suffix: str = ""  # end of a variable's name in checkpoints of the classifier
    quantizes: bool = True  # True if its layers can simulate quantization
    # True if all layers use `conv_hyperparams`, so that a message must override the backbone's.
    needs_override: bool = False
    # Levels that a pyramid must have, and its depth if a message has no `fpn`; None: any levels.
    fixed_levels: Optional[FpnLevels] = None
    is_size_exact: bool = False  # True if height and width must be equal to `min_size`
    map_count: Optional[int] = None  # number of feature maps, if no field decides about it
    object_paths: Optional[ObjectPaths] = None  # below the extractor, for the layers in its scope
    # In the TF2 line: `conv_hyperparams` apply to pointwise halves of separable layers, too.
    covers_pointwise: bool = False

    functions: ClassVar[Tuple[str, ...]] = ("backbone", "pyramid")

    @property
    def norm_decay(self) -> Optional[float]:
        """Decay of moving averages of batch norm in `base_scope`; None if the scope has none."""
        with self.base_scope():
            settings = slim.current_arg_scope().get(slim.arg_scope_func_key(batch_norm), {})
        return settings.get("decay")

    def num_maps(self, config: ssd_pb2.SsdFeatureExtractor) -> Optional[int]:
        """Number of feature maps; None if the network alone decides about it."""
        if "bifpn" in self.takes:
            return config.bifpn.max_level - config.bifpn.min_level + 1
        if "fpn" in self.takes:
            levels = _fpn_levels(self, config)
            return levels.max_level - levels.min_level + 1
        if isinstance(self.pyramid, ExtendedPyramid):
            count = len(self.pyramid.maps)
            is_cut = "num_layers" in self.takes and config.HasField("num_layers")
            return min(config.num_layers, count) if is_cut else count
        return self.map_count

    def even_levels(self, config: ssd_pb2.SsdFeatureExtractor) -> range:
        """Levels of maps that must have even sides: the next coarser map is enlarged to them."""
        if self.fixed_levels is not None:
            return range(self.fixed_levels.min_level, self.fixed_levels.max_level)
        coarsest = 0
        if "bifpn" in self.takes:
            coarsest = config.bifpn.max_level
        elif "fpn" in self.takes and not config.use_explicit_padding:  # which cuts enlarged maps
            coarsest = min(config.fpn.max_level, COARSEST_BACKBONE_LEVEL)
        finest = (config.bifpn if "bifpn" in self.takes else config.fpn).min_level
        return range(max(finest, 0), min(coarsest, MOST_LEVELS))

    def __call__(self, config: ssd_pb2.SsdFeatureExtractor, is_training: bool) -> RecipeExtractor:
        recipe = self.with_parameters(config)
        return RecipeExtractor(recipe, _make_options(recipe, config, is_training))


def keras_paths(
    neck_paths: ObjectPaths, order: Callable[[Sequence[str]], Sequence[str]] = list
) -> ObjectPaths:
    """Paths of an extractor: `neck_paths`, and those of the other layers, which are the backbone.

    Keras counts the layers of the backbone in an `order`; by default in that of building.
    """

    def paths(scopes: Sequence[str]) -> Paths:
        neck = neck_paths(scopes)
        backbone = order([scope for scope in scopes if scope not in neck])
        return {**nested(BACKBONE_PATH, functional(backbone)), **neck}

    return paths


@dataclass(frozen=True)
class ExtendedPyramid:
    """Pyramid of backbone activations and extra layers, cut to `num_layers` rows."""

    maps: Tuple[pyramids.FeatureMap, ...]
    scope: str = ""  # variable scope of the extra layers, if they have one of their own

    def __call__(
        self, end_points: Dict[str, tf.Tensor], options: ExtractorOptions
    ) -> Tuple[tf.Tensor, ...]:
        with tf1.variable_scope(self.scope) if self.scope else contextlib.nullcontext():
            return pyramids.extended_maps(
                end_points,
                self.maps[: options.num_layers],
                options.depth,
                explicit_padding=options.use_explicit_padding,
                use_depthwise=options.use_depthwise,
                keras_depthwise=options.tf2_line,
            )


def extended_pyramid(*maps: pyramids.FeatureMap, scope: str = "") -> ExtendedPyramid:
    """An `ExtendedPyramid` of these maps."""
    return ExtendedPyramid(maps, scope)


def fpn_pyramid(
    end_points: Sequence[str], coarse_name: str, first_coarse: int, *, plain: bool = False
) -> Pyramid:
    """Feature pyramid on four activations at levels 2 to 5, in the variable scope `fpn`.

    Strided convolutions above level 5 have the scope `coarse_name`, whose `{}` is `first_coarse` at
    level 6, and 1 more at each further level. `use_depthwise` and `use_explicit_padding` do not
    affect a `plain` pyramid.
    """
    top = FINEST_FPN_LEVEL + len(end_points) - 1

    def build(activations: Dict[str, tf.Tensor], options: ExtractorOptions) -> fpn.Maps:
        levels = options.fpn
        first, last = (level - FINEST_FPN_LEVEL for level in levels[:2])
        layer = fpn.LayerOptions(
            depth=options.depth(levels.depth),
            explicit_padding=options.use_explicit_padding and not plain,
            use_depthwise=options.use_depthwise and not plain,
            enlarges_smoothed=options.tf2_line,
        )
        with tf1.variable_scope("fpn"):
            maps = fpn.top_down_maps(
                [activations[name] for name in end_points[first : last + 1]], layer
            )
            names = [coarse_name.format(first_coarse + n) for n in range(levels.max_level - top)]
            return maps + fpn.coarse_maps(maps[-1], names, layer)

    return build


def pooling_pyramid(end_point: str, base_depth: int = 0) -> Pyramid:
    """Pyramid of one activation, halved repeatedly by max pooling; see `fpn.pooled_maps`."""
    return lambda activations, _: fpn.pooled_maps(activations[end_point], base_depth)


@dataclass(frozen=True)
class RecipeExtractor:
    """Extractor with a recipe and the configuration's options; has no state between calls."""

    recipe: Recipe
    options: ExtractorOptions

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        """Scales float32 [B, h, w, 3], pixels 0..255, for the network; same shape."""
        return self.recipe.normalize(images)

    def classifier_name(self, name: str) -> str:
        """Name of a variable in a classifier's checkpoint, from its name inside the extractor."""
        return name + self.recipe.classifier_suffix

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        """Paths of layers in object-based checkpoints; none for a network of the TF1 line."""
        prefix = f"{self.recipe.scope}/"
        if self.recipe.object_paths is None:
            return {}
        inner = [scope.removeprefix(prefix) for scope in scopes]
        return {prefix + scope: path for scope, path in self.recipe.object_paths(inner).items()}

    def extract(self, inputs: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        """Computes feature maps [B, h, w, c], large to small, from normalized [B, H, W, C]."""
        recipe, options = self.recipe, self.options
        images = assert_image_size(inputs, recipe.min_size, is_exact=recipe.is_size_exact)
        images = pad_to_multiple(images, options.pad_to_multiple)
        scope = tf1.variable_scope(recipe.scope) if recipe.scope else contextlib.nullcontext()
        with scope:
            with recipe.base_scope(), options.backbone_scope():
                end_points = recipe.backbone(images, options)
            with options.conv_scope():
                maps = recipe.pyramid(end_points, options)
        return _run_all_layers(list(end_points.values())[-1], maps) if options.is_training else maps


def _run_all_layers(last: tf.Tensor, maps: Tuple[tf.Tensor, ...]) -> Tuple[tf.Tensor, ...]:
    """Makes the maps depend on all layers of the backbone, also on those that no map uses."""
    # Batch norm may update its averages in place: layers that nothing runs would keep the first
    # ones.
    with tf.control_dependencies([last]):
        return tuple(tf.identity(features) for features in maps)


def _make_options(
    recipe: Recipe, config: ssd_pb2.SsdFeatureExtractor, is_training: bool
) -> ExtractorOptions:
    """Reads the options of a type; fields that the type ignores have their defaults."""
    effective_config = recipe.effective_fields(config)
    scope = backbone_scope = no_scope
    if "conv_hyperparams" not in recipe.ignores:
        backbone_scope, scope = recipe.hyperparam_scopes(effective_config, is_training)
    return ExtractorOptions(
        conv_scope=scope,
        fpn=_fpn_levels(recipe, effective_config),
        backbone_scope=backbone_scope,
        is_training=is_training,
        depth_multiplier=effective_config.depth_multiplier,
        min_depth=effective_config.min_depth,
        pad_to_multiple=effective_config.pad_to_multiple,
        use_explicit_padding=effective_config.use_explicit_padding,
        use_depthwise=effective_config.use_depthwise,
        num_layers=effective_config.num_layers if effective_config.HasField("num_layers") else None,
        architecture=effective_config.spaghettinet_arch_name,
        tf2_line=recipe.is_tf2_line,
        bifpn=_bifpn_options(effective_config.bifpn),
    )


def _bifpn_options(config: fpn_pb2.BidirectionalFeaturePyramidNetworks) -> BifpnOptions:
    return BifpnOptions(
        min_level=config.min_level,
        max_level=config.max_level,
        num_iterations=config.num_iterations,
        depth=config.num_filters,
        combine_method=config.combine_method,
    )


def _fpn_levels(recipe: Recipe, config: ssd_pb2.SsdFeatureExtractor) -> FpnLevels:
    if recipe.fixed_levels is not None and not config.HasField("fpn"):
        return recipe.fixed_levels
    return FpnLevels(config.fpn.min_level, config.fpn.max_level, config.fpn.additional_layer_depth)


@rules(ssd_pb2.SsdFeatureExtractor)
def _check_extractor(config: ssd_pb2.SsdFeatureExtractor, at: str) -> Iterator[Problem]:
    if config.type not in EXTRACTORS:
        return
    recipe = EXTRACTORS.get(config.type)
    yield from recipe.check(config, at)
    yield from _check_levels(recipe, config, at)
    if recipe.needs_override and not getattr(config, OVERRIDE):
        yield error(
            f"{at}.{OVERRIDE}",
            f"must be true for {config.type}, because all layers of its network use "
            "conv_hyperparams",
            "Set it to true",
        )
    for field in SPECIAL_FIELDS:
        # An explicit `false` is accepted.
        if field not in recipe.takes and config.HasField(field) and getattr(config, field):
            others = f". Fields that it supports: {list(recipe.takes)}" if recipe.takes else ""
            yield error(f"{at}.{field}", f"is not supported by {config.type}", f"remove it{others}")
    for field in recipe.refuses:
        default = config.DESCRIPTOR.fields_by_name[field].default_value
        if getattr(config, field) != default:
            yield error(
                f"{at}.{field}",
                f"must be {default} for {config.type}; given: {getattr(config, field)}",
                "Remove it",
            )


def _check_levels(
    recipe: Recipe, config: ssd_pb2.SsdFeatureExtractor, at: str
) -> Iterator[Problem]:
    count = recipe.num_maps(config)
    is_cut = "num_layers" in recipe.takes and config.HasField("num_layers")
    if is_cut and count is not None and config.num_layers > count:
        message = f"is {config.num_layers}; {config.type} has {count} feature maps"
        yield error(f"{at}.num_layers", message, f"set it to {count}")
    fixed, levels = recipe.fixed_levels, (config.fpn.min_level, config.fpn.max_level)
    if levels[1] < levels[0]:
        yield error(
            f"{at}.fpn.max_level",
            f"must not be below min_level; given: {levels[1]} and {levels[0]}",
            "raise it",
        )
    elif fixed is not None and config.HasField("fpn") and levels != fixed[:2]:
        yield error(
            f"{at}.fpn.min_level",
            f"is {levels[0]}, and max_level is {levels[1]}: {config.type} has levels "
            f"{fixed.min_level} to {fixed.max_level}",
            f"--set {at}.fpn.min_level={fixed.min_level} "
            f"--set {at}.fpn.max_level={fixed.max_level}",
        )


@rules(ssd_pb2.Ssd)
def _check_size(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    """Images fit the network, if the resizer gives all of them the same size."""
    extractor, sides = config.feature_extractor, static_size(config.image_resizer)
    if sides is None or extractor.type not in EXTRACTORS:
        return
    recipe, at = EXTRACTORS.get(extractor.type), f"{at}.image_resizer"
    yield from check_image_size(sides, recipe.min_size, at, is_exact=recipe.is_size_exact)
    multiple = 1 if "pad_to_multiple" in recipe.ignores else max(extractor.pad_to_multiple, 1)
    padded = [-(-side // multiple) * multiple for side in sides]
    for level in recipe.even_levels(extractor):
        maps = [-(-side // 2**level) for side in padded]
        if any(side % 2 for side in maps):
            step = 2 ** recipe.even_levels(extractor).stop
            yield error(
                at,
                f"makes images of {sides[0]} x {sides[1]} pixels, whose maps at level {level} "
                f"have {maps[0]} x {maps[1]} cells; the next coarser level, enlarged twofold, "
                "does not match them",
                f"make height and width multiples of {step}, for example with "
                f"feature_extractor.pad_to_multiple: {step}",
            )
            return


def register_recipe(name: str, recipe: Recipe, aliases: Sequence[str] = ()) -> None:
    """Registers `feature_extractor { type: name }`, and the same with each of `aliases`."""
    EXTRACTORS.register(name, *aliases)(recipe)


def register_keras(
    name: str,
    neck_paths: ObjectPaths,
    order: Callable[[Sequence[str]], Sequence[str]] = list,
    **changes: Any,
) -> None:
    """Registers `<name>_keras`, the network of the TF2 line beside the type `name`.

    `neck_paths` and `order` are those of `keras_paths`, and `changes` replace fields of the recipe.
    """
    sister = EXTRACTORS.get(name)
    paths, scope = keras_paths(neck_paths, order), sister.scope + KERAS
    recipe = dataclasses.replace(sister, scope=scope, object_paths=paths, **changes)
    register_recipe(name + KERAS, recipe)


def make_extractor(config: ssd_pb2.SsdFeatureExtractor, is_training: bool) -> RecipeExtractor:
    """Builds the extractor of a `SsdFeatureExtractor` message, but no graph.

    Batch norm learns with `is_training`, unless the message has `batch_norm_trainable: false`.
    """
    return EXTRACTORS.get(config.type)(config, is_training and config.batch_norm_trainable)

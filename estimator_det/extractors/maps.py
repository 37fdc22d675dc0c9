"""Layout of networks whose feature maps a detector predicts from: a backbone and a pyramid."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Callable, ClassVar, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.extractors.recipe import NetworkLayout, Recipe, assert_image_size
from estimator_det.images.resize import pad_to_multiple
from estimator_det.nets.hyperparams import ArgScope, no_scope
from estimator_det.nets.mobilenet import scaled_depth
from estimator_det.nets.necks import fpn, pyramids
from estimator_det.nets.necks.bifpn import BifpnOptions
from estimator_det.nets.object_paths import BACKBONE_PATH, ObjectPaths, Paths, functional, nested
from estimator_det.protos import fpn_pb2

FINEST_FPN_LEVEL = 2
"""Level of the finest activation a feature pyramid can use; level n is at stride 2^n."""


class FpnLevels(NamedTuple):
    """Levels of a feature pyramid (an `fpn` message); level n is at stride 2^n."""

    min_level: int  # finest level
    max_level: int  # coarsest level
    depth: int  # channels of every level at depth multiplier 1


DEFAULT_LEVELS = FpnLevels(3, 7, 256)
"""Levels of an empty `fpn` message."""


@rules(fpn_pb2.FeaturePyramidNetworks)
def _check_levels(config: fpn_pb2.FeaturePyramidNetworks, at: str) -> Iterator[Problem]:
    if config.max_level < config.min_level:
        yield error(
            f"{at}.max_level",
            f"must not be below min_level; given: {config.max_level} and {config.min_level}",
            "raise it",
        )


@dataclass(frozen=True)
class MapOptions:
    """Settings of a `SsdFeatureExtractor` or a `CenterNetFeatureExtractor` message."""

    conv_scope: ArgScope = no_scope  # argument scope of the pyramid
    # Argument scope of the backbone, inside the recipe's; equal to `conv_scope` if the message
    # overrides the backbone's settings.
    backbone_scope: ArgScope = no_scope
    is_training: bool = False  # True if batch norm learns
    depth_multiplier: float = 1.0  # factor of every layer's channels
    min_depth: int = 16  # lower bound of a layer's channels
    pad_to_multiple: int = 1  # inputs are padded with zeros to multiples of this
    use_explicit_padding: bool = False  # pad by kernel size instead of "SAME"
    use_depthwise: bool = False  # split convolutions of the pyramid
    interpolation: str = "nearest"  # how CenterNet enlarges maps
    num_layers: Optional[int] = None  # number of feature maps; None for all
    architecture: str = ""  # network, if a type has several (`spaghettinet_arch_name`)
    tf2_line: bool = False  # build the network of the TF2 line
    fpn: FpnLevels = DEFAULT_LEVELS  # levels of a feature pyramid
    bifpn: Optional[BifpnOptions] = None  # settings of a bidirectional pyramid

    @property
    def depth(self) -> Callable[[float], int]:
        """Function from a table's channels to the real ones."""
        return scaled_depth(self.depth_multiplier, self.min_depth)


Backbone = Callable[[tf.Tensor, MapOptions], Dict[str, tf.Tensor]]
Pyramid = Callable[[Dict[str, tf.Tensor], MapOptions], Tuple[tf.Tensor, ...]]


@dataclass(frozen=True)
class MapLayout(NetworkLayout):
    """A backbone, and a pyramid that makes feature maps of its activations."""

    backbone: Backbone  # (inputs, options) -> activations by name
    pyramid: Pyramid  # (activations, options) -> feature maps
    count: Optional[int] = None  # number of feature maps, if no field decides about it
    # Levels that a pyramid must have, and its depth if a message has no `fpn`; None: any levels.
    fixed_levels: Optional[FpnLevels] = None

    functions: ClassVar[Tuple[str, ...]] = ("backbone", "pyramid")


@dataclass(frozen=True)
class ExtendedPyramid:
    """Pyramid of backbone activations and extra layers, cut to `num_layers` rows."""

    maps: Tuple[pyramids.FeatureMap, ...]
    scope: str = ""  # variable scope of the extra layers, if they have one of their own

    def __call__(
        self, end_points: Dict[str, tf.Tensor], options: MapOptions
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

    def build(activations: Dict[str, tf.Tensor], options: MapOptions) -> fpn.Maps:
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


def keras_paths(
    neck_paths: ObjectPaths, order: Callable[[Sequence[str]], Sequence[str]] = list
) -> ObjectPaths:
    """Paths of an extractor: `neck_paths`, and paths of the other layers, which are the backbone.

    `order` sorts the layers of the backbone as Keras counts them; by default as they were built.
    """

    def paths(scopes: Sequence[str]) -> Paths:
        neck = neck_paths(scopes)
        backbone = order([scope for scope in scopes if scope not in neck])
        return {**nested(BACKBONE_PATH, functional(backbone)), **neck}

    return paths


@dataclass(frozen=True)
class MapExtractor:
    """Extractor with a recipe and the configuration's options; has no state between calls."""

    recipe: Recipe[MapLayout]
    options: MapOptions

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
            with recipe.arg_scope(), options.backbone_scope():
                end_points = recipe.layout.backbone(images, options)
            with options.conv_scope():
                maps = recipe.layout.pyramid(end_points, options)
        return _run_all_layers(list(end_points.values())[-1], maps) if options.is_training else maps


def _run_all_layers(last: tf.Tensor, maps: Tuple[tf.Tensor, ...]) -> Tuple[tf.Tensor, ...]:
    """Makes the maps depend on all layers of the backbone, also on those that no map uses."""
    # Batch norm may update its averages in place: layers that nothing runs would keep the first
    # ones.
    with tf.control_dependencies([last]):
        return tuple(tf.identity(features) for features in maps)

"""Feature extractors of CenterNet, and recipes that describe them.

A recipe names the network, the layers that enlarge its last map to a quarter of the image, and the
pixel scale. One entry in a module of this package adds a type string of
`feature_extractor { type: … }`. All are networks of the TF2 line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.images.resize import RGB, pad_to_multiple
from estimator_det.nets.hyperparams import ArgScope
from estimator_det.nets.object_paths import Paths
from estimator_det.protos import center_net_pb2

STRIDE = 4
"""Pixels of the image for each pixel of a feature map."""

EXTRACTORS: Registry[Recipe] = Registry(
    "CenterNet feature extractor",
    chosen_by="CenterNetFeatureExtractor.type",
)

# Fields that only some types use.
_SPECIAL_FIELDS = ("depth_multiplier", "use_separable_conv", "upsampling_interpolation")
INTERPOLATIONS = ("nearest", "bilinear")

Maps = Tuple[tf.Tensor, ...]


@dataclass(frozen=True)
class ExtractorOptions:
    """Settings of a `CenterNetFeatureExtractor` message."""

    depth_multiplier: float = 1.0  # factor of the backbone's channels
    use_separable_conv: bool = False  # split 3x3 convolutions after the backbone
    interpolation: str = "nearest"  # how maps are enlarged; one of `INTERPOLATIONS`
    # Subtracted from the channels of pixels 0..255, which are then divided by the deviations.
    channel_means: Tuple[float, ...] = ()
    channel_stds: Tuple[float, ...] = ()
    bgr_ordering: bool = False  # True if the means are in the order blue, green, red


@dataclass(frozen=True)
class Recipe:
    """Parts of an extractor; its call with a message builds the extractor."""

    scope: str  # variable scope of the network; checkpoints depend on it
    arg_scope: ArgScope  # argument scope of the backbone
    # (images, options) -> feature maps at a quarter of the resolution
    build: Callable[[tf.Tensor, ExtractorOptions], Maps]
    object_paths: Callable[[Sequence[str]], Paths]  # below the extractor, for layers in the scope
    normalize: Callable[[tf.Tensor], tf.Tensor]  # pixel scaling
    multiple: int = 32  # images are padded with zeros to multiples of this
    num_maps: int = 1  # number of feature maps, each of which has all heads
    # Object of the extractor that a classifier's checkpoint has; empty if there is no classifier.
    classifier: str = "_base_model"
    takes: Tuple[str, ...] = ()  # fields that only some types use

    def __call__(self, config: center_net_pb2.CenterNetFeatureExtractor) -> RecipeExtractor:
        options = ExtractorOptions(
            depth_multiplier=config.depth_multiplier,
            use_separable_conv=config.use_separable_conv,
            interpolation=config.upsampling_interpolation,
            channel_means=tuple(config.channel_means),
            channel_stds=tuple(config.channel_stds),
            bgr_ordering=config.bgr_ordering,
        )
        return RecipeExtractor(self, options)


@dataclass(frozen=True)
class RecipeExtractor:
    """Extractor with a recipe and the configuration's options; has no state between calls."""

    recipe: Recipe
    options: ExtractorOptions

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        """Scales float32 [B, h, w, 3], pixels 0..255, for the network; same shape."""
        options = self.options
        if options.bgr_ordering:
            images = tf.reverse(images, [-1])
        if options.channel_means:
            images -= tf.constant(options.channel_means)
        if options.channel_stds:
            images /= tf.constant(options.channel_stds)
        return self.recipe.normalize(images)

    def extract(self, inputs: tf.Tensor) -> Maps:
        """Computes feature maps [B, H / 4, W / 4, C] from normalized [B, H, W, 3]."""
        images = pad_to_multiple(inputs, self.recipe.multiple)
        with tf1.variable_scope(self.recipe.scope), self.recipe.arg_scope():
            return self.recipe.build(images, self.options)

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        """Paths of layers in object-based checkpoints, below the extractor."""
        prefix = f"{self.recipe.scope}/"
        inner = [scope.removeprefix(prefix) for scope in scopes]
        return {prefix + scope: path for scope, path in self.recipe.object_paths(inner).items()}


@rules(center_net_pb2.CenterNetFeatureExtractor)
def _check_extractor(
    config: center_net_pb2.CenterNetFeatureExtractor, at: str
) -> Iterator[Problem]:
    for name in ("channel_means", "channel_stds"):
        values = getattr(config, name)
        if len(values) not in (0, RGB):
            yield error(
                f"{at}.{name}",
                f"has {len(values)} values, and images have {RGB} channels",
                f"write {RGB} values, or none",
            )
    if 0.0 in config.channel_stds:
        yield error(f"{at}.channel_stds", "divides pixels, and has a 0", "correct it")
    interpolation = config.upsampling_interpolation
    if interpolation not in INTERPOLATIONS:
        allowed = " or ".join(map(repr, INTERPOLATIONS))
        yield error(
            f"{at}.upsampling_interpolation",
            f"must be {allowed}; given: {interpolation!r}",
            f"use {allowed}",
        )
    if config.type not in EXTRACTORS:
        return
    unused = set(_SPECIAL_FIELDS) - {*EXTRACTORS.get(config.type).takes}
    for name in non_default_fields(config, sorted(unused)):
        yield no_effect(f"{at}.{name}", f"{config.type} does not use it")


def make_extractor(config: center_net_pb2.CenterNetFeatureExtractor) -> RecipeExtractor:
    """Builds the extractor of a `CenterNetFeatureExtractor` message, but no graph."""
    return EXTRACTORS.get(config.type)(config)

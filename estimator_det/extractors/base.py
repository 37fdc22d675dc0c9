"""Parts that feature extractors of single-shot and of two-stage detectors share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Callable, Generic, NamedTuple, Sequence, Tuple, TypeVar, cast

from estimator_det.compat import tf, tf1
from estimator_det.config import plugins
from estimator_det.config.fields import non_default_fields
from estimator_det.config.text import ConfigError

RGB_MEANS = (123.68, 116.779, 103.939)
"""Means of the images that ResNet and VGG classifiers were trained on, in pixels of 0..255."""

FINEST_FPN_LEVEL = 2
"""Level of the finest activation a feature pyramid can use; level n is at stride 2^n."""


class FpnLevels(NamedTuple):
    """Levels of a feature pyramid (an `fpn` message); level n is at stride 2^n."""

    min_level: int = 3  # finest level
    max_level: int = 7  # coarsest level
    depth: int = 256  # channels of every level at depth multiplier 1


RecipeType = TypeVar("RecipeType")

OVERRIDE = "override_base_feature_extractor_hyperparams"


@dataclass(frozen=True)
class ExtractorEntry(Generic[RecipeType]):
    """Maker of an extractor, as it is registered, and the recipe that it follows."""

    recipe: RecipeType  # parts and rules of the extractor
    # (recipe, message of the feature extractor, True in training) -> extractor.
    build: Callable[[RecipeType, Any, bool], Any]
    # Fields of the recipe whose functions receive `custom_parameters` as keyword arguments.
    functions: Tuple[str, ...] = ()

    def __call__(self, config: Any, is_training: bool) -> Any:
        return self.build(self.with_parameters(config), config, is_training)

    def with_parameters(self, config: Any) -> RecipeType:
        """The recipe with the `custom_parameters` of a message; ConfigError if it refuses one."""
        functions = {name: getattr(self.recipe, name) for name in self.functions}
        try:
            bound = plugins.bind_all(functions, config.custom_parameters, config.type)
        except ConfigError as error:
            field = f"feature_extractor.custom_{error.field}"
            raise ConfigError(field, error.message, error.remedy) from None
        return dataclasses.replace(cast(Any, self.recipe), **bound)


def fields_in_effect(config: Any, ignores: Sequence[str]) -> Any:
    """Copy of a feature extractor's message in which fields without effect have their defaults."""
    copy = type(config)()
    copy.CopyFrom(config)
    for field in ignores:
        copy.ClearField(field)
    return copy


def ignored_non_defaults(
    config: Any, ignores: Tuple[str, ...], *, has_own_layers: bool
) -> Tuple[str, ...]:
    """Fields of a feature extractor's message that are set, but have no effect.

    `conv_hyperparams` has one on layers that no classifier has, and if it overrides all others.
    """
    overrides = getattr(config, OVERRIDE) and OVERRIDE not in ignores
    if not (has_own_layers or overrides):
        ignores += ("conv_hyperparams",)
    return non_default_fields(config, ignores)


def make_fpn_levels(config: Any) -> FpnLevels:
    """Reads the levels of a `FeaturePyramidNetworks` message, or raises ConfigError."""
    levels = FpnLevels(config.min_level, config.max_level, config.additional_layer_depth)
    if levels.max_level < levels.min_level:
        raise ConfigError(
            "feature_extractor.fpn",
            f"max_level must not be below min_level; given: {levels.max_level} and "
            f"{levels.min_level}",
        )
    return levels


def subtract_channel_means(images: tf.Tensor) -> tf.Tensor:
    """Subtracts the means of red, green and blue from pixels 0..255, for ResNets.

    Images with another number of channels are not changed, like in the reference.
    """
    return images - tf.constant(RGB_MEANS) if images.shape[-1] == len(RGB_MEANS) else images


def scale_to_unit_range(images: tf.Tensor) -> tf.Tensor:
    """Scales pixels 0..255 to -1..1, for MobileNets and Inceptions."""
    return (2.0 / 255.0) * images - 1.0


def check_image_size(images: tf.Tensor, minimum: int) -> tf.Tensor:
    """Returns images [B, h, w, C] unchanged if h and w are large enough, or raises ConfigError.

    Sizes that are not static are checked at run time.
    """
    message = f"image size must be at least {minimum} x {minimum} pixels"
    sides = images.shape[1:3].as_list()
    if any(side is not None and side < minimum for side in sides):
        raise ConfigError(None, f"{message}; given: {sides}", "Enlarge the images in image_resizer")
    if None not in sides:
        return images
    is_large_enough = tf.reduce_min(tf.shape(images)[1:3]) >= minimum
    with tf1.control_dependencies([tf1.Assert(is_large_enough, [message, tf.shape(images)])]):
        return tf.identity(images)

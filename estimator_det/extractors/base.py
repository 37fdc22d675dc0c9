"""Parts that feature extractors of single-shot and of two-stage detectors share."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Iterator, Optional, Tuple, TypeVar, Union, cast

from google.protobuf.message import Message

from estimator_det.compat import tf, tf1
from estimator_det.config import plugins
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.errors import Problem, error
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope, no_scope
from estimator_det.nets.object_paths import ObjectPaths
from estimator_det.protos import faster_rcnn_pb2, ssd_pb2

RGB_MEANS = (123.68, 116.779, 103.939)
"""Means of the images that ResNet and VGG classifiers were trained on, in pixels of 0..255."""

OVERRIDE = "override_base_feature_extractor_hyperparams"

ExtractorMessage = Union[ssd_pb2.SsdFeatureExtractor, faster_rcnn_pb2.FasterRcnnFeatureExtractor]

RecipeType = TypeVar("RecipeType", bound="RecipeRules")
MessageType = TypeVar("MessageType", bound=Message)


class RecipeRules:
    """Rules that recipes of both kinds of detectors share; a recipe defines these fields."""

    ignores: Tuple[str, ...]  # fields without effect, like in the reference
    # True if there are layers after the backbone, which use `conv_hyperparams`.
    has_extra_layers: bool = False
    # Fields of the recipe whose functions receive `custom_parameters` as keyword arguments.
    functions: ClassVar[Tuple[str, ...]]
    # Paths of layers in object-based checkpoints; None for a network of the TF1 line.
    object_paths: Optional[ObjectPaths] = None
    # In the TF2 line, True if hyperparameters apply to pointwise halves of separable layers, too.
    covers_pointwise: bool = False

    @property
    def is_tf2_line(self) -> bool:
        """True for a network of the TF2 line, whose layers use hyperparameters as Keras does."""
        return self.object_paths is not None

    def check(self, config: ExtractorMessage, at: str) -> Iterator[Problem]:
        """Problems of the parameters of a message, and its fields without effect."""
        functions = {name: getattr(self, name) for name in self.functions}
        parameters = f"{at}.custom_parameters"
        yield from plugins.check_parameters(
            functions, config.custom_parameters, config.type, parameters
        )
        for name in self.ignored_fields(config):
            yield no_effect(f"{at}.{name}", f"{config.type} does not use it")

    def with_parameters(self: RecipeType, config: ExtractorMessage) -> RecipeType:
        """The recipe with the `custom_parameters` of a message."""
        functions = {name: getattr(self, name) for name in self.functions}
        bound = plugins.bind(functions, config.custom_parameters)
        return dataclasses.replace(cast(Any, self), **bound)

    def hyperparam_scopes(
        self, config: ExtractorMessage, is_training: bool
    ) -> Tuple[ArgScope, ArgScope]:
        """Argument scopes of `conv_hyperparams` for layers of the backbone and after it.

        That of the backbone is empty unless the message overrides the backbone's settings.
        """
        backbone, others = (
            make_arg_scope(
                config.conv_hyperparams,
                is_training,
                tf2_line=self.is_tf2_line,
                is_backbone=is_backbone,
                covers_pointwise=self.covers_pointwise or not self.is_tf2_line,
            )
            for is_backbone in (True, False)
        )
        return backbone if getattr(config, OVERRIDE) else no_scope, others

    def effective_fields(self, config: MessageType) -> MessageType:
        """Copy of a message in which fields without effect have their defaults."""
        copy = type(config)()
        copy.CopyFrom(config)
        for field in self.ignores:
            copy.ClearField(field)
        return copy

    def ignored_fields(self, config: ExtractorMessage) -> Tuple[str, ...]:
        """Fields of a message that are set, but have no effect.

        `conv_hyperparams` has one on layers after the backbone, and if it overrides all others.
        """
        ignores = self.ignores
        overrides = getattr(config, OVERRIDE) and OVERRIDE not in ignores
        if not (self.has_extra_layers or overrides):
            ignores += ("conv_hyperparams",)
        return non_default_fields(config, ignores)


def subtract_channel_means(images: tf.Tensor) -> tf.Tensor:
    """Subtracts the means of red, green and blue from pixels 0..255, for ResNets.

    Images with another number of channels are not changed, like in the reference.
    """
    return images - tf.constant(RGB_MEANS) if images.shape[-1] == len(RGB_MEANS) else images


def scale_to_unit_range(images: tf.Tensor) -> tf.Tensor:
    """Scales pixels 0..255 to -1..1, for MobileNets and Inceptions."""
    return (2.0 / 255.0) * images - 1.0


def _allowed_size(side: int, *, is_exact: bool) -> str:
    least = "" if is_exact else "at least "
    return f"image size must be {least}{side} x {side} pixels for this feature_extractor"


def check_image_size(
    sides: Tuple[int, int], side: int, at: str, *, is_exact: bool = False
) -> Iterator[Problem]:
    """An error for images that are not of `side` or, unless exact, more, in height and width.

    `at` is the path of the image resizer.
    """
    if any(length != side if is_exact else length < side for length in sides):
        message = f"{_allowed_size(side, is_exact=is_exact)}; given: {list(sides)}"
        yield error(at, message, f"set height and width to {side}{'' if is_exact else ' or more'}")


def assert_image_size(images: tf.Tensor, side: int, *, is_exact: bool = False) -> tf.Tensor:
    """Images [B, h, w, C], whose size is checked at run time unless it is static."""
    if None not in images.shape[1:3]:
        return images
    size = tf.shape(images)[1:3]
    fits = tf.reduce_all(tf.equal(size, side) if is_exact else size >= side)
    message = _allowed_size(side, is_exact=is_exact)
    with tf1.control_dependencies([tf1.Assert(fits, [message, tf.shape(images)])]):
        images = tf.identity(images)
    return tf.ensure_shape(images, [None, side, side, None]) if is_exact else images

"""Recipes of feature extractors: a network, the rules of its fields, and a layout.

The layout says how a detector uses the network: `maps.MapLayout` in `ssd` and `center_net`,
`stages.StageLayout` in detectors of two stages. One entry in a module of the packages below adds a
type string of `feature_extractor { type: … }`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    Generic,
    Iterator,
    Optional,
    Tuple,
    TypeVar,
    Union,
    cast,
)

from google.protobuf.message import Message

from estimator_det.compat import slim, tf, tf1
from estimator_det.config import plugins
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.errors import Problem, error
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope, no_scope
from estimator_det.nets.normalization import batch_norm
from estimator_det.nets.object_paths import ObjectPaths
from estimator_det.protos import center_net_pb2, faster_rcnn_pb2, ssd_pb2

RGB_MEANS = (123.68, 116.779, 103.939)
"""Means of the images that ResNet and VGG classifiers were trained on, in pixels of 0..255."""

OVERRIDE = "override_base_feature_extractor_hyperparams"

# Fields that only some types have; they must not be set for the others.
SPECIAL_FIELDS = ("num_layers", "fpn", "bifpn", "spaghettinet_arch_name")

LayeredMessage = Union[ssd_pb2.SsdFeatureExtractor, faster_rcnn_pb2.FasterRcnnFeatureExtractor]
ExtractorMessage = Union[LayeredMessage, center_net_pb2.CenterNetFeatureExtractor]

MessageType = TypeVar("MessageType", bound=Message)


def subtract_channel_means(images: tf.Tensor) -> tf.Tensor:
    """Subtracts the means of red, green and blue from pixels 0..255, for ResNets.

    Images with another number of channels are not changed, like in the Object Detection API.
    """
    return images - tf.constant(RGB_MEANS) if images.shape[-1] == len(RGB_MEANS) else images


def scale_to_unit_range(images: tf.Tensor) -> tf.Tensor:
    """Scales pixels 0..255 to -1..1, for MobileNets and Inceptions."""
    return (2.0 / 255.0) * images - 1.0


class NetworkLayout:
    """Parts of a network, as a kind of detector uses them; a subclass is a dataclass of them."""

    # Fields whose functions receive `custom_parameters` as keyword arguments.
    functions: ClassVar[Tuple[str, ...]]


LayoutType = TypeVar("LayoutType", bound=NetworkLayout)


@dataclass(frozen=True)
class Recipe(Generic[LayoutType]):
    """A network and the rules of its fields; the API has the same rules."""

    # Variable scope of the network; checkpoints depend on it. Empty if its parts have scopes in
    # themselves.
    scope: str
    arg_scope: ArgScope  # argument scope with which the backbone was published
    layout: LayoutType
    normalize: Callable[[tf.Tensor], tf.Tensor] = scale_to_unit_range  # pixel scaling
    min_size: int = 33  # least height and width of an image, in pixels
    is_size_exact: bool = False  # True if height and width must be equal to `min_size`
    takes: Tuple[str, ...] = ()  # the `SPECIAL_FIELDS` that this type has
    refuses: Tuple[str, ...] = ()  # other fields that must have their defaults
    ignores: Tuple[str, ...] = ()  # other fields without effect; setting them is allowed
    # True if there are layers after the backbone. Without them `conv_hyperparams` has no effect,
    # unless it overrides the backbone's settings.
    has_extra_layers: bool = True
    # True if all layers use `conv_hyperparams`, so that a message must override the backbone's.
    needs_override: bool = False
    quantizes: bool = True  # True if its layers can simulate quantization
    # Object of a CenterNet's extractor that a classifier's checkpoint has; empty if it has none.
    classifier: str = ""
    classifier_suffix: str = ""  # end of a variable's name in checkpoints of the classifier
    # Paths of layers in object-based checkpoints, below the extractor; None for the TF1 line.
    object_paths: Optional[ObjectPaths] = None
    # In the TF2 line: `conv_hyperparams` apply to pointwise halves of separable layers, too.
    covers_pointwise: bool = False

    @property
    def module(self) -> str:
        """Module that has a line in the stack of every operation of the network."""
        return type(self.layout).__module__

    @property
    def is_tf2_line(self) -> bool:
        """True for a network of the TF2 line, whose layers use hyperparameters as Keras does."""
        return self.object_paths is not None

    @property
    def norm_decay(self) -> Optional[float]:
        """Decay of moving averages of batch norm in `arg_scope`; None if the scope has none."""
        with self.arg_scope():
            settings = slim.current_arg_scope().get(slim.arg_scope_func_key(batch_norm), {})
        return settings.get("decay")

    def check(self, config: ExtractorMessage, at: str) -> Iterator[Problem]:
        """Problems of parameters, and of fields that this type does not have, needs or ignores."""
        kind, fields = config.type, config.DESCRIPTOR.fields_by_name
        if not isinstance(config, center_net_pb2.CenterNetFeatureExtractor):
            parameters, path = config.custom_parameters, f"{at}.custom_parameters"
            yield from plugins.check_parameters(self._functions, parameters, kind, path)
        if self.needs_override and not getattr(config, OVERRIDE):
            yield error(
                f"{at}.{OVERRIDE}",
                f"must be true for {kind}, because all layers of its network use conv_hyperparams",
                "Set it to true",
            )
        for name in SPECIAL_FIELDS:
            # An explicit `false` is accepted.
            is_set = name in fields and config.HasField(name) and getattr(config, name)
            if is_set and name not in self.takes:
                others = f". Fields that it supports: {list(self.takes)}" if self.takes else ""
                yield error(f"{at}.{name}", f"is not supported by {kind}", f"remove it{others}")
        for name in self.refuses:
            value, default = getattr(config, name), fields[name].default_value
            if value != default:
                message = f"must be {default} for {kind}; given: {value}"
                yield error(f"{at}.{name}", message, "Remove it")
        for name in self.ignored_fields(config):
            yield no_effect(f"{at}.{name}", f"{kind} does not use it")

    def with_parameters(self, config: LayeredMessage) -> Recipe[LayoutType]:
        """The recipe with the `custom_parameters` of a message."""
        bound = plugins.bind(self._functions, config.custom_parameters)
        layout = dataclasses.replace(cast(Any, self.layout), **bound)
        return dataclasses.replace(self, layout=layout)

    @property
    def _functions(self) -> Dict[str, Callable[..., Any]]:
        return {name: getattr(self.layout, name) for name in self.layout.functions}

    def hyperparam_scopes(
        self, config: LayeredMessage, is_training: bool
    ) -> Tuple[ArgScope, ArgScope]:
        """Argument scopes of `conv_hyperparams` for layers of the backbone and after it.

        The scope of the backbone is empty unless the message overrides the backbone's settings.
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
        if not self.has_extra_layers and (OVERRIDE in ignores or not getattr(config, OVERRIDE)):
            ignores += ("conv_hyperparams",)
        return non_default_fields(config, ignores)


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

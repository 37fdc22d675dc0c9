"""What a feature extractor of a two-stage detector is, and how a recipe becomes one.

A classifier's network is cut in two. The first part turns an image into the feature map that
proposals are made on, the second part turns crops of that map into features of boxes. One entry
in a module of this package adds a type string of `feature_extractor { type: … }`.

Faster R-CNN, R-FCN, Mask R-CNN and Context R-CNN use them all the same way:

    extractor = make_extractor(config.feature_extractor, is_training)
    features = extractor.proposal_features(extractor.normalize(resized_images))
    box_features = extractor.box_features(crops_of(features))
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Protocol, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.fields import check_supported
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError
from estimator_det.extractors.base import large_enough, to_plus_minus_one
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope, no_scope
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm

FIRST_STAGE_SCOPE = "FirstStageFeatureExtractor"
SECOND_STAGE_SCOPE = "SecondStageFeatureExtractor"

STRIDES = (8, 16)
OVERRIDE = "override_base_feature_extractor_hyperparams"
# Fields that set up layers; most networks keep the settings they were published with.
LAYER_FIELDS = ("conv_hyperparams", OVERRIDE)

EXTRACTORS: Registry[Callable[..., TwoStageExtractor]] = Registry(
    "Faster R-CNN feature extractor",
    reserved=[f"faster_rcnn_resnet{layers}_fpn_keras" for layers in (50, 101, 152)],
)


class TwoStageExtractor(Protocol):
    """Images to a feature map, and crops of it to features of boxes; holds no state."""

    @property
    def stride(self) -> int:
        """Pixels of the image for each cell of the feature map."""

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        """float32 [B, h, w, 3], pixels 0..255 -> the pixel scale of the network, same shape."""

    def proposal_features(self, images: tf.Tensor) -> tf.Tensor:
        """Normalized [B, H, W, 3] -> feature map [B, h, w, C]; h = H / stride, rounded up.

        Its variables are in the scope `FirstStageFeatureExtractor`.

        Raises:
            ConfigError: if the images are too small for the network.
        """

    def box_features(self, crops: tf.Tensor) -> tf.Tensor:
        """Crops of the feature map [N, h, w, C] -> [N, h', w', C'].

        R-FCN gives it the whole feature map. Its variables are in the scope
        `SecondStageFeatureExtractor`; further calls use the same.
        """

    def classifier_name(self, name: str) -> Optional[str]:
        """Name of a variable in a classifier's checkpoint, from its name in the detector.

        None for variables outside the two scopes. Variables of the second stage take precedence
        where two have the same name there: a ResNet's `block4`, which the first stage creates and
        does not use.
        """


@dataclass(frozen=True)
class ExtractorOptions:
    """Settings of a `FasterRcnnFeatureExtractor` message.

    Attributes:
        is_training: Whether the model trains.
        train_batch_norm: Whether batch norm uses and learns from batch statistics.
        stride: Pixels of the image for each cell of the feature map.
        conv_scope: Hyperparameters that replace those of the recipe.
    """

    is_training: bool = False
    train_batch_norm: bool = False
    stride: int = 16
    conv_scope: ArgScope = no_scope


Stage = Callable[[tf.Tensor, ExtractorOptions], tf.Tensor]


@dataclass(frozen=True)
class Recipe:
    """How to make an extractor.

    Attributes:
        scope: Variable scope of the network in either stage; empty where it has none.
        arg_scope: Argument scope the network is trained with.
        first_stage: (images, options) -> feature map.
        second_stage: (crops, options) -> features of boxes.
        normalize: Pixel scaling.
        min_size: Least height and width of an image, in pixels.
        strides: What `first_stage_features_stride` may be.
        ignores: Fields without effect, as in the reference; setting them is no error.
        renamed_in_classifier: Beginning of a name in the second stage, and what a classifier's
            checkpoint has in its place.
        classifier_suffix: Follows a variable's name in checkpoints of the classifier.
    """

    scope: str
    arg_scope: ArgScope
    first_stage: Stage
    second_stage: Stage
    normalize: Callable[[tf.Tensor], tf.Tensor] = to_plus_minus_one
    min_size: int = 1
    strides: Tuple[int, ...] = STRIDES
    ignores: Tuple[str, ...] = LAYER_FIELDS
    renamed_in_classifier: Tuple[str, str] = ("", "")
    classifier_suffix: str = ""


@dataclass(frozen=True)
class RecipeExtractor:
    """An extractor made of a recipe and the configuration's options."""

    recipe: Recipe
    options: ExtractorOptions

    @property
    def stride(self) -> int:
        return self.options.stride

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        return self.recipe.normalize(images)

    def proposal_features(self, images: tf.Tensor) -> tf.Tensor:
        images = large_enough(images, self.recipe.min_size)
        with tf1.variable_scope(FIRST_STAGE_SCOPE), self._network_scopes():
            return self.recipe.first_stage(images, self.options)

    def box_features(self, crops: tf.Tensor) -> tf.Tensor:
        scope = tf1.variable_scope(SECOND_STAGE_SCOPE, reuse=tf1.AUTO_REUSE)
        with scope, self._network_scopes():
            return self.recipe.second_stage(crops, self.options)

    def classifier_name(self, name: str) -> Optional[str]:
        stage, _, inner = name.partition("/")
        if stage not in (FIRST_STAGE_SCOPE, SECOND_STAGE_SCOPE):
            return None
        begins, instead = self.recipe.renamed_in_classifier
        if stage == SECOND_STAGE_SCOPE and inner.startswith(begins):
            inner = instead + inner[len(begins) :]
        return inner + self.recipe.classifier_suffix

    @contextlib.contextmanager
    def _network_scopes(self) -> Iterator[None]:
        scope = self.recipe.scope
        learns = self.options.train_batch_norm
        with (
            tf1.variable_scope(scope) if scope else contextlib.nullcontext(),
            self.recipe.arg_scope(),
            slim.arg_scope(list(BATCH_NORMS), is_training=learns),
            # Exports hold constants, which TensorFlow folds itself.
            slim.arg_scope([batch_norm], folds=self.options.is_training),
            self.options.conv_scope(),
        ):
            yield


def options_of(recipe: Recipe, config: Any, is_training: bool) -> ExtractorOptions:
    """Options of a type; fields that it ignores have their defaults.

    Args:
        recipe: Of the type.
        config: `FasterRcnnFeatureExtractor` message.
        is_training: Whether the model trains.

    Raises:
        ConfigError: if a field is set that the type does not know, or is out of range.
    """
    check_supported(config, "feature_extractor")
    stride = config.first_stage_features_stride
    if stride not in recipe.strides:
        allowed = " or ".join(map(str, recipe.strides))
        raise ConfigError(
            f"feature_extractor.first_stage_features_stride must be {allowed} for {config.type}; "
            f"got {stride}"
        )
    known = type(config)()
    known.CopyFrom(config)
    for field in recipe.ignores:
        known.ClearField(field)
    learns = is_training and known.batch_norm_trainable
    overrides = known.override_base_feature_extractor_hyperparams
    return ExtractorOptions(
        is_training=is_training,
        train_batch_norm=learns,
        stride=known.first_stage_features_stride,
        conv_scope=make_arg_scope(known.conv_hyperparams, learns) if overrides else no_scope,
    )


def register_recipe(name: str, recipe: Recipe, also: Sequence[str] = ()) -> None:
    """Makes `feature_extractor { type: name }` known, under the names in `also` too."""

    @EXTRACTORS.register(name, *also)
    def make(config: Any, is_training: bool) -> RecipeExtractor:
        return RecipeExtractor(recipe, options_of(recipe, config, is_training))


def make_extractor(config: Any, is_training: bool) -> TwoStageExtractor:
    """The extractor of a `FasterRcnnFeatureExtractor` message; builds no graph.

    Args:
        config: The message.
        is_training: Whether the model trains. Batch norm learns only if the message has
            `batch_norm_trainable: true` as well.

    Raises:
        ConfigError: if the type is unknown or an option is out of range.
    """
    return EXTRACTORS.get(config.type)(config, is_training)


def ignored_fields(config: Any) -> Tuple[str, ...]:
    """Fields of a `FasterRcnnFeatureExtractor` message that differ from their default in vain.

    Raises:
        ConfigError: as `make_extractor`.
    """
    recipe = getattr(make_extractor(config, is_training=True), "recipe", None)
    ignores: Tuple[str, ...] = getattr(recipe, "ignores", ())
    if not config.override_base_feature_extractor_hyperparams and OVERRIDE not in ignores:
        ignores = ("conv_hyperparams", *ignores)
    return tuple(
        field
        for field in ignores
        if config.HasField(field) and getattr(config, field) != getattr(type(config)(), field)
    )

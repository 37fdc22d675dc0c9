"""Feature extractors of two-stage detectors, and recipes that describe them.

A classifier's network is cut in two. The first part computes the feature map for proposals from an
image, the second part computes features of boxes from crops of that map. One entry in a module of
this package adds a type string of `feature_extractor { type: … }`.

Faster R-CNN, R-FCN, Mask R-CNN and Context R-CNN use all of them in the same way:

    extractor = make_extractor(config.feature_extractor, is_training)
    features = extractor.proposal_features(extractor.normalize(resized_images))
    box_features = extractor.box_features(crops_of(features))
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Iterator, List, Optional, Sequence, Tuple

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
from estimator_det.extractors.ssd.recipe import FpnLevels
from estimator_det.images.resize import static_size
from estimator_det.nets.hyperparams import (
    NORMALIZERS,
    ArgScope,
    Normalizer,
    no_scope,
)
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm
from estimator_det.nets.object_paths import (
    ObjectPaths,
    Paths,
    classifier_paths,
    functional,
    nested,
)
from estimator_det.protos import faster_rcnn_pb2

FIRST_STAGE_SCOPE = "FirstStageFeatureExtractor"
SECOND_STAGE_SCOPE = "SecondStageFeatureExtractor"

STRIDES = (8, 16)
PYRAMID_STEP = 32  # pixels
# Fields that configure layers; most networks use the published settings instead.
LAYER_FIELDS = ("conv_hyperparams", OVERRIDE)

EXTRACTORS: Registry[TwoStageRecipe] = Registry(
    "Faster R-CNN feature extractor",
    tpu="use faster_rcnn_resnet50, whose layers all run on TPU",
    chosen_by="FasterRcnnFeatureExtractor.type",
)


@dataclass(frozen=True)
class TwoStageOptions:
    """Settings of a `FasterRcnnFeatureExtractor` message."""

    is_training: bool = False  # True if the model trains
    train_batch_norm: bool = False  # True if batch norm uses batch statistics and learns
    stride: int = 16  # pixels of the image for each cell of the feature map
    conv_scope: ArgScope = no_scope  # hyperparameters that replace those of the recipe
    # Layers after the backbone have these hyperparameters and levels of a feature pyramid.
    neck_scope: ArgScope = no_scope
    normalizer: Optional[Normalizer] = None
    fpn: Optional[FpnLevels] = None


Stage = Callable[[tf.Tensor, TwoStageOptions], Any]


@dataclass(frozen=True)
class TwoStageRecipe(RecipeRules):
    """Parts and rules of an extractor; its call with a message builds the extractor."""

    scope: str  # variable scope of the network in either stage; empty for none
    arg_scope: ArgScope  # argument scope with which the network is trained
    first_stage: Stage  # (images, options) -> feature map, or tuple of maps, finest first
    second_stage: Stage  # (crops, options) -> features of boxes
    normalize: Callable[[tf.Tensor], tf.Tensor] = scale_to_unit_range  # pixel scaling
    min_size: int = 1  # least height and width of an image, in pixels
    strides: Tuple[int, ...] = STRIDES  # allowed values of `first_stage_features_stride`
    # Fields without effect, like in the reference; setting them is allowed.
    ignores: Tuple[str, ...] = LAYER_FIELDS
    # Prefix of a name in the second stage, and its replacement in a classifier's checkpoint.
    renamed_in_classifier: Tuple[str, str] = ("", "")
    classifier_suffix: str = ""  # end of a variable's name in checkpoints of the classifier
    object_paths: Optional[ObjectPaths] = None  # below the extractor of proposals, for its layers
    second_paths: ObjectPaths = functional  # the same of the second stage
    # True if `fpn` sets the levels of a pyramid, which pads images to multiples of `PYRAMID_STEP`.
    takes_fpn: bool = False
    has_extra_layers: bool = False  # True if there are layers after the backbone

    functions: ClassVar[Tuple[str, ...]] = ("first_stage", "second_stage")

    def __call__(
        self, config: faster_rcnn_pb2.FasterRcnnFeatureExtractor, is_training: bool
    ) -> TwoStageExtractor:
        recipe = self.with_parameters(config)
        return TwoStageExtractor(recipe, _make_options(recipe, config, is_training))


@dataclass(frozen=True)
class TwoStageExtractor:
    """Extractor with a recipe and the configuration's options; has no state between calls."""

    recipe: TwoStageRecipe
    options: TwoStageOptions

    @property
    def stride(self) -> int:
        """Pixels of the image for each cell of the feature map."""
        return self.options.stride

    def map_sizes(self, height: int, width: int) -> List[Tuple[int, int]]:
        """Rows and columns of the feature maps of an image."""
        if self.options.fpn is None:
            stride = self.options.stride
            return [(-(-height // stride), -(-width // stride))]
        padded = [-(-side // PYRAMID_STEP) * PYRAMID_STEP for side in (height, width)]
        strides = (
            2**level for level in range(self.options.fpn.min_level, self.options.fpn.max_level + 1)
        )
        return [(-(-padded[0] // stride), -(-padded[1] // stride)) for stride in strides]

    def normalize(self, images: tf.Tensor) -> tf.Tensor:
        """Scales float32 [B, h, w, 3], pixels 0..255, for the network; same shape."""
        return self.recipe.normalize(images)

    def proposal_features(self, images: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        """Computes feature maps [B, h, w, C] of normalized images.

        There is one, with h = H / stride rounded up, or those of a pyramid, the finest first.
        Variables are in the scope `FirstStageFeatureExtractor`.
        """
        images = assert_image_size(images, self.recipe.min_size)
        with tf1.variable_scope(FIRST_STAGE_SCOPE), self._network_scopes():
            maps = self.recipe.first_stage(images, self.options)
        return maps if isinstance(maps, tuple) else (maps,)

    def box_features(self, crops: tf.Tensor) -> tf.Tensor:
        """Computes [N, h', w', C'] from crops [N, h, w, C] of the feature map.

        R-FCN passes the whole feature map. Variables are in the scope
        `SecondStageFeatureExtractor`; further calls share them.
        """
        scope = tf1.variable_scope(SECOND_STAGE_SCOPE, reuse=tf1.AUTO_REUSE)
        with scope, self._network_scopes():
            return self.recipe.second_stage(crops, self.options)

    def classifier_name(self, name: str) -> Optional[str]:
        """Name of a variable in a classifier's checkpoint, from its name in the detector.

        None for variables outside the two scopes. If two variables have the same name there, the
        second stage wins: a ResNet's first stage creates a `block4`, too, but does not use it.
        """
        stage, _, inner = name.partition("/")
        if stage not in (FIRST_STAGE_SCOPE, SECOND_STAGE_SCOPE):
            return None
        prefix, replacement = self.recipe.renamed_in_classifier
        if stage == SECOND_STAGE_SCOPE and inner.startswith(prefix):
            inner = replacement + inner[len(prefix) :]
        return inner + self.recipe.classifier_suffix

    def object_paths(self, scopes: Sequence[str], checkpoint_type: str = "full") -> Paths:
        """Paths in object-based checkpoints of the layers in the scopes of both stages.

        A classifier is one functional model, or the backbone below a pyramid.
        """
        if self.recipe.object_paths is None:
            return {}
        stages = []
        for stage, paths_of in (
            (FIRST_STAGE_SCOPE, self.recipe.object_paths),
            (SECOND_STAGE_SCOPE, self.recipe.second_paths),
        ):
            prefix = f"{stage}/{self.recipe.scope}/"
            inner = [scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)]
            stages.append({prefix + scope: path for scope, path in paths_of(inner).items()})
        if checkpoint_type != "classification":
            owners = ("proposal", "box_classifier")
            return {
                scope: f"model/_feature_extractor_for_{owner}_features/{path}"
                for owner, paths in zip(owners, stages)
                for scope, path in paths.items()
            }
        if self.recipe.takes_fpn:
            return classifier_paths(stages[0])
        return nested("feature_extractor", functional([*stages[0], *stages[1]]))

    @contextlib.contextmanager
    def _network_scopes(self) -> Iterator[None]:
        scope = self.recipe.scope
        learns = self.options.train_batch_norm
        with (
            tf1.variable_scope(scope) if scope else contextlib.nullcontext(),
            self.recipe.arg_scope(),
            slim.arg_scope(list(BATCH_NORMS), is_training=learns),
            # Exported graphs hold constants, which TensorFlow folds itself.
            slim.arg_scope([batch_norm], folds=self.options.is_training),
            self.options.conv_scope(),
        ):
            yield


def _make_options(
    recipe: TwoStageRecipe, config: faster_rcnn_pb2.FasterRcnnFeatureExtractor, is_training: bool
) -> TwoStageOptions:
    """Reads the options of a type; fields that the type ignores have their defaults."""
    effective_config = recipe.effective_fields(config)
    learns = is_training and effective_config.batch_norm_trainable
    scope, neck_scope = recipe.hyperparam_scopes(effective_config, learns)
    fpn = effective_config.fpn
    kind = effective_config.conv_hyperparams.WhichOneof("normalizer_oneof")
    return TwoStageOptions(
        is_training=is_training,
        train_batch_norm=learns,
        stride=effective_config.first_stage_features_stride,
        conv_scope=scope,
        neck_scope=neck_scope,
        normalizer=NORMALIZERS[kind] if kind else None,
        fpn=FpnLevels(fpn.min_level, fpn.max_level, fpn.additional_layer_depth)
        if recipe.takes_fpn
        else None,
    )


@rules(faster_rcnn_pb2.FasterRcnnFeatureExtractor)
def _check_extractor(
    config: faster_rcnn_pb2.FasterRcnnFeatureExtractor, at: str
) -> Iterator[Problem]:
    if config.type not in EXTRACTORS:
        return
    recipe = EXTRACTORS.get(config.type)
    yield from recipe.check(config, at)
    if config.HasField("fpn") and not recipe.takes_fpn:
        yield error(f"{at}.fpn", f"is not supported by {config.type}", "remove it")
    stride, allowed = config.first_stage_features_stride, " or ".join(map(str, recipe.strides))
    if stride not in recipe.strides:
        message = f"must be {allowed} for {config.type}; given: {stride}"
        yield error(f"{at}.first_stage_features_stride", message, f"set it to {allowed}")


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_size(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    kind, sides = config.feature_extractor.type, static_size(config.image_resizer)
    if sides is not None and kind in EXTRACTORS:
        yield from check_image_size(sides, EXTRACTORS.get(kind).min_size, f"{at}.image_resizer")


def register_recipe(name: str, recipe: TwoStageRecipe, aliases: Sequence[str] = ()) -> None:
    """Registers `feature_extractor { type: name }`, and the same with each of `aliases`."""
    EXTRACTORS.register(name, *aliases)(recipe)


def make_extractor(
    config: faster_rcnn_pb2.FasterRcnnFeatureExtractor, is_training: bool
) -> TwoStageExtractor:
    """Builds the extractor of a `FasterRcnnFeatureExtractor` message, but no graph.

    If the model trains, batch norm learns only if the message has `batch_norm_trainable: true`.
    """
    return EXTRACTORS.get(config.type)(config, is_training)

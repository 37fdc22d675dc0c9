"""Layout of networks of two-stage detectors, and extractors with this layout.

A classifier's network is cut in two. The first part computes the feature map for proposals from an
image, the second part computes features of boxes from crops of that map.

Faster R-CNN, R-FCN, Mask R-CNN and Context R-CNN use all of them in the same way:

    extractor = make_extractor(config.feature_extractor, is_training)
    features = extractor.proposal_features(preprocessed_images)
    box_features = extractor.box_features(crops_of(features))
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Iterator, List, Optional, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.extractors.maps import DEFAULT_LEVELS, FpnLevels
from estimator_det.extractors.recipe import NetworkLayout, Recipe, assert_image_size
from estimator_det.nets.hyperparams import ArgScope, Normalizer, no_scope
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm
from estimator_det.nets.object_paths import (
    ObjectPaths,
    Paths,
    classifier_paths,
    functional,
    nested,
)

FIRST_STAGE_SCOPE = "FirstStageFeatureExtractor"
SECOND_STAGE_SCOPE = "SecondStageFeatureExtractor"

STRIDES = (8, 16)
PYRAMID_STEP = 32  # pixels


@dataclass(frozen=True)
class StageOptions:
    """Settings of a `FasterRcnnFeatureExtractor` message."""

    is_training: bool = False  # True if the model trains
    train_batch_norm: bool = False  # True if batch norm uses batch statistics and learns
    stride: int = 16  # pixels of the image for each cell of the feature map
    conv_scope: ArgScope = no_scope  # replaces hyperparameters of the recipe
    # Layers after the backbone have these hyperparameters and levels of a feature pyramid.
    neck_scope: ArgScope = no_scope
    normalizer: Optional[Normalizer] = None
    fpn: FpnLevels = DEFAULT_LEVELS


StageFunction = Callable[[tf.Tensor, StageOptions], Any]


@dataclass(frozen=True)
class StageLayout(NetworkLayout):
    """The two parts of a network."""

    first: StageFunction  # (images, options) -> feature map, or tuple of maps, finest first
    second: StageFunction  # (crops, options) -> features of boxes
    strides: Tuple[int, ...] = STRIDES  # allowed values of `first_stage_features_stride`
    # Prefix of a name in the second stage, and its replacement in a classifier's checkpoint.
    renamed_in_classifier: Tuple[str, str] = ("", "")
    second_paths: ObjectPaths = functional  # paths of the layers of the second stage

    functions: ClassVar[Tuple[str, ...]] = ("first", "second")


@dataclass(frozen=True)
class StageExtractor:
    """Extractor with a recipe and the configuration's options; has no state between calls."""

    recipe: Recipe[StageLayout]
    options: StageOptions

    @property
    def stride(self) -> int:
        """Pixels of the image for each cell of the feature map."""
        return self.options.stride

    @property
    def _is_pyramid(self) -> bool:
        """True if `fpn` sets the levels of a pyramid, which pads images to `PYRAMID_STEP`."""
        return "fpn" in self.recipe.takes

    def map_sizes(self, height: int, width: int) -> List[Tuple[int, int]]:
        """Rows and columns of the feature maps of an image."""
        if not self._is_pyramid:
            stride = self.options.stride
            return [(-(-height // stride), -(-width // stride))]
        padded = [-(-side // PYRAMID_STEP) * PYRAMID_STEP for side in (height, width)]
        strides = (
            2**level for level in range(self.options.fpn.min_level, self.options.fpn.max_level + 1)
        )
        return [(-(-padded[0] // stride), -(-padded[1] // stride)) for stride in strides]

    def proposal_features(self, images: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        """Computes feature maps [B, h, w, C] of normalized images.

        A pyramid has several maps, the finest first. Other networks have one map, and its h is
        H / stride, rounded up. Variables are in the scope `FirstStageFeatureExtractor`.
        """
        images = assert_image_size(images, self.recipe.min_size)
        with tf1.variable_scope(FIRST_STAGE_SCOPE), self._network_scopes():
            maps = self.recipe.layout.first(images, self.options)
        return maps if isinstance(maps, tuple) else (maps,)

    def box_features(self, crops: tf.Tensor) -> tf.Tensor:
        """Computes [N, h', w', C'] from crops [N, h, w, C] of the feature map.

        R-FCN passes the whole feature map. Variables are in the scope
        `SecondStageFeatureExtractor`; further calls share them.
        """
        scope = tf1.variable_scope(SECOND_STAGE_SCOPE, reuse=tf1.AUTO_REUSE)
        with scope, self._network_scopes():
            return self.recipe.layout.second(crops, self.options)

    def classifier_name(self, name: str) -> Optional[str]:
        """Name of a variable in a classifier's checkpoint, from its name in the detector.

        None for variables outside the two scopes. If two variables have the same name there, the
        second stage wins: a ResNet's first stage creates a `block4`, too, but does not use it.
        """
        stage, _, inner = name.partition("/")
        if stage not in (FIRST_STAGE_SCOPE, SECOND_STAGE_SCOPE):
            return None
        prefix, replacement = self.recipe.layout.renamed_in_classifier
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
            (SECOND_STAGE_SCOPE, self.recipe.layout.second_paths),
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
        if self._is_pyramid:
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

"""Two-stage extractors on Inception v2 and Inception-ResNet v2."""

from __future__ import annotations

from typing import ContextManager

from estimator_det.compat import tf
from estimator_det.extractors.two_stage import recipe
from estimator_det.nets import inception, inception_resnet
from estimator_det.nets.normalization import batch_norm, published_scope

V2_MIN_SIZE = 33
V2_CUT = "Mixed_4e"  # the last activation of the first stage
BATCH_NORM_DECAY = 0.9997
BATCH_NORM_EPSILON = 0.001

_first = 1 + [block.name for block in inception.V2_BLOCKS].index(V2_CUT)
V2_FIRST_BLOCKS, V2_SECOND_BLOCKS = inception.V2_BLOCKS[:_first], inception.V2_BLOCKS[_first:]


def _v2_arg_scope() -> ContextManager[None]:
    return published_scope(BATCH_NORM_DECAY, BATCH_NORM_EPSILON, normalizer_fn=batch_norm)


def _v2_first_stage(images: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
    del options  # the layers are fixed
    return inception.inception(images, blocks=V2_FIRST_BLOCKS)[V2_CUT]


def _v2_second_stage(crops: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
    del options  # the layers are fixed
    *_, features = inception.inception(crops, blocks=V2_SECOND_BLOCKS).values()
    return features


def _resnet_v2_first_stage(images: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
    return inception_resnet.first_part(images, options.stride)


def _resnet_v2_second_stage(crops: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
    del options  # the layers are fixed
    return inception_resnet.second_part(crops)


recipe.register_recipe(
    "faster_rcnn_inception_v2",
    recipe.Recipe(
        scope="InceptionV2",
        arg_scope=_v2_arg_scope,
        first_stage=_v2_first_stage,
        second_stage=_v2_second_stage,
        min_size=V2_MIN_SIZE,
        ignores=("first_stage_features_stride", *recipe.LAYER_FIELDS),
    ),
)
recipe.register_recipe(
    "faster_rcnn_inception_resnet_v2",
    recipe.Recipe(
        scope="InceptionResnetV2",
        arg_scope=inception_resnet.arg_scope,
        first_stage=_resnet_v2_first_stage,
        second_stage=_resnet_v2_second_stage,
        renamed_in_classifier=("InceptionResnetV2/Repeat/", "InceptionResnetV2/Repeat_2/"),
    ),
    aliases=("faster_rcnn_inception_resnet_v2_keras",),
)

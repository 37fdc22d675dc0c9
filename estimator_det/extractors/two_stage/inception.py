"""Two-stage extractors on Inception v2 and Inception-ResNet v2."""

from __future__ import annotations

import functools

from estimator_det.extractors.two_stage import recipe
from estimator_det.nets import inception, inception_resnet
from estimator_det.nets.normalization import batch_norm, published_scope

V2_MIN_SIZE = 33
V2_CUT = "Mixed_4e"  # the last activation of the first stage
BATCH_NORM_DECAY = 0.9997
BATCH_NORM_EPSILON = 0.001

_first = 1 + [block.name for block in inception.V2_BLOCKS].index(V2_CUT)
V2_FIRST_BLOCKS, V2_SECOND_BLOCKS = inception.V2_BLOCKS[:_first], inception.V2_BLOCKS[_first:]
V2_LAST = V2_SECOND_BLOCKS[-1].name


recipe.register_recipe(
    "faster_rcnn_inception_v2",
    recipe.Recipe(
        scope="InceptionV2",
        arg_scope=functools.partial(
            published_scope, BATCH_NORM_DECAY, BATCH_NORM_EPSILON, normalizer_fn=batch_norm
        ),
        first_stage=lambda images, _: inception.inception(images, blocks=V2_FIRST_BLOCKS)[V2_CUT],
        second_stage=lambda crops, _: inception.inception(crops, blocks=V2_SECOND_BLOCKS)[V2_LAST],
        min_size=V2_MIN_SIZE,
        ignores=("first_stage_features_stride", *recipe.LAYER_FIELDS),
    ),
)
recipe.register_recipe(
    "faster_rcnn_inception_resnet_v2",
    recipe.Recipe(
        scope="InceptionResnetV2",
        arg_scope=inception_resnet.arg_scope,
        first_stage=lambda images, options: inception_resnet.first_part(images, options.stride),
        second_stage=lambda crops, _: inception_resnet.second_part(crops),
        renamed_in_classifier=("InceptionResnetV2/Repeat/", "InceptionResnetV2/Repeat_2/"),
    ),
    aliases=("faster_rcnn_inception_resnet_v2_keras",),
)

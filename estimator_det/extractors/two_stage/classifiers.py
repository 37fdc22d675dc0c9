"""Two-stage extractors on MobileNet v1, ResNet v1, Inception v2 and Inception-ResNet v2."""

from __future__ import annotations

import functools
from typing import Any, Dict

from estimator_det.compat import tf
from estimator_det.extractors.base import subtract_channel_means
from estimator_det.extractors.two_stage import recipe
from estimator_det.nets import inception, inception_resnet, mobilenet, resnet
from estimator_det.nets.normalization import batch_norm, published_scope

MIN_SIZE = 33
MOBILENET_CUT = 12  # layers of the first stage, down to stride 16
INCEPTION_CUT = "Mixed_4e"  # the last activation of the first stage
INCEPTION_BATCH_NORM = (0.9997, 0.001)  # decay and epsilon


def _last(end_points: Dict[str, tf.Tensor]) -> tf.Tensor:
    return list(end_points.values())[-1]


def _mobilenet(images: tf.Tensor, **part: Any) -> tf.Tensor:
    return _last(mobilenet.mobilenet_v1(images, int, **part))


# No published two-stage detector has MobileNet v1, but a classifier's checkpoint has all its
# variables. Unlike the other types it uses `conv_hyperparams`, so it can also be trained from
# scratch.
recipe.register_recipe(
    "faster_rcnn_mobilenet_v1",
    recipe.Recipe(
        scope="MobilenetV1",
        arg_scope=mobilenet.v1_arg_scope,
        first_stage=lambda images, _: _mobilenet(
            images, layers=mobilenet.V1_LAYERS[:MOBILENET_CUT]
        ),
        second_stage=lambda crops, _: _mobilenet(
            crops, layers=mobilenet.V1_LAYERS[MOBILENET_CUT:], first_number=MOBILENET_CUT
        ),
        min_size=MIN_SIZE,
        ignores=("first_stage_features_stride",),
    ),
)


def _resnet(layers: int) -> recipe.Recipe:
    """Cuts the network like the paper of ResNets: blocks 1 to 3 for the map, block 4 for boxes."""
    block = resnet.V1_BLOCKS[layers][3]
    return recipe.Recipe(
        scope=f"resnet_v1_{layers}",
        arg_scope=functools.partial(resnet.v1_arg_scope, 0.0),  # no penalty, as in the reference
        # Block 4 is built, too, although nothing uses it, because checkpoints have its variables.
        first_stage=lambda images, options: resnet.resnet_v1(
            images, layers, output_stride=options.stride
        )["block3"],
        second_stage=lambda crops, _: resnet.build_block(crops, "block4", block, block.bottleneck),
        normalize=subtract_channel_means,
        min_size=MIN_SIZE,
    )


for _layers in resnet.V1_BLOCKS:
    recipe.register_recipe(
        f"faster_rcnn_resnet{_layers}",
        _resnet(_layers),
    )

_first = 1 + [block.name for block in inception.V2_BLOCKS].index(INCEPTION_CUT)

recipe.register_recipe(
    "faster_rcnn_inception_v2",
    recipe.Recipe(
        scope="InceptionV2",
        arg_scope=functools.partial(
            published_scope, *INCEPTION_BATCH_NORM, normalizer_fn=batch_norm
        ),
        first_stage=lambda images, _: _last(
            inception.inception(images, blocks=inception.V2_BLOCKS[:_first])
        ),
        second_stage=lambda crops, _: _last(
            inception.inception(crops, blocks=inception.V2_BLOCKS[_first:])
        ),
        min_size=MIN_SIZE,
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
)

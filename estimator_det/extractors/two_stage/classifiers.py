"""Two-stage extractors on MobileNet v1, ResNet v1, Inception v2 and Inception-ResNet v2."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Sequence

from estimator_det.compat import slim, tf
from estimator_det.extractors.base import subtract_channel_means
from estimator_det.extractors.ssd import recipe as ssd_recipe
from estimator_det.extractors.two_stage import recipe
from estimator_det.images.resize import pad_to_multiple
from estimator_det.nets import inception, inception_resnet, mobilenet, resnet
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.necks import fpn
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.object_paths import KERAS, ObjectPaths, functional

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
    recipe.TwoStageRecipe(
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


def _resnet(layers: int) -> recipe.TwoStageRecipe:
    """Cuts the network like the paper of ResNets: blocks 1 to 3 for the map, block 4 for boxes."""
    block = resnet.V1_BLOCKS[layers][3]
    return recipe.TwoStageRecipe(
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

RESNET_BLOCKS = ("block1", "block2", "block3", "block4")
FPN_FEATURES = 1024  # features of a box


def _keras_resnet(layers: int) -> recipe.TwoStageRecipe:
    """The same cut of the network of the TF2 line; block 4 halves the resolution of crops."""
    return recipe.TwoStageRecipe(
        scope=f"resnet_v1_{layers}{KERAS}",
        arg_scope=functools.partial(resnet.v1_arg_scope, 0.0, tf2_line=True),
        first_stage=lambda images, _: _last(
            resnet.keras_resnet_v1(images, layers, num_blocks=len(RESNET_BLOCKS) - 1)
        ),
        second_stage=lambda crops, _: resnet.build_keras_block(crops, len(RESNET_BLOCKS), layers),
        normalize=subtract_channel_means,
        min_size=MIN_SIZE,
        strides=(16,),
        ignores=(),
        object_paths=_paths(resnet.keras_order),
        second_paths=_paths(resnet.keras_order),
    )


def _paths(order: Callable[[Sequence[str]], Sequence[str]]) -> ObjectPaths:
    """Paths of a stage whose layers Keras counts in an order."""
    return lambda scopes: functional(order(scopes))


def _keras_resnet_fpn(layers: int) -> recipe.TwoStageRecipe:
    """A feature pyramid of all blocks; two dense layers compute the features of a box."""
    pyramid = ssd_recipe.fpn_pyramid(RESNET_BLOCKS, "bottom_up_block{}", 5, plain=True)

    def first_stage(images: tf.Tensor, options: recipe.TwoStageOptions) -> Any:
        end_points = resnet.keras_resnet_v1(pad_to_multiple(images, recipe.PYRAMID_STEP), layers)
        with options.neck_scope():
            assert options.fpn is not None
            neck = ssd_recipe.ExtractorOptions(no_scope, options.fpn, tf2_line=True)
            return pyramid(end_points, neck)

    def second_stage(crops: tf.Tensor, options: recipe.TwoStageOptions) -> tf.Tensor:
        net = tf.reshape(crops, [-1, math.prod(crops.shape[1:])])
        net = slim.fully_connected(net, FPN_FEATURES, scope="fc1")
        if options.normalizer is not None:
            with options.neck_scope():
                net = options.normalizer(net, scope="fc1/BatchNorm")
        net = slim.fully_connected(net, FPN_FEATURES, scope="fc2")
        return net[:, tf.newaxis, tf.newaxis, :]

    return recipe.TwoStageRecipe(
        scope=f"resnet_v1_{layers}{KERAS}",
        arg_scope=functools.partial(resnet.v1_arg_scope, 0.0, tf2_line=True),
        first_stage=first_stage,
        second_stage=second_stage,
        normalize=subtract_channel_means,
        min_size=MIN_SIZE,
        strides=(16,),
        ignores=(),
        has_extra_layers=True,
        object_paths=ssd_recipe.keras_paths(
            functools.partial(fpn.object_paths, prefix=""), resnet.keras_order
        ),
        takes_fpn=True,
    )


for _layers in resnet.V1_BLOCKS:
    recipe.register_recipe(f"faster_rcnn_resnet{_layers}{KERAS}", _keras_resnet(_layers))
    recipe.register_recipe(f"faster_rcnn_resnet{_layers}_fpn{KERAS}", _keras_resnet_fpn(_layers))

_first = 1 + [block.name for block in inception.V2_BLOCKS].index(INCEPTION_CUT)

recipe.register_recipe(
    "faster_rcnn_inception_v2",
    recipe.TwoStageRecipe(
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
    recipe.TwoStageRecipe(
        scope="InceptionResnetV2",
        arg_scope=inception_resnet.arg_scope,
        first_stage=lambda images, options: inception_resnet.first_part(images, options.stride),
        second_stage=lambda crops, _: inception_resnet.second_part(crops),
        renamed_in_classifier=("InceptionResnetV2/Repeat/", "InceptionResnetV2/Repeat_2/"),
    ),
)
recipe.register_recipe(
    f"faster_rcnn_inception_resnet_v2{KERAS}",
    recipe.TwoStageRecipe(
        scope=f"InceptionResnetV2{KERAS}",
        arg_scope=inception_resnet.arg_scope,
        first_stage=lambda images, options: inception_resnet.first_part(images, options.stride),
        second_stage=lambda crops, _: inception_resnet.second_part(crops, tf2_line=True),
        strides=(16,),
        object_paths=_paths(inception_resnet.keras_order),
        second_paths=_paths(inception_resnet.keras_order),
    ),
)

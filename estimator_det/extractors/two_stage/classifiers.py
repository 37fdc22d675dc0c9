"""Two-stage extractors on MobileNet v1, ResNet v1, Inception v2 and Inception-ResNet v2."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Sequence

from estimator_det.compat import slim, tf
from estimator_det.extractors.maps import MapOptions, fpn_pyramid, keras_paths
from estimator_det.extractors.recipe import Recipe, subtract_channel_means
from estimator_det.extractors.stages import PYRAMID_STEP, StageLayout, StageOptions
from estimator_det.extractors.two_stage.registry import EXTRACTORS, LAYER_FIELDS
from estimator_det.images.resize import pad_to_multiple
from estimator_det.nets import inception, inception_resnet, mobilenet, resnet
from estimator_det.nets.necks import fpn
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.object_paths import KERAS, ObjectPaths, functional

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
EXTRACTORS.register("faster_rcnn_mobilenet_v1")(
    Recipe(
        scope="MobilenetV1",
        arg_scope=mobilenet.v1_arg_scope,
        layout=StageLayout(
            lambda images, _: _mobilenet(images, layers=mobilenet.V1_LAYERS[:MOBILENET_CUT]),
            lambda crops, _: _mobilenet(
                crops, layers=mobilenet.V1_LAYERS[MOBILENET_CUT:], first_number=MOBILENET_CUT
            ),
        ),
        ignores=("first_stage_features_stride",),
        has_extra_layers=False,
    ),
)


def _resnet(layers: int) -> Recipe[StageLayout]:
    """Cuts the network like the paper of ResNets: blocks 1 to 3 for the map, block 4 for boxes."""
    block = resnet.V1_BLOCKS[layers][3]
    return Recipe(
        scope=f"resnet_v1_{layers}",
        arg_scope=functools.partial(resnet.v1_arg_scope, 0.0),  # no penalty, as in the API
        layout=StageLayout(
            # Block 4 is built, too, although nothing uses it: checkpoints have its variables.
            lambda images, options: resnet.resnet_v1(images, layers, output_stride=options.stride)[
                "block3"
            ],
            lambda crops, _: resnet.build_block(crops, "block4", block, block.bottleneck),
        ),
        normalize=subtract_channel_means,
        ignores=LAYER_FIELDS,
    )


for _layers in resnet.V1_BLOCKS:
    EXTRACTORS.register(f"faster_rcnn_resnet{_layers}")(_resnet(_layers))

RESNET_BLOCKS = ("block1", "block2", "block3", "block4")
FPN_FEATURES = 1024  # features of a box


def _keras_resnet(layers: int) -> Recipe[StageLayout]:
    """The same cut of the network of the TF2 line; block 4 halves the resolution of crops."""
    return Recipe(
        scope=f"resnet_v1_{layers}{KERAS}",
        arg_scope=functools.partial(resnet.v1_arg_scope, 0.0, tf2_line=True),
        layout=StageLayout(
            lambda images, _: _last(
                resnet.keras_resnet_v1(images, layers, num_blocks=len(RESNET_BLOCKS) - 1)
            ),
            lambda crops, _: resnet.build_keras_block(crops, len(RESNET_BLOCKS), layers),
            strides=(16,),
            second_paths=_paths(resnet.keras_order),
        ),
        normalize=subtract_channel_means,
        has_extra_layers=False,
        object_paths=_paths(resnet.keras_order),
    )


def _paths(order: Callable[[Sequence[str]], Sequence[str]]) -> ObjectPaths:
    """Paths of a stage whose layers Keras counts in an order."""
    return lambda scopes: functional(order(scopes))


def _keras_resnet_fpn(layers: int) -> Recipe[StageLayout]:
    """A feature pyramid of all blocks; two dense layers compute the features of a box."""
    pyramid = fpn_pyramid(RESNET_BLOCKS, "bottom_up_block{}", 5, plain=True)

    def first_stage(images: tf.Tensor, options: StageOptions) -> Any:
        end_points = resnet.keras_resnet_v1(pad_to_multiple(images, PYRAMID_STEP), layers)
        with options.neck_scope():
            return pyramid(end_points, MapOptions(fpn=options.fpn, tf2_line=True))

    def second_stage(crops: tf.Tensor, options: StageOptions) -> tf.Tensor:
        net = tf.reshape(crops, [-1, math.prod(crops.shape[1:])])
        net = slim.fully_connected(net, FPN_FEATURES, scope="fc1")
        if options.normalizer is not None:
            with options.neck_scope():
                net = options.normalizer(net, scope="fc1/BatchNorm")
        net = slim.fully_connected(net, FPN_FEATURES, scope="fc2")
        return net[:, tf.newaxis, tf.newaxis, :]

    return Recipe(
        scope=f"resnet_v1_{layers}{KERAS}",
        arg_scope=functools.partial(resnet.v1_arg_scope, 0.0, tf2_line=True),
        layout=StageLayout(first_stage, second_stage, strides=(16,)),
        normalize=subtract_channel_means,
        takes=("fpn",),
        object_paths=keras_paths(
            functools.partial(fpn.object_paths, prefix=""), resnet.keras_order
        ),
    )


for _layers in resnet.V1_BLOCKS:
    EXTRACTORS.register(f"faster_rcnn_resnet{_layers}{KERAS}")(_keras_resnet(_layers))
    EXTRACTORS.register(f"faster_rcnn_resnet{_layers}_fpn{KERAS}")(_keras_resnet_fpn(_layers))

_first = 1 + [block.name for block in inception.V2_BLOCKS].index(INCEPTION_CUT)

EXTRACTORS.register("faster_rcnn_inception_v2")(
    Recipe(
        scope="InceptionV2",
        arg_scope=functools.partial(
            published_scope, *INCEPTION_BATCH_NORM, normalizer_fn=batch_norm
        ),
        layout=StageLayout(
            lambda images, _: _last(
                inception.inception(images, blocks=inception.V2_BLOCKS[:_first])
            ),
            lambda crops, _: _last(inception.inception(crops, blocks=inception.V2_BLOCKS[_first:])),
        ),
        ignores=("first_stage_features_stride", *LAYER_FIELDS),
    ),
)
EXTRACTORS.register("faster_rcnn_inception_resnet_v2")(
    Recipe(
        scope="InceptionResnetV2",
        arg_scope=inception_resnet.arg_scope,
        layout=StageLayout(
            lambda images, options: inception_resnet.first_part(images, options.stride),
            lambda crops, _: inception_resnet.second_part(crops),
            renamed_in_classifier=("InceptionResnetV2/Repeat/", "InceptionResnetV2/Repeat_2/"),
        ),
        min_size=1,
        ignores=LAYER_FIELDS,
    ),
)
EXTRACTORS.register(f"faster_rcnn_inception_resnet_v2{KERAS}")(
    Recipe(
        scope=f"InceptionResnetV2{KERAS}",
        arg_scope=inception_resnet.arg_scope,
        layout=StageLayout(
            lambda images, options: inception_resnet.first_part(images, options.stride),
            lambda crops, _: inception_resnet.second_part(crops, tf2_line=True),
            strides=(16,),
            second_paths=_paths(inception_resnet.keras_order),
        ),
        min_size=1,
        ignores=LAYER_FIELDS,
        object_paths=_paths(inception_resnet.keras_order),
    ),
)

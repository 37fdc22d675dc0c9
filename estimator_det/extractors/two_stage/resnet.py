"""Two-stage extractors on ResNet v1: blocks 1 to 3 for the feature map, block 4 for boxes.

Ren et al., "Faster R-CNN", 2015, with the network cut as in He et al., "Deep Residual Learning for
Image Recognition", 2015.
"""

from __future__ import annotations

import functools

from estimator_det.compat import tf
from estimator_det.extractors.base import subtract_channel_means
from estimator_det.extractors.two_stage import recipe
from estimator_det.nets import resnet

MIN_SIZE = 33
# The reference has no penalty on these weights.
WEIGHT_DECAY = 0.0


def _first_stage(layers: int) -> recipe.Stage:
    def build(images: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
        # Block 4 is built, too, although nothing uses it, because checkpoints have its variables.
        return resnet.resnet_v1(images, layers, output_stride=options.stride)["block3"]

    return build


def _second_stage(layers: int) -> recipe.Stage:
    def build(crops: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
        del options  # the block is fixed
        block = resnet.V1_BLOCKS[layers][3]
        return resnet.build_block(crops, "block4", block, block.bottleneck)

    return build


for _layers in resnet.V1_BLOCKS:
    recipe.register_recipe(
        f"faster_rcnn_resnet{_layers}",
        recipe.Recipe(
            scope=f"resnet_v1_{_layers}",
            arg_scope=functools.partial(resnet.v1_arg_scope, WEIGHT_DECAY),
            first_stage=_first_stage(_layers),
            second_stage=_second_stage(_layers),
            normalize=subtract_channel_means,
            min_size=MIN_SIZE,
        ),
        aliases=(f"faster_rcnn_resnet{_layers}_keras",),
    )

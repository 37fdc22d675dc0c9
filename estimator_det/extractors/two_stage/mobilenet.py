"""The two-stage extractor on MobileNet v1, the smallest one.

Howard et al., "MobileNets", 2017. No published two-stage detector has this network, but a
classifier's checkpoint has all its variables. Unlike the other types it uses `conv_hyperparams`,
so it can also be trained from scratch.
"""

from __future__ import annotations

from estimator_det.compat import tf
from estimator_det.extractors.two_stage import recipe
from estimator_det.nets import mobilenet

MIN_SIZE = 33
CUT = 12  # layers of the first stage, down to stride 16


def _first_stage(images: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
    del options  # the layers are fixed
    *_, features = mobilenet.mobilenet_v1(images, int, layers=mobilenet.V1_LAYERS[:CUT]).values()
    return features


def _second_stage(crops: tf.Tensor, options: recipe.ExtractorOptions) -> tf.Tensor:
    del options  # the layers are fixed
    layers = mobilenet.V1_LAYERS[CUT:]
    *_, features = mobilenet.mobilenet_v1(crops, int, layers=layers, first_number=CUT).values()
    return features


recipe.register_recipe(
    "faster_rcnn_mobilenet_v1",
    recipe.Recipe(
        scope="MobilenetV1",
        arg_scope=mobilenet.v1_arg_scope,
        first_stage=_first_stage,
        second_stage=_second_stage,
        min_size=MIN_SIZE,
        ignores=("first_stage_features_stride",),
    ),
)

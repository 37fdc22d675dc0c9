"""Two-stage extractors on NASNet-A large and PNASNet-5 large.

The feature map is a concatenation of two activations, of the last cell at stride 16 and of the cell
before it, because cells read two activations. The second stage splits it again.
"""

from __future__ import annotations

import functools
from typing import Tuple

from estimator_det.compat import slim, tf
from estimator_det.extractors.recipe import Recipe
from estimator_det.extractors.stages import StageLayout, StageOptions
from estimator_det.extractors.two_stage.registry import EXTRACTORS, LAYER_FIELDS
from estimator_det.nets import nasnet
from estimator_det.nets.normalization import BATCH_NORMS

MIN_SIZE = 3  # the first convolution is 3x3 and pads nothing


def stages(network: nasnet.NasNet, cells: Tuple[str, str]) -> StageLayout:
    """Builds the stages of a network that is cut after the second of two cells."""
    last = cells[1]

    def first(images: tf.Tensor, options: StageOptions) -> tf.Tensor:
        # Innermost: like in the Object Detection API, batch norm learns in training regardless of
        # `batch_norm_trainable`, which affects the second stage only.
        with slim.arg_scope(list(BATCH_NORMS), is_training=options.is_training):
            end_points = nasnet.searched_network(
                images, network, is_training=options.is_training, last=last
            )
        return tf.concat([end_points[name] for name in cells], axis=-1)

    def second(crops: tf.Tensor, options: StageOptions) -> tf.Tensor:
        previous, inputs = tf.split(crops, 2, axis=-1)
        return nasnet.rest_of_network(
            previous, inputs, network, after=last, is_training=options.is_training
        )

    return StageLayout(first, second, strides=(16,))


def _register(
    name: str, network: nasnet.NasNet, weight_decay: float, cells: Tuple[str, str]
) -> None:
    EXTRACTORS.register(name)(
        Recipe(
            scope="",
            arg_scope=functools.partial(nasnet.arg_scope, weight_decay),
            layout=stages(network, cells),
            min_size=MIN_SIZE,
            ignores=LAYER_FIELDS,
            # The published classifiers are evaluated with moving averages of their variables.
            classifier_suffix="/ExponentialMovingAverage",
        ),
    )


_register(
    "faster_rcnn_nas", nasnet.NASNET_LARGE, nasnet.NASNET_WEIGHT_DECAY, ("Cell_10", "Cell_11")
)
_register("faster_rcnn_pnas", nasnet.PNASNET_LARGE, nasnet.WEIGHT_DECAY, ("Cell_6", "Cell_7"))

"""Convolutional instance masks of regions, the third stage of Mask R-CNN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope
from estimator_det.predictors.box_head import SCOPE

# Weights of log2(features) and log2(classes) in the default depth; the reference's values.
FEATURE_WEIGHT, CLASS_WEIGHT = 2.0, 3.0


@dataclass(frozen=True)
class MaskHead:
    """Enlarges a region's features, then applies convolutions (https://arxiv.org/abs/1703.06870)."""

    num_classes: int  # foreground classes
    conv_scope: ArgScope  # argument scope of the layers
    height: int = 15  # rows of a mask
    width: int = 15  # columns of a mask
    conv_depth: int = 256  # channels of the convolutions; 0 for `default_depth`
    num_layers: int = 2  # convolutions, including the last one
    class_agnostic: bool = False  # one mask for a region instead of one for each class
    # Convolve the small features, then repeat cells to the mask's size.
    convolve_first: bool = False

    def predict(self, features: tf.Tensor) -> tf.Tensor:
        """Predicts mask logits [R, K or 1, height, width] from features [R, h, w, C]."""
        depth = self.conv_depth or default_depth(features.shape[3], self.num_classes)
        # The reference's layer names: Conv, Conv_1, Conv_2, ...
        layers = (f"Conv_{index}" if index else "Conv" for index in range(self.num_layers + 1))
        with tf1.variable_scope(SCOPE, reuse=tf1.AUTO_REUSE), self.conv_scope():
            net = features
            if not self.convolve_first:
                net = tf1.image.resize(net, [self.height, self.width], align_corners=True)
            for _ in range(self.num_layers - 1):
                net = slim.conv2d(net, depth, 3, scope=next(layers))
            if self.convolve_first:
                net = slim.conv2d(self._repeat_cells(net), depth, 3, scope=next(layers))
            masks = slim.conv2d(
                net,
                1 if self.class_agnostic else self.num_classes,
                3,
                activation_fn=None,
                normalizer_fn=None,
                scope=next(layers),
            )
        return tf.transpose(masks, [0, 3, 1, 2])

    def _repeat_cells(self, net: tf.Tensor) -> tf.Tensor:
        height, width = net.shape[1:3]
        if self.height % height or self.width % width:
            raise ConfigError(
                "faster_rcnn.second_stage_box_predictor.mask_rcnn_box_predictor.convolve_then_upsample_masks",
                f"repeats the {height} x {width} cells of a region's features, so "
                "mask_height and mask_width must be multiples of them; given: "
                f"{self.height} and {self.width}",
            )
        rows = tf.repeat(net, self.height // height, axis=1)
        repeated = tf.repeat(rows, self.width // width, axis=2)
        return tf.ensure_shape(repeated, [net.shape[0], self.height, self.width, net.shape[3]])


def default_depth(num_features: int, num_classes: int) -> int:
    """Power of two near a weighted geometric mean of features and classes, the reference's rule."""
    weighted = FEATURE_WEIGHT * math.log2(num_features) + CLASS_WEIGHT * math.log2(num_classes)
    return int(2 ** round(weighted / (FEATURE_WEIGHT + CLASS_WEIGHT)))


def make_mask_head(config: Any, num_classes: int, is_training: bool) -> MaskHead:
    """Builds the mask head of a `MaskRCNNBoxPredictor` message, or raises ConfigError."""
    if not config.HasField("conv_hyperparams"):
        raise ConfigError(
            "faster_rcnn.second_stage_box_predictor.mask_rcnn_box_predictor.conv_hyperparams",
            "is missing, and predict_instance_masks needs it for the layers of the mask head",
            "add conv_hyperparams { regularizer { … } initializer { … } }",
        )
    return MaskHead(
        num_classes=num_classes,
        conv_scope=make_arg_scope(config.conv_hyperparams, is_training),
        height=config.mask_height,
        width=config.mask_width,
        conv_depth=config.mask_prediction_conv_depth,
        num_layers=config.mask_prediction_num_conv_layers,
        class_agnostic=config.masks_are_class_agnostic,
        convolve_first=config.convolve_then_upsample_masks,
    )

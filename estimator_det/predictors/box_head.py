"""Fully connected boxes and classes of regions, the second stage of Faster R-CNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope
from estimator_det.predictors.base import Prediction

SCOPE = "SecondStageBoxPredictor"


@dataclass(frozen=True)
class RegionBoxHead:
    """Averages a region's features over its cells; one layer predicts boxes, another classes."""

    num_classes: int  # foreground classes
    fc_scope: ArgScope  # argument scope of the layers
    share_box: bool = False  # one box for a region instead of one for each class
    box_code_size: int = 4  # numbers that encode a box
    dropout_keep_probability: float = 1.0  # below 1, averaged features are dropped in training
    is_training: bool = False  # True if dropout is active

    def predict(self, features: tf.Tensor) -> Prediction:
        """Predicts from features [R, h, w, C]: codes [R, q, code_size], class logits [R, K + 1].

        q is K, or 1 if the classes share a box.
        """
        boxes = 1 if self.share_box else self.num_classes
        with tf1.variable_scope(SCOPE, reuse=tf1.AUTO_REUSE):
            averaged = tf.reduce_mean(features, axis=[1, 2], name="AvgPool")
            codes = self._layer(averaged, boxes * self.box_code_size, "BoxEncodingPredictor")
            logits = self._layer(averaged, self.num_classes + 1, "ClassPredictor")
        return Prediction(tf.reshape(codes, [-1, boxes, self.box_code_size]), logits)

    def _layer(self, net: tf.Tensor, depth: int, name: str) -> tf.Tensor:
        if self.dropout_keep_probability < 1.0:
            net = slim.dropout(
                net, keep_prob=self.dropout_keep_probability, is_training=self.is_training
            )
        with self.fc_scope():
            return slim.fully_connected(net, depth, activation_fn=None, scope=name)


def make_region_box_head(config: Any, num_classes: int, is_training: bool) -> RegionBoxHead:
    """Builds the box head of a `MaskRCNNBoxPredictor` message, or raises ConfigError."""
    where = "faster_rcnn.second_stage_box_predictor.mask_rcnn_box_predictor"
    if config.predict_keypoints:
        raise ConfigError(
            f"{where}.predict_keypoints",
            "is not supported, nor is it implemented in the reference",
            "set it to false",
        )
    return RegionBoxHead(
        num_classes=num_classes,
        fc_scope=make_arg_scope(config.fc_hyperparams, is_training),
        share_box=config.share_box_across_classes,
        box_code_size=config.box_code_size,
        dropout_keep_probability=config.dropout_keep_probability if config.use_dropout else 1.0,
        is_training=is_training,
    )

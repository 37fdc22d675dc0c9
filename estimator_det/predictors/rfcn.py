"""Position-sensitive boxes and classes of regions, the second stage of R-FCN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope
from estimator_det.nets.roi import pool_position_sensitive
from estimator_det.predictors.base import Prediction
from estimator_det.predictors.box_head import SCOPE


@dataclass(frozen=True)
class RfcnHead:
    """Pools score maps for each bin of a region (https://arxiv.org/abs/1605.06409)."""

    num_classes: int  # foreground classes
    conv_scope: ArgScope  # argument scope of the layers
    num_bins: Tuple[int, int] = (3, 3)  # rows and columns of bins in a region
    depth: int = 1024  # channels of the convolution before the score maps
    crop_size: Tuple[int, int] = (12, 12)  # height and width of the crop of a region
    box_code_size: int = 4  # numbers that encode a box
    matmul: bool = False  # True if crops are matrix products, for TPU

    def __post_init__(self) -> None:
        where = "faster_rcnn.second_stage_box_predictor.rfcn_box_predictor"
        for side, crop, bins in zip(("height", "width"), self.crop_size, self.num_bins):
            if crop % bins:
                raise ConfigError(
                    f"{where}.crop_{side}",
                    f"must be a multiple of num_spatial_bins_{side} ({bins}); given: {crop}",
                )

    def predict(self, features: tf.Tensor, boxes: tf.Tensor) -> Prediction:
        """Predicts codes [B * N, K, 4], logits [B * N, K + 1] of normalized boxes [B, N, 4]."""
        bins = self.num_bins[0] * self.num_bins[1]
        num_codes, num_logits = self.num_classes * self.box_code_size, self.num_classes + 1
        with tf1.variable_scope(SCOPE, reuse=tf1.AUTO_REUSE), self.conv_scope():
            net = slim.conv2d(features, self.depth, 1, scope="reduce_depth")
            code_maps = self._score_maps(net, bins * num_codes, "refined_locations")
            codes = self._pool(code_maps, boxes)
            class_maps = self._score_maps(net, bins * num_logits, "class_predictions")
            logits = self._pool(class_maps, boxes)
        return Prediction(
            tf.reshape(codes, [-1, self.num_classes, self.box_code_size]),
            tf.reshape(logits, [-1, num_logits]),
        )

    def _score_maps(self, net: tf.Tensor, depth: int, name: str) -> tf.Tensor:
        return slim.conv2d(net, depth, 1, activation_fn=None, scope=name)

    def _pool(self, score_maps: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
        return pool_position_sensitive(
            score_maps, boxes, self.crop_size, self.num_bins, matmul=self.matmul
        )


def make_rfcn_head(
    config: Any, num_classes: int, is_training: bool, *, matmul: bool = False
) -> RfcnHead:
    """Builds the head of an `RfcnBoxPredictor` message, or raises ConfigError."""
    return RfcnHead(
        num_classes=num_classes,
        conv_scope=make_arg_scope(config.conv_hyperparams, is_training),
        num_bins=(config.num_spatial_bins_height, config.num_spatial_bins_width),
        depth=config.depth,
        crop_size=(config.crop_height, config.crop_width),
        box_code_size=config.box_code_size,
        matmul=matmul,
    )

"""Heads of two-stage detectors: proposals, boxes and classes of regions, and their masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.rules import rules
from estimator_det.errors import ConfigError, Problem, error
from estimator_det.nets.hyperparams import ArgScope, make_arg_scope
from estimator_det.nets.layers import conv2d
from estimator_det.nets.object_paths import (
    PLACES,
    Paths,
    functional,
    layers_of,
    list_paths,
    nested,
)
from estimator_det.nets.roi import pool_position_sensitive
from estimator_det.predictors.base import HeadOptions, Prediction
from estimator_det.predictors.ssd import ConvolutionalBoxHead
from estimator_det.protos import box_predictor_pb2

PROPOSAL_SCOPE, REGION_SCOPE = "FirstStageBoxPredictor", "SecondStageBoxPredictor"
MASK_RCNN = "model.faster_rcnn.second_stage_box_predictor.mask_rcnn_box_predictor"
CONVOLUTION = "Conv"  # outside the head's scope, as in the Object Detection API
OBJECTNESS_COLUMNS = 2  # background, object
BOX_CODE_SIZE = 4  # numbers that encode a box


@dataclass(frozen=True)
class ProposalHead:
    """A convolution, then 1x1 layers for codes and objectness (https://arxiv.org/abs/1506.01497)."""

    conv_scope: ArgScope  # argument scope of all layers
    depth: int = 512  # channels of the convolution
    kernel_size: int = 3  # height and width of its kernel
    atrous_rate: int = 1  # dilation of its kernel

    def predict(
        self, feature_maps: Sequence[tf.Tensor], num_per_location: List[int]
    ) -> Tuple[Tuple[tf.Tensor, ...], Prediction]:
        """Predicts from maps [B, h, w, C] with these numbers of anchors per cell.

        Returns the outputs of the convolution, [B, h, w, depth], and codes and objectness logits.
        Maps share the convolution, and have last layers of their own.
        """
        # AUTO_REUSE, so that further calls share the variables.
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            with self.conv_scope():
                nets = tuple(
                    conv2d(
                        features,
                        self.depth,
                        self.kernel_size,
                        rate=self.atrous_rate,
                        # Like in the API, regardless of the hyperparameters.
                        activation_fn=tf.nn.relu6,
                        scope=CONVOLUTION,
                    )
                    for features in feature_maps
                )
            with tf1.variable_scope(PROPOSAL_SCOPE):
                return nets, self._last_layers.predict(nets, num_per_location)

    @property
    def _last_layers(self) -> ConvolutionalBoxHead:
        options = HeadOptions(OBJECTNESS_COLUMNS, BOX_CODE_SIZE, kernel_size=1)
        return ConvolutionalBoxHead(options, self.conv_scope)

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        """Paths of the layers in object-based checkpoints of the TF2 line."""
        convolution = [scope for scope in scopes if scope.split("/")[0] == CONVOLUTION]
        prefix = f"{PROPOSAL_SCOPE}/"
        inner = [scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)]
        last = nested("model/_first_stage_box_predictor", self._last_layers.object_paths(inner))
        return {
            **nested("model/_first_stage_box_predictor_first_conv", functional(convolution)),
            **{prefix + scope: path for scope, path in last.items()},
        }


@dataclass(frozen=True)
class RegionBoxHead:
    """Averages a region's features over its cells; one layer predicts boxes, another classes."""

    num_classes: int  # foreground classes
    fc_scope: ArgScope  # argument scope of the layers
    share_box: bool = False  # one box for a region instead of one for each class
    dropout_keep_probability: float = 1.0  # below 1, averaged features are dropped in training
    is_training: bool = False  # True if dropout is active
    tf2_line: bool = False  # initializer and penalty of the hyperparameters do not apply

    def predict(self, features: tf.Tensor) -> Prediction:
        """Predicts from features [R, h, w, C]: codes [R, q, 4], class logits [R, K + 1].

        q is K, or 1 if the classes share a box.
        """
        boxes = 1 if self.share_box else self.num_classes
        with tf1.variable_scope(REGION_SCOPE, reuse=tf1.AUTO_REUSE):
            averaged = tf.reduce_mean(features, axis=[1, 2], name="AvgPool")
            codes = self._layer(averaged, boxes * BOX_CODE_SIZE, "BoxEncodingPredictor")
            logits = self._layer(averaged, self.num_classes + 1, "ClassPredictor")
        return Prediction(tf.reshape(codes, [-1, boxes, BOX_CODE_SIZE]), logits)

    def _layer(self, net: tf.Tensor, depth: int, name: str) -> tf.Tensor:
        if self.dropout_keep_probability < 1.0:
            net = slim.dropout(
                net, keep_prob=self.dropout_keep_probability, is_training=self.is_training
            )
        plain = {"weights_initializer": slim.xavier_initializer(), "weights_regularizer": None}
        with self.fc_scope():
            return slim.fully_connected(
                net, depth, activation_fn=None, scope=name, **(plain if self.tf2_line else {})
            )

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        """Paths of the layers in object-based checkpoints of the TF2 line.

        The flattening, and dropout if there is any, have the first places of a list.
        """
        first = 1 + int(self.dropout_keep_probability < 1.0)
        owner = "model/_mask_rcnn_box_predictor"
        boxes, classes = (f"{REGION_SCOPE}/{kind}Predictor" for kind in ("BoxEncoding", "Class"))
        places = {
            boxes: (f"{owner}/_box_prediction_head/_box_encoder_layers", first),
            classes: (f"{owner}/_class_prediction_head/_class_predictor_layers", first),
        }
        return list_paths(scopes, places)


def make_region_box_head(
    config: box_predictor_pb2.MaskRCNNBoxPredictor,
    num_classes: int,
    is_training: bool,
    tf2_line: bool = False,
) -> RegionBoxHead:
    """Builds the box head of a `MaskRCNNBoxPredictor` message."""
    return RegionBoxHead(
        num_classes=num_classes,
        fc_scope=make_arg_scope(config.fc_hyperparams, is_training, tf2_line=tf2_line),
        share_box=config.share_box_across_classes,
        dropout_keep_probability=config.dropout_keep_probability if config.use_dropout else 1.0,
        is_training=is_training,
        tf2_line=tf2_line,
    )


@rules(box_predictor_pb2.RfcnBoxPredictor)
def _check_crop(config: box_predictor_pb2.RfcnBoxPredictor, at: str) -> Iterator[Problem]:
    for side in ("height", "width"):
        crop, bins = getattr(config, f"crop_{side}"), getattr(config, f"num_spatial_bins_{side}")
        if bins > 0 and crop % bins:
            yield error(
                f"{at}.crop_{side}",
                f"must be a multiple of num_spatial_bins_{side} ({bins}); given: {crop}",
                "change one of them",
            )


@dataclass(frozen=True)
class RfcnHead:
    """Pools score maps for each bin of a region (https://arxiv.org/abs/1605.06409)."""

    num_classes: int  # foreground classes
    conv_scope: ArgScope  # argument scope of the layers
    num_bins: Tuple[int, int] = (3, 3)  # rows and columns of bins in a region
    depth: int = 1024  # channels of the convolution before the score maps
    crop_size: Tuple[int, int] = (12, 12)  # height and width of the crop of a region
    matmul: bool = False  # True if crops are matrix products, for TPU

    def predict(self, features: tf.Tensor, boxes: tf.Tensor) -> Prediction:
        """Predicts codes [B * N, K, 4], logits [B * N, K + 1] of normalized boxes [B, N, 4]."""
        bins = self.num_bins[0] * self.num_bins[1]
        num_codes, num_logits = self.num_classes * BOX_CODE_SIZE, self.num_classes + 1
        with tf1.variable_scope(REGION_SCOPE, reuse=tf1.AUTO_REUSE), self.conv_scope():
            net = conv2d(features, self.depth, 1, scope="reduce_depth")
            codes = self._pool_layer(net, bins * num_codes, "refined_locations", boxes)
            logits = self._pool_layer(net, bins * num_logits, "class_predictions", boxes)
        return Prediction(
            tf.reshape(codes, [-1, self.num_classes, BOX_CODE_SIZE]),
            tf.reshape(logits, [-1, num_logits]),
        )

    def _pool_layer(self, net: tf.Tensor, depth: int, name: str, boxes: tf.Tensor) -> tf.Tensor:
        score_maps = conv2d(net, depth, 1, activation_fn=None, scope=name)
        return pool_position_sensitive(
            score_maps, boxes, self.crop_size, self.num_bins, matmul=self.matmul
        )


# Weights of log2(features) and log2(classes) in the default depth; the API's values.
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
        with tf1.variable_scope(REGION_SCOPE, reuse=tf1.AUTO_REUSE), self.conv_scope():
            net = features
            if not self.convolve_first:
                net = tf1.image.resize(net, [self.height, self.width], align_corners=True)
            for _ in range(self.num_layers - 1):
                net = conv2d(net, depth, 3)  # Conv, Conv_1, and so on
            if self.convolve_first:
                net = conv2d(self._repeat_cells(net), depth, 3)
            masks = conv2d(
                net,
                1 if self.class_agnostic else self.num_classes,
                3,
                activation_fn=None,
                normalizer_fn=None,
            )
        return tf.transpose(masks, [0, 3, 1, 2])

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        """Paths of the layers in object-based checkpoints of the TF2 line."""
        layers = [each for each in layers_of(scopes) if each.startswith(f"{REGION_SCOPE}/Conv")]
        name = "_third_stage_heads/mask_predictions/_mask_predictor_layers"
        path = f"model/_mask_rcnn_box_predictor/{name}"
        return list_paths(scopes, {layer: (path, PLACES * n) for n, layer in enumerate(layers)})

    def _repeat_cells(self, net: tf.Tensor) -> tf.Tensor:
        height, width = net.shape[1:3]
        if self.height % height or self.width % width:
            raise ConfigError.at(
                f"{MASK_RCNN}.convolve_then_upsample_masks",
                f"repeats the {height} x {width} cells of a region's features, so "
                "mask_height and mask_width must be multiples of them; given: "
                f"{self.height} and {self.width}",
                "set multiples, or remove it",
            )
        rows = tf.repeat(net, self.height // height, axis=1)
        repeated = tf.repeat(rows, self.width // width, axis=2)
        return tf.ensure_shape(repeated, [net.shape[0], self.height, self.width, net.shape[3]])


def default_depth(num_features: int, num_classes: int) -> int:
    """Power of two near a weighted geometric mean of features and classes, the API's rule."""
    weighted = FEATURE_WEIGHT * math.log2(num_features) + CLASS_WEIGHT * math.log2(num_classes)
    return int(2 ** round(weighted / (FEATURE_WEIGHT + CLASS_WEIGHT)))


def make_mask_head(
    config: box_predictor_pb2.MaskRCNNBoxPredictor,
    num_classes: int,
    is_training: bool,
    tf2_line: bool = False,
) -> MaskHead:
    """Builds the mask head of a `MaskRCNNBoxPredictor` message."""
    return MaskHead(
        num_classes=num_classes,
        conv_scope=make_arg_scope(config.conv_hyperparams, is_training, tf2_line=tf2_line),
        height=config.mask_height,
        width=config.mask_width,
        conv_depth=config.mask_prediction_conv_depth,
        num_layers=config.mask_prediction_num_conv_layers,
        class_agnostic=config.masks_are_class_agnostic,
        convolve_first=config.convolve_then_upsample_masks,
    )

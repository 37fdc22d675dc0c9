"""Convolutional box heads of single-shot detectors: one per feature map, or one for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, List, Optional, Sequence

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.nets.hyperparams import NORMALIZERS, ArgScope, make_activation, make_arg_scope
from estimator_det.predictors import base
from estimator_det.protos import box_predictor_pb2

SHARED_SCOPE = "WeightSharedConvolutionalBoxPredictor"

_SHARED = box_predictor_pb2.WeightSharedConvolutionalBoxPredictor


@dataclass(frozen=True)
class ConvolutionalBoxHead:
    """A head of its own for each feature map, in scopes `BoxPredictor_0`, `BoxPredictor_1`, …

    The head of a single feature map has no scope.

    Attributes:
        head: Settings of the last layers.
        conv_scope: Argument scope of all layers.
        num_layers: 1x1 convolutions before the last layers.
        min_depth: Lower bound of those convolutions' channels.
        max_depth: Upper bound, weaker than the lower; channels are the feature map's, between the
            two bounds. If both are 0, there are no such convolutions.
    """

    head: base.HeadOptions
    conv_scope: ArgScope
    num_layers: int = 0
    min_depth: int = 0
    max_depth: int = 0

    def predict(
        self, feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]
    ) -> base.Prediction:
        base.check_maps(feature_maps, num_per_location)
        boxes, classes = [], []
        single = len(feature_maps) == 1
        for number, (features, anchors) in enumerate(zip(feature_maps, num_per_location)):
            scope = tf1.get_variable_scope() if single else f"BoxPredictor_{number}"
            with tf1.variable_scope(scope), self.conv_scope():
                net = self._before(features)
                boxes.append(
                    base.predict_boxes(net, anchors, self.head, self._layer, "BoxEncodingPredictor")
                )
                classes.append(base.predict_classes(net, anchors, self.head, self._layer))
        return base.joined(boxes, classes)

    def _before(self, net: tf.Tensor) -> tf.Tensor:
        depth = max(min(net.shape[-1], self.max_depth), self.min_depth)
        if depth > 0:
            for layer in range(self.num_layers):
                net = slim.conv2d(net, depth, 1, scope=f"Conv2d_{layer}_1x1_{depth}")
        return net

    def _layer(self, net: tf.Tensor, depth: int, name: str, **settings: Any) -> tf.Tensor:
        kernel_size = self.head.kernel_size
        if self.head.use_depthwise:
            net = slim.separable_conv2d(
                net, None, kernel_size, depth_multiplier=1, scope=f"{name}_depthwise"
            )
            kernel_size = 1
        with base.plain_output():
            return slim.conv2d(net, depth, kernel_size, scope=name, **settings)


@base.BOX_HEADS.register("convolutional_box_predictor")
def make_convolutional_box_head(
    config: Any,
    num_classes: int,
    add_background_class: bool,
    is_training: bool,
    norm_is_training: bool,
) -> ConvolutionalBoxHead:
    """The head of a `ConvolutionalBoxPredictor` message; see `base.make_box_head`."""
    head = base.make_head_options(config, num_classes, add_background_class, is_training)
    return ConvolutionalBoxHead(
        head=replace(head, sigmoid_scores=config.apply_sigmoid_to_scores),
        conv_scope=make_arg_scope(config.conv_hyperparams, norm_is_training),
        num_layers=config.num_layers_before_predictor,
        min_depth=config.min_depth,
        max_depth=config.max_depth,
    )


@dataclass(frozen=True)
class WeightSharedBoxHead:
    """One head for all feature maps; only batch norm is separate for each (RetinaNet, 2017).

    Tower layers end with ReLU6, as in the reference, unless `conv_hyperparams` sets `activation`.
    Maps of unequal depth first pass a 1x1 projection each, to the depth most maps have.

    Attributes:
        head: Settings of the last layers.
        conv_scope: Argument scope of all layers.
        depth: Channels of the tower.
        num_layers: Convolutions in the tower.
        share_tower: One tower for boxes and classes, instead of one each.
        normalizer: Comes before the activation of a tower layer, with variables of its own for
            each map; the layer has a bias instead where there is none.
        normalizer_scope: Name of its variable scope.
        activation: Ends a tower layer; None for no activation.
        forces_bias: Whether layers before a normalizer have a bias too.
    """

    head: base.HeadOptions
    conv_scope: ArgScope
    depth: int
    num_layers: int
    share_tower: bool
    normalizer: Optional[Callable[..., tf.Tensor]]
    normalizer_scope: str = "BatchNorm"
    activation: Optional[Callable[[tf.Tensor], tf.Tensor]] = tf.nn.relu6
    forces_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_layers > 0 and self.depth < 1:
            raise ConfigError(
                "weight_shared_convolutional_box_predictor.depth must be 1 or more where "
                f"num_layers_before_predictor is {self.num_layers}; got {self.depth}"
            )

    def predict(
        self, feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]
    ) -> base.Prediction:
        base.check_maps(feature_maps, num_per_location)
        if len(set(num_per_location)) != 1:
            raise ConfigError(
                "weight_shared_convolutional_box_predictor needs the same number of anchors at "
                f"every feature map; the anchor generator gives {list(num_per_location)}"
            )
        anchors = num_per_location[0]
        boxes, classes = [], []
        with tf1.variable_scope(SHARED_SCOPE, reuse=tf1.AUTO_REUSE), self.conv_scope():
            for number, features in enumerate(self._projected(feature_maps)):
                name = "PredictionTower" if self.share_tower else "BoxPredictionTower"
                net = self._tower(features, name, number)
                boxes.append(
                    base.predict_boxes(net, anchors, self.head, self._layer, "BoxPredictor")
                )
                if not self.share_tower:
                    net = self._tower(features, "ClassPredictionTower", number)
                classes.append(base.predict_classes(net, anchors, self.head, self._layer))
        return base.joined(boxes, classes)

    def _projected(self, feature_maps: Sequence[tf.Tensor]) -> List[tf.Tensor]:
        depths = [features.shape[-1] for features in feature_maps]
        if len(set(depths)) == 1:
            return list(feature_maps)
        depth = max(set(depths), key=depths.count)
        made = []
        for number, features in enumerate(feature_maps):
            name = f"ProjectionLayer/conv2d_{number}"
            with self._unfinished():
                net = slim.conv2d(features, depth, 1, scope=name)
            if self.normalizer:
                net = self.normalizer(net, scope=f"{name}/{self.normalizer_scope}")
            made.append(net)
        return made

    def _unfinished(self) -> Any:
        """Argument scope of a layer whose normalization and activation follow separately."""
        return slim.arg_scope(
            [slim.conv2d, slim.separable_conv2d],
            activation_fn=None,
            # tf-slim leaves the bias out where there is a normalizer.
            normalizer_fn=tf.identity if self.normalizer and not self.forces_bias else None,
            normalizer_params=None,
        )

    def _layer(self, net: tf.Tensor, depth: int, name: str, **settings: Any) -> tf.Tensor:
        with base.plain_output():
            return self._convolution(net, depth, name, **settings)

    def _convolution(self, net: tf.Tensor, depth: int, name: str, **settings: Any) -> tf.Tensor:
        if self.head.use_depthwise:
            return slim.separable_conv2d(
                net, depth, self.head.kernel_size, depth_multiplier=1, scope=name, **settings
            )
        return slim.conv2d(net, depth, self.head.kernel_size, scope=name, **settings)

    def _tower(self, net: tf.Tensor, name: str, number: int) -> tf.Tensor:
        with tf1.variable_scope(name):
            for layer in range(self.num_layers):
                scope = f"conv2d_{layer}"
                with self._unfinished():
                    net = self._convolution(net, self.depth, scope)
                if self.normalizer:
                    net = self.normalizer(
                        net, scope=f"{scope}/{self.normalizer_scope}/feature_{number}"
                    )
                net = self.activation(net) if self.activation else net
        return net


@base.BOX_HEADS.register("weight_shared_convolutional_box_predictor")
def make_weight_shared_box_head(
    config: Any,
    num_classes: int,
    add_background_class: bool,
    is_training: bool,
    norm_is_training: bool,
) -> WeightSharedBoxHead:
    """The head of a `WeightSharedConvolutionalBoxPredictor` message; see `base.make_box_head`.

    tf-slim layers take their hyperparameters from the scope around them, last layers and
    pointwise halves included, so `apply_conv_hyperparams_to_heads` and
    `apply_conv_hyperparams_pointwise` always apply. `score_converter` has no effect in training,
    because the losses take logits.
    """
    head = base.make_head_options(config, num_classes, add_background_class, is_training)
    hyperparams = config.conv_hyperparams
    kind = hyperparams.WhichOneof("normalizer_oneof")
    has_activation = hyperparams.HasField("activation")
    converts = config.score_converter == _SHARED.SIGMOID and not is_training
    return WeightSharedBoxHead(
        head=replace(head, sigmoid_scores=converts),
        conv_scope=make_arg_scope(config.conv_hyperparams, norm_is_training),
        depth=config.depth,
        num_layers=config.num_layers_before_predictor,
        share_tower=config.share_prediction_tower,
        normalizer=NORMALIZERS[kind] if kind else None,
        normalizer_scope="GroupNorm" if kind == "group_norm" else "BatchNorm",
        activation=make_activation(hyperparams) if has_activation else tf.nn.relu6,
        forces_bias=hyperparams.force_use_bias,
    )

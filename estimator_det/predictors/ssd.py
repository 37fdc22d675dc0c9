"""Convolutional box heads of single-shot detectors: one per feature map, or one for all."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.nets.hyperparams import (
    ACTIVATIONS,
    NORMALIZERS,
    ArgScope,
    keras_defaults,
    make_arg_scope,
    no_scope,
    with_bias,
)
from estimator_det.nets.layers import conv2d, ranges_with_suffix, separable_conv2d
from estimator_det.nets.object_paths import PLACES, Paths, layers_of, list_paths
from estimator_det.predictors import base
from estimator_det.protos import box_predictor_pb2

SHARED_SCOPE = "WeightSharedConvolutionalBoxPredictor"

_SHARED = box_predictor_pb2.WeightSharedConvolutionalBoxPredictor


TF2_LINE_FIELDS = ("apply_conv_hyperparams_to_heads", "apply_conv_hyperparams_pointwise")
"""Fields of the weight-shared head that only networks of the TF2 line use."""

_BOXES, _CLASSES = "box_encodings", "class_predictions_with_background"  # in object paths
_LAYER = re.compile(
    r"(BoxPredictor_(?P<map>\d+)/)?"
    r"((?P<head>BoxEncoding|Class)Predictor(?P<depthwise>_depthwise)?"
    r"|Conv2d_(?P<extra>\d+)_1x1_\d+)"
)
_TOWER_LAYER = re.compile(
    rf"{SHARED_SCOPE}/(?P<tower>(?P<kind>|Box|Class)PredictionTower)/conv2d_(?P<layer>\d+)"
    r"(/\w+Norm/feature_(?P<map>\d+))?"
)


def _last_layers(head: str, options: base.HeadOptions) -> Tuple[str, str, int]:
    """Object with the last layers of boxes or classes, their list, and the place of the first."""
    if head != "Class":
        return _BOXES, "_box_encoder_layers", 0
    return _CLASSES, "_class_predictor_layers", int(options.dropout_keep_probability < 1.0)


@dataclass(frozen=True)
class ConvolutionalBoxHead:
    """A separate head for each feature map, in scopes `BoxPredictor_0`, `BoxPredictor_1`, …

    The head of a single feature map has no scope.
    """

    head: base.HeadOptions  # settings of the last layers
    conv_scope: ArgScope  # argument scope of all layers
    num_layers: int = 0  # 1x1 convolutions before the last layers
    min_depth: int = 0  # lower bound of those convolutions' channels
    # Upper bound; the lower bound wins. The channels are the feature map's between the two bounds.
    # If both are 0, there are no such convolutions.
    max_depth: int = 0
    tf2_line: bool = False  # hyperparameters do not apply to depthwise kernels of the last layers

    def predict(
        self, feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]
    ) -> base.Prediction:
        base.check_num_maps(feature_maps, num_per_location)
        boxes, classes = [], []
        single = len(feature_maps) == 1
        for number, (features, anchors) in enumerate(zip(feature_maps, num_per_location)):
            scope = tf1.get_variable_scope() if single else f"BoxPredictor_{number}"
            with tf1.variable_scope(scope), self.conv_scope():
                net = self._extra_layers(features)
                boxes.append(
                    base.predict_boxes(net, anchors, self.head, self._layer, "BoxEncodingPredictor")
                )
                classes.append(base.predict_classes(net, anchors, self.head, self._layer))
        return base.concat_maps(boxes, classes)

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        places: Dict[str, Tuple[str, int]] = {}
        for layer in layers_of(scopes):
            match = _LAYER.fullmatch(layer)
            if match is None:
                continue
            number = match["map"] or 0
            if match["extra"]:
                places[layer] = f"_shared_nets/{number}", PLACES * int(match["extra"])
                continue
            head, layers, first = _last_layers(match["head"], self.head)
            is_after_depthwise = self.head.use_depthwise and not match["depthwise"]
            path = f"_prediction_heads/{head}/{number}/{layers}"
            places[layer] = path, first + (PLACES if is_after_depthwise else 0)
        return list_paths(scopes, places)

    def _extra_layers(self, net: tf.Tensor) -> tf.Tensor:
        depth = max(min(net.shape[-1], self.max_depth), self.min_depth)
        if depth > 0:
            for layer in range(self.num_layers):
                net = conv2d(net, depth, 1, scope=f"Conv2d_{layer}_1x1_{depth}")
        return net

    def _layer(self, net: tf.Tensor, depth: int, name: str, **settings: Any) -> tf.Tensor:
        kernel_size = self.head.kernel_size
        if self.head.use_depthwise:
            with keras_defaults() if self.tf2_line else contextlib.nullcontext():
                net = separable_conv2d(net, None, kernel_size, scope=f"{name}_depthwise")
            kernel_size = 1
        with base.plain_output():
            return conv2d(net, depth, kernel_size, scope=name, **settings)


@base.BOX_HEADS.register("convolutional_box_predictor")
def make_convolutional_box_head(
    config: box_predictor_pb2.ConvolutionalBoxPredictor,
    num_classes: int,
    add_background_class: bool,
    is_training: bool,
    norm_is_training: bool,
    tf2_line: bool,
) -> ConvolutionalBoxHead:
    """The head of a `ConvolutionalBoxPredictor` message; see `base.make_box_head`.

    The TF2 line never applies a sigmoid.
    """
    head = base.make_head_options(config, num_classes, add_background_class, is_training)
    if not tf2_line:
        head = replace(head, sigmoid_scores=config.apply_sigmoid_to_scores)
    return ConvolutionalBoxHead(
        head=head,
        conv_scope=make_arg_scope(config.conv_hyperparams, norm_is_training, tf2_line=tf2_line),
        num_layers=config.num_layers_before_predictor,
        min_depth=config.min_depth,
        max_depth=config.max_depth,
        tf2_line=tf2_line,
    )


@dataclass(frozen=True)
class WeightSharedBoxHead:
    """One head for all feature maps; only batch norm is separate for each (RetinaNet, 2017).

    Tower layers end with ReLU6, like in the Object Detection API, unless `conv_hyperparams` sets
    `activation`. If maps differ in depth, each is projected by a 1x1 convolution to the most
    frequent depth.
    """

    head: base.HeadOptions  # settings of the last layers
    conv_scope: ArgScope  # argument scope of all layers
    depth: int  # channels of the tower
    num_layers: int  # convolutions in the tower
    share_tower: bool  # one tower for boxes and classes, instead of one each
    # Applied before the activation of a tower layer, with separate variables for each map; None for
    # a bias instead.
    normalizer: Optional[Callable[..., tf.Tensor]]
    normalizer_scope: str = "BatchNorm"  # name of its variable scope
    # Applied at the end of a tower layer; None for no activation.
    activation: Optional[Callable[[tf.Tensor], tf.Tensor]] = tf.nn.relu6
    forces_bias: bool = False  # True if layers before a normalizer have a bias, too
    # Argument scope of separable last layers, inside `conv_scope`.
    last_layers_scope: ArgScope = no_scope

    def predict(
        self, feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]
    ) -> base.Prediction:
        base.check_num_maps(feature_maps, num_per_location)
        anchors = num_per_location[0]
        boxes, classes = [], []
        with tf1.variable_scope(SHARED_SCOPE, reuse=tf1.AUTO_REUSE), self.conv_scope():
            depth = self._projected_depth(feature_maps)
            for number, features in enumerate(feature_maps):
                # Maps share weights, but each has separate quantization ranges.
                with ranges_with_suffix(f"_{number}" if number else ""):
                    box, scores = self._predict_map(features, number, depth, anchors)
                boxes.append(box)
                classes.append(scores)
        return base.concat_maps(boxes, classes)

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        places: Dict[str, Tuple[str, int]] = {}
        paths: Paths = {}
        for scope in scopes:
            tower = _TOWER_LAYER.fullmatch(scope)
            if tower and tower["map"]:
                head = _CLASSES if tower["kind"] == "Class" else _BOXES
                place = PLACES * int(tower["layer"]) + 1
                paths[scope] = f"_base_tower_layers_for_heads/{head}/{tower['map']}/{place}"
            elif tower:
                paths[scope] = f"_head_scope_conv_layers/{tower['tower']}/{tower['layer']}"
        for number in range(len(scopes)):
            layer = f"{SHARED_SCOPE}/ProjectionLayer/conv2d_{number}"
            places[layer] = f"_additional_projection_layers/{number}", 0
        _, layers, _ = _last_layers("Box", self.head)
        places[f"{SHARED_SCOPE}/BoxPredictor"] = f"_box_prediction_head/{layers}", 0
        head, layers, first = _last_layers("Class", self.head)
        places[f"{SHARED_SCOPE}/ClassPredictor"] = f"_prediction_heads/{head}/{layers}", first
        return {**paths, **list_paths(scopes, places)}

    def _projected_depth(self, feature_maps: Sequence[tf.Tensor]) -> Optional[int]:
        """Channels of each map after projection; None if maps are not projected."""
        depths = [features.shape[-1] for features in feature_maps]
        return None if len(set(depths)) == 1 else max(set(depths), key=depths.count)

    def _predict_map(
        self, features: tf.Tensor, number: int, depth: Optional[int], anchors: int
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        if depth is not None:
            name = f"ProjectionLayer/conv2d_{number}"
            normalizer_settings = self._normalizer_settings(self.normalizer_scope)
            features = conv2d(
                features, depth, 1, scope=name, activation_fn=None, **normalizer_settings
            )
        name = "PredictionTower" if self.share_tower else "BoxPredictionTower"
        net = self._tower(features, name, number)
        box = base.predict_boxes(net, anchors, self.head, self._layer, "BoxPredictor")
        if not self.share_tower:
            net = self._tower(features, "ClassPredictionTower", number)
        return box, base.predict_classes(net, anchors, self.head, self._layer)

    def _normalizer_settings(self, scope: str) -> Dict[str, Any]:
        """Settings of a layer with a normalizer in this variable scope."""
        if not self.normalizer:
            return {"normalizer_fn": None, "normalizer_params": None}
        return {
            "normalizer_fn": with_bias(self.normalizer) if self.forces_bias else self.normalizer,
            "normalizer_params": {"scope": scope},
        }

    def _layer(self, net: tf.Tensor, depth: int, name: str, **settings: Any) -> tf.Tensor:
        with self.last_layers_scope(), base.plain_output():
            return self._convolution(net, depth, name, **settings)

    def _convolution(self, net: tf.Tensor, depth: int, name: str, **settings: Any) -> tf.Tensor:
        convolve = separable_conv2d if self.head.use_depthwise else conv2d
        return convolve(net, depth, self.head.kernel_size, scope=name, **settings)

    def _tower(self, net: tf.Tensor, name: str, number: int) -> tf.Tensor:
        with tf1.variable_scope(name):
            normalizer_settings = self._normalizer_settings(
                f"{self.normalizer_scope}/feature_{number}"
            )
            tower_settings = {"activation_fn": self.activation, **normalizer_settings}
            for layer in range(self.num_layers):
                net = self._convolution(net, self.depth, f"conv2d_{layer}", **tower_settings)
        return net


@rules(box_predictor_pb2.WeightSharedConvolutionalBoxPredictor)
def _check_depth(
    config: box_predictor_pb2.WeightSharedConvolutionalBoxPredictor, at: str
) -> Iterator[Problem]:
    if config.num_layers_before_predictor > 0 and config.depth < 1:
        yield error(
            f"{at}.depth",
            "must be 1 or more if num_layers_before_predictor is "
            f"{config.num_layers_before_predictor}; given: {config.depth}",
            "set it",
        )


@base.BOX_HEADS.register("weight_shared_convolutional_box_predictor")
def make_weight_shared_box_head(
    config: box_predictor_pb2.WeightSharedConvolutionalBoxPredictor,
    num_classes: int,
    add_background_class: bool,
    is_training: bool,
    norm_is_training: bool,
    tf2_line: bool,
) -> WeightSharedBoxHead:
    """The head of a `WeightSharedConvolutionalBoxPredictor` message; see `base.make_box_head`.

    In the TF2 line, `conv_hyperparams` apply to pointwise halves of the tower, and to separable
    last layers, only with `apply_conv_hyperparams_pointwise` and `apply_conv_hyperparams_to_heads`;
    in the TF1 line, always. `score_converter` has no effect in training, because losses need
    logits.
    """
    head = base.make_head_options(config, num_classes, add_background_class, is_training)
    hyperparams = config.conv_hyperparams
    kind = hyperparams.WhichOneof("normalizer_oneof")
    has_activation = hyperparams.HasField("activation") or tf2_line
    last_layers_scope = no_scope
    if tf2_line:
        # The API's towers do not know this kind.
        kind = None if kind == "sync_batch_norm" else kind
        last_layers_scope = keras_defaults
    if config.apply_conv_hyperparams_to_heads and tf2_line:
        last_layers_scope = make_arg_scope(hyperparams, norm_is_training, tf2_line=True)
    # Losses need logits, so that only inference converts scores.
    converts = config.score_converter == _SHARED.SIGMOID and not is_training
    return WeightSharedBoxHead(
        head=replace(head, sigmoid_scores=converts),
        conv_scope=make_arg_scope(
            hyperparams,
            norm_is_training,
            tf2_line=tf2_line,
            covers_pointwise=config.apply_conv_hyperparams_pointwise or not tf2_line,
        ),
        depth=config.depth,
        num_layers=config.num_layers_before_predictor,
        share_tower=config.share_prediction_tower,
        normalizer=NORMALIZERS[kind] if kind else None,
        normalizer_scope="GroupNorm" if kind == "group_norm" else "BatchNorm",
        activation=ACTIVATIONS[hyperparams.activation] if has_activation else tf.nn.relu6,
        forces_bias=hyperparams.force_use_bias,
        last_layers_scope=last_layers_scope,
    )

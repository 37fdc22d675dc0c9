"""What a box head of a single-shot detector is, and the pieces that box heads share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional, Protocol, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError

BOX_HEADS: Registry[Callable[..., BoxHead]] = Registry("box predictor")

Layer = Callable[..., tf.Tensor]  # features, channels, scope name, slim settings -> output


class Prediction(NamedTuple):
    """Output of a head for all feature maps together, A anchors in the order of the maps."""

    box_encodings: tf.Tensor  # float [B, A, code_size]
    class_logits: tf.Tensor  # float [B, A, num_class_slots]


class BoxHead(Protocol):
    """Feature maps to box encodings and class logits; holds no state between calls."""

    def predict(
        self, feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]
    ) -> Prediction:
        """[B, h_i, w_i, c_i] maps and the anchors at each of their cells -> predictions.

        Raises:
            ConfigError: if there is not one anchor count per map, or a head that all maps share
                gets different counts.
        """


@dataclass(frozen=True)
class HeadOptions:
    """Settings of the last layers, which turn features into predictions.

    Attributes:
        num_class_slots: Class scores per anchor, background column included if there is one.
        box_code_size: Numbers that encode a box.
        kernel_size: Side of the convolutions' kernels.
        use_depthwise: Split the convolutions into depthwise and pointwise halves.
        class_bias_init: Initial bias of the class logits, e.g. -4.6 for a prior of 0.01.
        dropout_keep_probability: Below 1, features of the class head are dropped in training.
        is_training: Whether dropout drops.
        sigmoid_scores: Predict probabilities instead of logits.
        clip_range: Box encodings are clipped to these bounds; None does not clip.
    """

    num_class_slots: int
    box_code_size: int
    kernel_size: int
    use_depthwise: bool
    class_bias_init: float
    dropout_keep_probability: float
    is_training: bool
    sigmoid_scores: bool
    clip_range: Optional[Tuple[float, float]]

    def __post_init__(self) -> None:
        for field in ("num_class_slots", "box_code_size", "kernel_size"):
            if getattr(self, field) < 1:
                raise ConfigError(
                    f"box_predictor: {field} must be 1 or more; got {getattr(self, field)}"
                )
        if not 0 < self.dropout_keep_probability <= 1:
            raise ConfigError(
                "box_predictor: dropout_keep_probability must be above 0 and at most 1; got "
                f"{self.dropout_keep_probability}"
            )
        if self.clip_range and self.clip_range[0] > self.clip_range[1]:
            raise ConfigError(
                f"box_predictor: in box_encodings_clip_range min exceeds max: {self.clip_range}"
            )


def make_head_options(
    config: Any, num_classes: int, add_background_class: bool, is_training: bool
) -> HeadOptions:
    """Options from the fields that the messages of all convolutional heads have.

    Args:
        config: The message.
        num_classes: Foreground classes.
        add_background_class: Whether the class scores have a background column.
        is_training: Whether dropout drops.

    Raises:
        ConfigError: if a value is out of range.
    """
    clip = config.box_encodings_clip_range
    return HeadOptions(
        num_class_slots=num_classes + int(add_background_class),
        box_code_size=config.box_code_size,
        kernel_size=config.kernel_size,
        use_depthwise=config.use_depthwise,
        class_bias_init=config.class_prediction_bias_init,
        dropout_keep_probability=config.dropout_keep_probability if config.use_dropout else 1.0,
        is_training=is_training,
        sigmoid_scores=False,
        clip_range=(clip.min, clip.max) if config.HasField("box_encodings_clip_range") else None,
    )


def plain_output() -> Any:
    """Argument scope of a prediction layer: a bias, no normalization and no activation."""
    return slim.arg_scope(
        [slim.conv2d, slim.separable_conv2d],
        activation_fn=None,
        normalizer_fn=None,
        normalizer_params=None,
    )


def per_anchor(output: tf.Tensor, depth: int) -> tf.Tensor:
    """[B, h, w, anchors * depth] -> [B, h * w * anchors, depth]; static sizes stay static."""
    batch, height, width, channels = output.shape.as_list()
    known = None not in (height, width)
    rows = height * width * channels // depth if known else -1
    if batch is None and rows == -1:
        batch = tf.shape(output)[0]
    return tf.reshape(output, [-1 if batch is None else batch, rows, depth])


def predict_boxes(
    features: tf.Tensor, anchors: int, options: HeadOptions, layer: Layer, name: str
) -> tf.Tensor:
    """Box encodings [B, A, code_size] of one feature map, clipped if configured."""
    output = layer(features, anchors * options.box_code_size, name)
    encodings = per_anchor(output, options.box_code_size)
    return tf.clip_by_value(encodings, *options.clip_range) if options.clip_range else encodings


def predict_classes(
    features: tf.Tensor, anchors: int, options: HeadOptions, layer: Layer
) -> tf.Tensor:
    """Logits, or probabilities, [B, A, num_class_slots] of one feature map, after dropout."""
    if options.dropout_keep_probability < 1.0:
        features = slim.dropout(
            features, keep_prob=options.dropout_keep_probability, is_training=options.is_training
        )
    biases = tf1.constant_initializer(options.class_bias_init)
    output = layer(
        features, anchors * options.num_class_slots, "ClassPredictor", biases_initializer=biases
    )
    scores = per_anchor(output, options.num_class_slots)
    return tf.sigmoid(scores) if options.sigmoid_scores else scores


def check_maps(feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]) -> None:
    """ConfigError unless there is one anchor count per feature map."""
    if len(feature_maps) != len(num_per_location):
        raise ConfigError(
            f"anchor_generator: has {len(num_per_location)} layers, the feature extractor makes "
            f"{len(feature_maps)} feature maps; set equal numbers"
        )


def joined(boxes: Sequence[tf.Tensor], classes: Sequence[tf.Tensor]) -> Prediction:
    """Predictions of all maps, one after the other."""
    return Prediction(tf.concat(boxes, axis=1), tf.concat(classes, axis=1))


def make_box_head(
    config: Any,
    num_classes: int,
    *,
    add_background_class: bool,
    is_training: bool,
    norm_is_training: bool,
) -> BoxHead:
    """The box head of a `BoxPredictor` message; builds no graph.

    Args:
        config: The message.
        num_classes: Foreground classes.
        add_background_class: Whether the class scores have a background column.
        is_training: Whether dropout drops.
        norm_is_training: Whether batch norm learns.

    Raises:
        ConfigError: if no known head is set or an option is out of range.
    """
    return BOX_HEADS.make_chosen(
        config,
        "box_predictor_oneof",
        "box_predictor",
        num_classes,
        add_background_class,
        is_training,
        norm_is_training,
    )

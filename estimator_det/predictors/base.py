"""Interface of a single-shot detector's box head, and the parts that box heads share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.console.printing import counted
from estimator_det.errors import Problem, UsageError, error
from estimator_det.nets.object_paths import Paths
from estimator_det.protos import box_predictor_pb2

BOX_HEADS: Registry[Callable[..., BoxHead]] = Registry(
    "box predictor", chosen_by="BoxPredictor.box_predictor_oneof"
)

Layer = Callable[..., tf.Tensor]  # (features, channels, scope name, slim settings) -> output


class Prediction(NamedTuple):
    """Output of a head for all feature maps together, A anchors in the order of the maps."""

    box_encodings: tf.Tensor  # float [B, A, code_size]
    class_logits: tf.Tensor  # float [B, A, num_class_slots]


class BoxHead(Protocol):
    """Predicts box encodings and class logits from feature maps; has no state between calls."""

    def predict(
        self, feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]
    ) -> Prediction:
        """Predicts from maps [B, h_i, w_i, c_i] with these numbers of anchors per cell."""

    def object_paths(self, scopes: Sequence[str]) -> Paths:
        """Paths of the head's layers in object-based checkpoints of the TF2 line."""


@dataclass(frozen=True)
class HeadOptions:
    """Settings of the last layers, which compute predictions from features."""

    num_class_slots: int  # class scores per anchor, including the background column if there is one
    box_code_size: int  # numbers that encode a box
    kernel_size: int  # height and width of the convolutions' kernels
    use_depthwise: bool = False  # split the convolutions into depthwise and pointwise halves
    class_bias_init: float = 0.0  # initial bias of the class logits, e.g. -4.6 for a prior of 0.01.
    dropout_keep_probability: float = (
        1.0  # below 1, features of the class head are dropped in training
    )
    is_training: bool = False  # True if dropout is active
    sigmoid_scores: bool = False  # predict probabilities instead of logits
    clip_range: Optional[Tuple[float, float]] = None  # bounds of box encodings; None for no bounds


ConvolutionalMessage = Union[
    box_predictor_pb2.ConvolutionalBoxPredictor,
    box_predictor_pb2.WeightSharedConvolutionalBoxPredictor,
]


@rules(
    box_predictor_pb2.ConvolutionalBoxPredictor,
    box_predictor_pb2.WeightSharedConvolutionalBoxPredictor,
)
def _check_clip_range(config: ConvolutionalMessage, at: str) -> Iterator[Problem]:
    clip = config.box_encodings_clip_range
    if clip.min > clip.max:
        message = f"is {clip.min:g}, above max, which is {clip.max:g}"
        yield error(f"{at}.box_encodings_clip_range.min", message, "lower it")


def make_head_options(
    config: ConvolutionalMessage,
    num_classes: int,
    add_background_class: bool,
    is_training: bool,
) -> HeadOptions:
    """Builds options from the fields that the messages of all convolutional heads have."""
    clip = config.box_encodings_clip_range
    return HeadOptions(
        num_class_slots=num_classes + int(add_background_class),
        box_code_size=config.box_code_size,
        kernel_size=config.kernel_size,
        use_depthwise=config.use_depthwise,
        class_bias_init=config.class_prediction_bias_init,
        dropout_keep_probability=config.dropout_keep_probability if config.use_dropout else 1.0,
        is_training=is_training,
        clip_range=(clip.min, clip.max) if config.HasField("box_encodings_clip_range") else None,
    )


def check_num_maps(feature_maps: Sequence[tf.Tensor], num_per_location: Sequence[int]) -> None:
    """Raises UsageError if the network of a plug-in has more or fewer maps than the anchors."""
    if len(feature_maps) != len(num_per_location):
        raise UsageError(
            f"the feature extractor makes {counted(len(feature_maps), 'feature map')}, and the "
            f"anchor generator has {counted(len(num_per_location), 'layer')}; set equal numbers"
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
    """Reshapes [B, h, w, anchors * depth] to [B, h * w * anchors, depth]; static sizes stay so."""
    batch, height, width, channels = output.shape.as_list()
    is_static = None not in (height, width)
    # tf.reshape infers a single size, so the batch or the rows must be known.
    rows = height * width * channels // depth if is_static else -1
    if batch is None and rows == -1:
        batch = tf.shape(output)[0]
    return tf.reshape(output, [-1 if batch is None else batch, rows, depth])


def predict_boxes(
    features: tf.Tensor, anchors: int, options: HeadOptions, layer: Layer, name: str
) -> tf.Tensor:
    """Predicts box encodings [B, A, code_size] of one feature map, clipped if configured."""
    output = layer(features, anchors * options.box_code_size, name)
    encodings = per_anchor(output, options.box_code_size)
    return tf.clip_by_value(encodings, *options.clip_range) if options.clip_range else encodings


def predict_classes(
    features: tf.Tensor, anchors: int, options: HeadOptions, layer: Layer
) -> tf.Tensor:
    """Predicts logits, or probabilities, [B, A, num_class_slots] of one feature map."""
    if options.dropout_keep_probability < 1.0:
        features = slim.dropout(
            features, keep_prob=options.dropout_keep_probability, is_training=options.is_training
        )
    # A low prior keeps the loss of the many negatives small in the first steps.
    biases = tf1.constant_initializer(options.class_bias_init)
    output = layer(
        features, anchors * options.num_class_slots, "ClassPredictor", biases_initializer=biases
    )
    scores = per_anchor(output, options.num_class_slots)
    return tf.sigmoid(scores) if options.sigmoid_scores else scores


def concat_maps(boxes: Sequence[tf.Tensor], classes: Sequence[tf.Tensor]) -> Prediction:
    """Concatenates the predictions of all maps."""
    return Prediction(tf.concat(boxes, axis=1), tf.concat(classes, axis=1))


def make_box_head(
    config: box_predictor_pb2.BoxPredictor,
    num_classes: int,  # foreground classes
    *,
    add_background_class: bool,  # True if the class scores have a background column
    is_training: bool,  # True if dropout is active
    norm_is_training: bool,  # True if batch norm learns
    tf2_line: bool = False,  # True for a head of the TF2 line
) -> BoxHead:
    """Builds the box head of a `BoxPredictor` message, but no graph."""
    return BOX_HEADS.make_chosen(
        config, num_classes, add_background_class, is_training, norm_is_training, tf2_line
    )

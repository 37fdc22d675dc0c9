"""Attention of boxes to features of other images of the same camera (Context R-CNN).

Source: Beery et al., 2020 (https://arxiv.org/abs/1912.03538). Numbers and variables are those of
the reference, which extends the paper by several heads and layers and by attention among the boxes
of one image.

Letters: B images, N boxes of an image (padded), M things that they attend to (padded), C channels
of a box's features, D channels of the bottleneck, S context features of length F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, NamedTuple, Optional

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.context import check_context
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Context
from estimator_det.nets.normalization import batch_norm
from estimator_det.protos import faster_rcnn_pb2

POST_RPN = faster_rcnn_pb2.POST_RPN
POST_BOX_CLASSIFIER = faster_rcnn_pb2.POST_BOX_CLASSIFIER
MASKED = -1e9  # similarity of padding; a softmax over padding alone is uniform, not NaN


class Surroundings(NamedTuple):
    """What the boxes of a batch can attend to."""

    valid: tf.Tensor  # bool [B, N], which boxes are no padding
    context: Optional[Context] = None


@dataclass(frozen=True)
class ContextAttention:
    """Adds to the features of boxes what these find by attention.

    Attributes:
        position: Features that attend: of crops, POST_RPN, or of boxes, POST_BOX_CLASSIFIER.
        bottleneck: D.
        temperature: Of the softmax over similarities.
        feature_length: F.
        heads: Of the attention to context features, whose results are averaged.
        layers: Of the attention to context features, one after the other.
        among_boxes: Whether boxes attend to the boxes of their image.
        to_context: Whether boxes attend to context features.
        in_sequence: Whether the result of the former attends to context features, too.
        is_training: Whether batch norm uses and learns from batch statistics.
    """

    position: int
    bottleneck: int
    temperature: float
    feature_length: int
    heads: int = 1
    layers: int = 1
    among_boxes: bool = False
    to_context: bool = True
    in_sequence: bool = False
    is_training: bool = False

    def __call__(self, features: tf.Tensor, around: Surroundings) -> tf.Tensor:
        """Features [B * N, h, w, C] -> the same shape; calls share variables.

        Raises:
            ConfigError: if context features are needed and missing, or have another length.
        """
        valid = around.valid
        boxes = _per_image(tf.reduce_mean(features, axis=[1, 2]), valid)
        names = _output_names()
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            found = self._found(boxes, valid, around.context, names)
        rows = tf.reshape(found, [-1, features.shape[3]])
        return features + rows[:, tf.newaxis, tf.newaxis, :]

    def _found(
        self,
        boxes: tf.Tensor,
        valid: tf.Tensor,
        context: Optional[Context],
        names: Iterator[str],
    ) -> tf.Tensor:
        """What boxes [B, N, C] find, [B, N, C]."""
        among = None
        if self.among_boxes:
            among = self._attend(boxes, valid, boxes, valid, "SelfAttentionBlock", next(names))
            if not self.to_context:
                return among
        start = boxes if among is None or not self.in_sequence else (boxes + among) / 2.0
        seen = self._checked(context)
        count = seen.features.shape[1] or tf.shape(seen.features)[1]
        is_real = tf.sequence_mask(seen.num, count)
        net = start
        for layer in range(self.layers):
            answers = [
                self._attend(
                    net,
                    valid,
                    tf.cast(seen.features, boxes.dtype),
                    is_real,
                    f"AttentionBlock{head}_AttentionLayer{layer}",
                    next(names),
                )
                for head in range(self.heads)
            ]
            net += tf.add_n(answers) / float(self.heads)
        found = net + start
        return found if among is None or self.in_sequence else found + among

    def _attend(
        self,
        boxes: tf.Tensor,
        is_box: tf.Tensor,
        seen: tf.Tensor,
        is_seen: tf.Tensor,
        scope: str,
        output_scope: str,
    ) -> tf.Tensor:
        """Boxes [B, N, C] attend to [B, M, F]: [B, N, C]; `is_box` [B, N], `is_seen` [B, M]."""
        with tf1.variable_scope(scope):
            queries = self._projected(boxes, self.bottleneck, "fully_connected", is_box)
            keys = self._projected(seen, self.bottleneck, "fully_connected_1", is_seen)
            values = self._projected(seen, self.bottleneck, "fully_connected_2", is_seen)
        # bfloat16 has three digits, which a low temperature would magnify.
        similarity = tf.cast(tf.matmul(queries, keys, transpose_b=True), tf.float32)
        similarity = tf.where(is_seen[:, tf.newaxis], similarity / self.temperature, MASKED)
        weights = tf.cast(tf.nn.softmax(similarity), values.dtype)
        return self._projected(tf.matmul(weights, values), boxes.shape[2], output_scope)

    def _projected(
        self, rows: tf.Tensor, depth: int, scope: str, keep: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        """[B, M, any] -> [B, M, depth]; with `keep` [B, M] of length 1, or 0 where that is false.

        Padding is part of the batch's statistics, as in the reference.
        """
        flat = slim.fully_connected(
            tf.reshape(rows, [-1, rows.shape[2]]),
            depth,
            activation_fn=tf.nn.relu6,
            normalizer_fn=batch_norm,
            normalizer_params={"decay": 0.97, "scale": True, "is_training": self.is_training},
            scope=scope,
        )
        projected = _per_image(flat, rows)
        if keep is None:
            return projected
        unit = tf.math.l2_normalize(tf.cast(projected, tf.float32), axis=-1)
        return tf.cast(tf.where(keep[..., tf.newaxis], unit, 0.0), rows.dtype)

    def _checked(self, context: Optional[Context]) -> Context:
        if context is None:
            raise ConfigError(
                "faster_rcnn.context_config: the model needs context features, and the input has "
                "none; set load_context_features: true in train_input_reader and "
                "eval_input_reader"
            )
        length = context.features.shape[2]
        if length not in (None, self.feature_length):
            raise ConfigError(
                "faster_rcnn.context_config.context_feature_length: is "
                f"{self.feature_length}, and the context features have {length} numbers each; "
                f"set it to {length}"
            )
        features = tf.ensure_shape(context.features, [None, None, self.feature_length])
        return Context(features, context.num)


def _output_names() -> Iterator[str]:
    """Scopes of the layers that end the blocks of attention, in the order of the blocks."""
    yield "fully_connected"
    number = 1
    while True:
        yield f"fully_connected_{number}"
        number += 1


def _per_image(rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Rows [B * M, depth] -> [B, M, depth], with B and M of `like` [B, M, …]."""
    static, dynamic = like.shape[:2].as_list(), tf.shape(like)
    sizes = [dynamic[axis] if size is None else size for axis, size in enumerate(static)]
    split = tf.reshape(rows, [*sizes, rows.shape[1]])
    return tf.ensure_shape(split, [*static, rows.shape[1]])


def refuse_impossible(model: Any) -> None:
    """ConfigError for a `FasterRcnn` message that cannot have its `context_config`."""
    for problem in check_context(model, "faster_rcnn"):
        if problem.severity == "error":
            raise ConfigError(f"{problem.field}: {problem.message}; {problem.remedy}")


def make_context_attention(model: Any, is_training: bool) -> Optional[ContextAttention]:
    """The attention of a `FasterRcnn` message; None without a `context_config`."""
    if not model.HasField("context_config"):
        return None
    config = model.context_config
    return ContextAttention(
        position=config.attention_position,
        bottleneck=config.attention_bottleneck_dimension,
        temperature=config.attention_temperature,
        feature_length=config.context_feature_length,
        heads=config.num_attention_heads,
        layers=config.num_attention_layers,
        among_boxes=config.use_self_attention,
        to_context=config.use_long_term_attention,
        in_sequence=config.self_attention_in_sequence and config.use_self_attention,
        is_training=is_training,
    )

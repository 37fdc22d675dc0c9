"""Attention of boxes to features of other images of the same camera (Context R-CNN).

Source: Beery et al., 2020 (https://arxiv.org/abs/1912.03538). Numbers and variables are as in
the Object Detection API, which extends the paper by several heads and layers and by attention among
the boxes of one image.

Letters: B images, N boxes of an image (padded), M rows of attention memory (padded), C channels of
a box's features, D channels of the bottleneck, S context features of length F.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Iterator, NamedTuple, Optional

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.field_rules import no_effect
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.nets.normalization import batch_norm
from estimator_det.nets.roi import split_rows
from estimator_det.protos import faster_rcnn_pb2

POST_RPN = faster_rcnn_pb2.POST_RPN
POST_BOX_CLASSIFIER = faster_rcnn_pb2.POST_BOX_CLASSIFIER
MASKED = -1e9  # similarity of padding; a softmax over padding alone is uniform, not NaN


class Context(NamedTuple):
    """Features of other images; rows past `num` are padding, the same number for each image."""

    features: tf.Tensor  # float32 [B, S, F]
    num: tf.Tensor  # int32 [B]


class AttentionContext(NamedTuple):
    """Valid boxes and context features to attend to."""

    valid: tf.Tensor  # bool [B, N], False for padding
    context: Optional[Context] = None


@dataclass(frozen=True)
class ContextAttention:
    """Adds attended features to the features of boxes."""

    position: int  # features that attend: of crops, POST_RPN, or of boxes, POST_BOX_CLASSIFIER
    bottleneck: int  # D
    temperature: float  # divisor of similarities before the softmax
    feature_length: int  # F
    heads: int = 1  # heads of the attention to context features; their results are averaged
    layers: int = 1  # layers of the attention to context features
    self_attention: bool = False  # True if boxes attend to the boxes of their image
    context_attention: bool = True  # True if boxes attend to context features
    sequential: bool = False  # True if context attention starts from the result of self-attention
    is_training: bool = False  # True if batch norm uses batch statistics and learns

    def __call__(self, features: tf.Tensor, attention_context: AttentionContext) -> tf.Tensor:
        """Attends with features [B * N, h, w, C] -> the same shape; calls share variables."""
        valid = attention_context.valid
        boxes = split_rows(tf.reduce_mean(features, axis=[1, 2]), valid)
        # Scopes of the layers that end the attention blocks, in order of the blocks.
        numbered = (f"fully_connected_{number}" for number in itertools.count(1))
        names = itertools.chain(["fully_connected"], numbered)
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            attended = self._attended_features(boxes, valid, attention_context.context, names)
        rows = tf.reshape(attended, [-1, features.shape[3]])
        return features + rows[:, tf.newaxis, tf.newaxis, :]

    def _attended_features(
        self, boxes: tf.Tensor, valid: tf.Tensor, context: Optional[Context], names: Iterator[str]
    ) -> tf.Tensor:
        """Computes the features that boxes [B, N, C] get by attention, [B, N, C]."""
        self_attended = None
        if self.self_attention:
            self_attended = self._attend(
                boxes, valid, boxes, valid, "SelfAttentionBlock", next(names)
            )
            if not self.context_attention:
                return self_attended
        inputs = (
            boxes if self_attended is None or not self.sequential else (boxes + self_attended) / 2.0
        )
        assert context is not None
        memory = tf.ensure_shape(context.features, [None, None, self.feature_length])
        count = memory.shape[1] or tf.shape(memory)[1]
        is_real = tf.sequence_mask(context.num, count)
        net = inputs
        for layer in range(self.layers):
            head_outputs = [
                self._attend(
                    net,
                    valid,
                    tf.cast(memory, boxes.dtype),
                    is_real,
                    f"AttentionBlock{head}_AttentionLayer{layer}",
                    next(names),
                )
                for head in range(self.heads)
            ]
            net += tf.add_n(head_outputs) / float(self.heads)
        attended = net + inputs
        return attended if self_attended is None or self.sequential else attended + self_attended

    def _attend(
        self,
        boxes: tf.Tensor,
        is_box: tf.Tensor,
        memory: tf.Tensor,
        is_memory: tf.Tensor,
        scope: str,
        output_scope: str,
    ) -> tf.Tensor:
        """Attends with boxes [B, N, C] to memory [B, M, F]; flags [B, N], [B, M] -> [B, N, C]."""
        with tf1.variable_scope(scope):
            queries = self._project(boxes, self.bottleneck, "fully_connected", is_box)
            keys = self._project(memory, self.bottleneck, "fully_connected_1", is_memory)
            values = self._project(memory, self.bottleneck, "fully_connected_2", is_memory)
        # In float32, because bfloat16 has three digits, and a low temperature magnifies the error.
        similarity = tf.cast(tf.matmul(queries, keys, transpose_b=True), tf.float32)
        similarity = tf.where(is_memory[:, tf.newaxis], similarity / self.temperature, MASKED)
        weights = tf.cast(tf.nn.softmax(similarity), values.dtype)
        return self._project(tf.matmul(weights, values), boxes.shape[2], output_scope)

    def _project(
        self, rows: tf.Tensor, depth: int, scope: str, keep: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        """Projects [B, M, any] to [B, M, depth], with `keep` [B, M] to length 1 or 0.

        Padding is part of the batch's statistics, like in the API.
        """
        flat = slim.fully_connected(
            tf.reshape(rows, [-1, rows.shape[2]]),
            depth,
            activation_fn=tf.nn.relu6,
            normalizer_fn=batch_norm,
            normalizer_params={"decay": 0.97, "scale": True, "is_training": self.is_training},
            scope=scope,
        )
        projected = split_rows(flat, rows)
        if keep is None:
            return projected
        unit = tf.math.l2_normalize(tf.cast(projected, tf.float32), axis=-1)
        return tf.cast(tf.where(keep[..., tf.newaxis], unit, 0.0), rows.dtype)


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_context(model: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    if not model.HasField("context_config"):
        return
    config, at = model.context_config, f"{at}.context_config"
    if model.number_of_stages == 1:
        yield error(at, "needs a second stage, which attends", "use 2 stages, or remove it")
    elif model.second_stage_box_predictor.HasField("rfcn_box_predictor"):
        yield error(
            at,
            "rfcn_box_predictor has no features of single boxes, which attend",
            "use mask_rcnn_box_predictor, or remove it",
        )
    if config.attention_position == faster_rcnn_pb2.ATTENTION_DEFAULT:
        yield error(
            f"{at}.attention_position",
            "ATTENTION_DEFAULT is no position",
            "set it to POST_BOX_CLASSIFIER or POST_RPN",
        )
    if not (config.use_long_term_attention or config.use_self_attention):
        yield error(
            f"{at}.use_long_term_attention",
            "is false, and so is use_self_attention: nothing attends",
            "set one of them to true, or remove context_config",
        )
    elif config.self_attention_in_sequence and not config.use_long_term_attention:
        yield no_effect(f"{at}.self_attention_in_sequence", "use_long_term_attention is not set")


def make_context_attention(
    model: faster_rcnn_pb2.FasterRcnn, is_training: bool
) -> Optional[ContextAttention]:
    """Builds the attention of a `FasterRcnn` message; None without a `context_config`."""
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
        self_attention=config.use_self_attention,
        context_attention=config.use_long_term_attention,
        sequential=config.self_attention_in_sequence and config.use_self_attention,
        is_training=is_training,
    )

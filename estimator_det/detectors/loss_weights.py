"""Weights instead of sampled negatives: the expected loss of sampling, without sampling.

Letters: B batch, N anchors (or anchor-class pairs) of an image.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

from estimator_det.compat import tf
from estimator_det.protos import losses_pb2


class LossWeights(NamedTuple):
    """Factors of an anchor's two losses."""

    assigned: tf.Tensor  # float32 [B, N], factor of the loss with the assigned target
    background: tf.Tensor  # float32 [B, N], factor of the loss with the background target


ExpectedWeights = Callable[[tf.Tensor], LossWeights]


def negative_rate(foreground: tf.Tensor, least_negatives: float, ratio: float) -> tf.Tensor:
    """Computes the share of an image's background anchors that sampling would keep.

    With `ratio` negatives for each positive, the share is `ratio * M / (N - M)`, M being the sum of
    the foreground probabilities; `least_negatives / N` without positives.

    Foreground is float32 [B, N], the probability that an anchor is foreground; the result [B, 1].
    """
    count = tf.cast(tf.shape(foreground)[1], tf.float32)
    positives = tf.reduce_sum(foreground, axis=1, keepdims=True)
    share = tf.math.divide_no_nan(ratio * positives, count - positives)
    return tf.where(positives > 0.0, share, least_negatives / count)


def make_expected_weights(config: losses_pb2.Loss) -> Optional[ExpectedWeights]:
    """Builds the function foreground [B, N] -> weights of a `Loss` message; None if it has none."""
    kind = config.expected_loss_weights
    if kind == losses_pb2.Loss.NONE:
        return None
    least, ratio = config.min_num_negative_samples, config.desired_negative_sampling_ratio

    def weights(foreground: tf.Tensor) -> LossWeights:
        background = negative_rate(foreground, least, ratio) * (1.0 - foreground)
        if kind == losses_pb2.Loss.EXPECTED_SAMPLING:
            # Each anchor is foreground with its probability.
            return LossWeights(foreground, background)
        # REWEIGHTING_UNMATCHED_ANCHORS: anchors keep their assigned target.
        return LossWeights(foreground + background, tf.zeros_like(foreground))

    return weights

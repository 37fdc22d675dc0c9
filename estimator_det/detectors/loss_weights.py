"""Weights instead of sampled negatives: the expected loss of sampling, without sampling.

Letters: B batch, N anchors (or anchor-class pairs) of an image.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional

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


def expected_sampling(foreground: tf.Tensor, least_negatives: float, ratio: float) -> LossWeights:
    """Weights for the expected loss if each anchor is foreground with its probability.

    Arguments are those of `negative_rate`.
    """
    rate = negative_rate(foreground, least_negatives, ratio)
    return LossWeights(foreground, rate * (1.0 - foreground))


def reweighted_unmatched(
    foreground: tf.Tensor, least_negatives: float, ratio: float
) -> LossWeights:
    """Weights with the sampling rate for background anchors; anchors keep their assigned target.

    Arguments are those of `negative_rate`.
    """
    rate = negative_rate(foreground, least_negatives, ratio)
    return LossWeights(foreground + rate * (1.0 - foreground), tf.zeros_like(foreground))


_KINDS: Dict[int, Callable[[tf.Tensor, float, float], LossWeights]] = {
    losses_pb2.Loss.EXPECTED_SAMPLING: expected_sampling,
    losses_pb2.Loss.REWEIGHTING_UNMATCHED_ANCHORS: reweighted_unmatched,
}


def make_expected_weights(config: Any) -> Optional[ExpectedWeights]:
    """Builds the function foreground [B, N] -> weights of a `Loss` message; None if it has none."""
    if config.expected_loss_weights == losses_pb2.Loss.NONE:
        return None
    least, ratio = config.min_num_negative_samples, config.desired_negative_sampling_ratio
    compute_weights = _KINDS[config.expected_loss_weights]
    return lambda foreground: compute_weights(foreground, least, ratio)

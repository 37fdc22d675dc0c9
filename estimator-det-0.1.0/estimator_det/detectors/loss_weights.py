"""Weights instead of sampling negatives: the loss expected under sampling, without sampling.

Letters: B batch, N anchors (or anchor-class pairs) of an image.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional

from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.config.text import ConfigError
from estimator_det.protos import losses_pb2

TPU = TpuAdvice("loss.expected_loss_weights", "set it to NONE")


class LossWeights(NamedTuple):
    """Factors of each anchor's two losses."""

    assigned: tf.Tensor  # float32 [B, N], of the loss against the assigned target
    background: tf.Tensor  # float32 [B, N], of the loss against the background target


ExpectedWeights = Callable[[tf.Tensor], LossWeights]


def negative_rate(foreground: tf.Tensor, least_negatives: float, ratio: float) -> tf.Tensor:
    """Share of an image's background anchors that sampling would keep.

    `ratio` negatives are wanted for each positive, so the share is `ratio * M / (N - M)` with M
    the sum of the foreground probabilities; `least_negatives / N` where there are no positives.

    Args:
        foreground: float32 [B, N], probability that an anchor is foreground.
        least_negatives: Negatives wanted of an image without positives.
        ratio: Negatives wanted for each positive.

    Returns:
        float32 [B, 1].
    """
    count = tf.cast(tf.shape(foreground)[1], tf.float32)
    positives = tf.reduce_sum(foreground, axis=1, keepdims=True)
    share = tf.math.divide_no_nan(ratio * positives, count - positives)
    return tf.where(positives > 0.0, share, least_negatives / count)


def expected_sampling(foreground: tf.Tensor, least_negatives: float, ratio: float) -> LossWeights:
    """The loss expected if every anchor were drawn as foreground with its probability.

    Arguments are those of `negative_rate`.
    """
    rate = negative_rate(foreground, least_negatives, ratio)
    return LossWeights(foreground, rate * (1.0 - foreground))


def reweighted_unmatched(
    foreground: tf.Tensor, least_negatives: float, ratio: float
) -> LossWeights:
    """Every anchor keeps its assigned target; the weight of background ones is the sampling rate.

    Arguments are those of `negative_rate`.
    """
    rate = negative_rate(foreground, least_negatives, ratio)
    return LossWeights(foreground + rate * (1.0 - foreground), tf.zeros_like(foreground))


_KINDS: Dict[int, Callable[[tf.Tensor, float, float], LossWeights]] = {
    losses_pb2.Loss.EXPECTED_SAMPLING: expected_sampling,
    losses_pb2.Loss.REWEIGHTING_UNMATCHED_ANCHORS: reweighted_unmatched,
}


def make_expected_weights(config: Any) -> Optional[ExpectedWeights]:
    """Foreground probabilities [B, N] -> weights, of a `Loss` message; None if it has none.

    Raises:
        ConfigError: if a number is negative.
    """
    if config.expected_loss_weights == losses_pb2.Loss.NONE:
        return None
    least, ratio = config.min_num_negative_samples, config.desired_negative_sampling_ratio
    if least < 0 or ratio < 0:
        raise ConfigError(
            "ssd.loss: min_num_negative_samples and desired_negative_sampling_ratio must not be "
            f"negative; got {least} and {ratio}"
        )
    weigh = _KINDS[config.expected_loss_weights]
    return lambda foreground: weigh(foreground, least, ratio)

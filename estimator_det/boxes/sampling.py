"""Sampling of anchors or proposals, which limits the number of negatives per positive."""

from __future__ import annotations

from typing import Callable, Optional

from estimator_det.compat import tf

Sampler = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def balanced_sample(
    indicator: tf.Tensor,
    labels: tf.Tensor,
    batch_size: Optional[int],
    positive_fraction: float = 0.5,
) -> tf.Tensor:
    """Samples each image at random with a bounded share of positives.

    With a `batch_size`, at most `positive_fraction` of it (rounded down) are positives, and
    negatives fill the rest. Without it, all positives are sampled, and negatives until the share of
    positives is `positive_fraction`; an image without positives then has an empty sample. If there
    are fewer candidates than that, all are sampled. Shapes are static, so that TPU can use it, too.

    Candidates (`indicator`), positives (`labels`) and samples are bool [B, A].
    """
    positive = tf.logical_and(indicator, labels)
    negative = tf.logical_and(indicator, tf.logical_not(labels))
    num_positive = tf.reduce_sum(tf.cast(positive, tf.int32), axis=1, keepdims=True)
    if batch_size is None:
        num_positive_samples = num_positive
        negatives_per_positive = (1.0 - positive_fraction) / positive_fraction
        num_negative_samples = tf.cast(
            negatives_per_positive * tf.cast(num_positive, tf.float32), tf.int32
        )
    else:
        num_positive_samples = tf.minimum(num_positive, int(positive_fraction * batch_size))
        num_negative_samples = batch_size - num_positive_samples

    # One shuffle of all anchors, positives first, then negatives: places in it decide.
    # Places, not random numbers, because equal random numbers do occur among many anchors.
    group = tf.where(positive, 0.0, tf.where(negative, 1.0, 2.0))
    order = tf.argsort(group + tf.random.uniform(tf.shape(labels)), axis=1)
    place = tf.argsort(order, axis=1)
    positive_samples = tf.logical_and(positive, place < num_positive_samples)
    negative_samples = tf.logical_and(negative, place - num_positive < num_negative_samples)
    return tf.logical_or(positive_samples, negative_samples)

"""Exclusion of images and classes from a loss."""

from __future__ import annotations

from estimator_det.compat import tf


def zero_images(rows: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """Replaces rows [B, ...] by zeros for images whose `keep` (bool [B]) is False."""
    # Not a product, which would keep NaN and infinity of those images.
    per_image = tf.reshape(keep, [-1] + [1] * (rows.shape.rank - 1))
    return tf.where(per_image, rows, tf.zeros([], rows.dtype))


def class_columns(class_indices: tf.Tensor, num_classes: int) -> tf.Tensor:
    """1 at the listed classes, else 0: int [n] -> float32 [num_classes]; repeats count once."""
    is_listed = tf.one_hot(
        class_indices, num_classes, on_value=True, off_value=False, dtype=tf.bool
    )
    return tf.cast(tf.reduce_any(is_listed, axis=0), tf.float32)

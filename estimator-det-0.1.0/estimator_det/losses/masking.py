"""What keeps images and classes out of a loss."""

from __future__ import annotations

from estimator_det.compat import tf


def zero_images(rows: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """Rows [B, ...] with zeros for the images where `keep` (bool [B]) is False.

    A product would carry NaN and infinity of those images on.
    """
    per_image = tf.reshape(keep, [-1] + [1] * (rows.shape.rank - 1))
    return tf.where(per_image, rows, tf.zeros([], rows.dtype))


def class_columns(class_indices: tf.Tensor, num_classes: int) -> tf.Tensor:
    """1 at the listed classes, else 0: int [n] -> float32 [num_classes]; repeats count once."""
    listed = tf.one_hot(class_indices, num_classes, on_value=True, off_value=False, dtype=tf.bool)
    return tf.cast(tf.reduce_any(listed, axis=0), tf.float32)

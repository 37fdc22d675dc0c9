"""The number of pixels in the header of an encoded image, in the graph."""

from __future__ import annotations

from estimator_det.compat import tf
from estimator_det.files.image_header import BMP, GIF, JPEG, PNG

_HEAD = 26  # bytes that contain the size in PNG, GIF and BMP
# First bytes, and where and how two sides follow.
_SIDES = ((PNG, 16, tf.int32, False), (GIF, 6, tf.uint16, True), (BMP, 18, tf.int32, True))


def claimed_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Float32 scalar: height times width in the header; 0 for unknown formats.

    Raises:
        InvalidArgumentError: when run, if it starts like a JPEG but has no size.
    """

    def jpeg() -> tf.Tensor:
        return tf.reduce_prod(tf.cast(tf.io.extract_jpeg_shape(encoded), tf.float32)) / 3.0

    def other() -> tf.Tensor:
        head = tf.strings.join([tf.strings.substr(encoded, 0, _HEAD), "\0" * _HEAD])
        pixels = tf.constant(0.0)
        for start, position, dtype, is_little in _SIDES:
            sides = tf.strings.substr(head, position, 2 * dtype.size)
            sides = tf.cast(tf.io.decode_raw(sides, dtype, little_endian=is_little), tf.float32)
            matches = tf.equal(tf.strings.substr(head, 0, len(start)), start)
            pixels += tf.where(matches, tf.abs(tf.reduce_prod(sides)), 0.0)
        return pixels

    is_jpeg = tf.equal(tf.strings.substr(encoded, 0, len(JPEG)), JPEG)
    return tf.cond(is_jpeg, jpeg, other)

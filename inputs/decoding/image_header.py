"""Reads the number of pixels in the header of an encoded image, in the graph."""

from __future__ import annotations

from estimator_det.compat import tf
from estimator_det.files.image_header import BMP, GIF, JPEG, PNG

_HEAD = 26  # bytes that contain the size in PNG, GIF and BMP
# First bytes of a format; position, type and byte order of the two sides.
_SIDES = ((PNG, 16, tf.int32, False), (GIF, 6, tf.uint16, True), (BMP, 18, tf.int32, True))


def claimed_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Height times width in the header, float32 scalar; 0 for unknown formats.

    Running it fails if the image starts like a JPEG but has no size.
    """

    def jpeg_format() -> tf.Tensor:
        return tf.reduce_prod(tf.cast(tf.io.extract_jpeg_shape(encoded), tf.float32)) / 3.0

    def other_format() -> tf.Tensor:
        # Padded, because a truncated file may be shorter than the header.
        head = tf.strings.join([tf.strings.substr(encoded, 0, _HEAD), "\0" * _HEAD])
        pixels = tf.constant(0.0)
        for start, position, dtype, is_little in _SIDES:
            sides = tf.strings.substr(head, position, 2 * dtype.size)
            # abs(): the height of a BMP is negative if its rows start at the top.
            sides = tf.cast(tf.io.decode_raw(sides, dtype, little_endian=is_little), tf.float32)
            matches = tf.equal(tf.strings.substr(head, 0, len(start)), start)
            pixels += tf.where(matches, tf.abs(tf.reduce_prod(sides)), 0.0)
        return pixels

    is_jpeg = tf.equal(tf.strings.substr(encoded, 0, len(JPEG)), JPEG)
    return tf.cond(is_jpeg, jpeg_format, other_format)

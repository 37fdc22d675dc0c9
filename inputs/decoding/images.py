"""Decodes the images of a record, in the graph."""

from __future__ import annotations

import functools
from typing import Callable, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.files.image_header import BMP, GIF, JPEG, PNG
from estimator_det.images.resize import Resizer
from estimator_det.protos import input_reader_pb2
from inputs.decoding.example import Parsed

JPEG_RATIOS = (2, 4, 8)  # by which a JPEG can be decoded smaller
# A decoded picture stays this much larger than the network's input, so that crops stay sharp.
KEPT_SCALE = 2.0

_HEAD = 26  # bytes that contain the size in PNG, GIF and BMP
# First bytes of a format; position, type and byte order of the two sides.
_SIDES = ((PNG, 16, tf.int32, False), (GIF, 6, tf.uint16, True), (BMP, 18, tf.int32, True))


def make_image_decoder(
    config: input_reader_pb2.InputReader, resizer: Optional[Resizer]
) -> Callable[[Parsed], Tuple[tf.Tensor, tf.Tensor]]:
    """Builds the function from a record to its image, uint8 [h, w, C], and its size, int32 [2].

    With `fast_jpeg` the image is smaller than this size if `resizer` shrinks it much more.
    """
    reducing = resizer if config.fast_jpeg else None
    decode: Callable[[Parsed], tf.Tensor]
    if reducing is not None:
        decode = functools.partial(_decode_reduced, resizer=reducing)
    else:
        decode = functools.partial(
            decode_image, num_additional_channels=config.num_additional_channels
        )
    if config.cache == input_reader_pb2.MEMORY:
        decode = _cached(decode)

    def decode_with_size(parsed: Parsed) -> Tuple[tf.Tensor, tf.Tensor]:
        image = decode(parsed)
        if reducing is None:
            return image, tf.shape(image)[:2]
        encoded = parsed["image/encoded"]
        return image, tf.cond(
            _is_jpeg(encoded),
            lambda: tf.io.extract_jpeg_shape(encoded)[:2],
            lambda: tf.shape(image)[:2],
        )

    return decode_with_size


def claimed_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Height times width in the header of an image, float32 scalar; 0 for unknown formats.

    Running it fails if the image starts like a JPEG but has no size.
    """

    def jpeg_format() -> tf.Tensor:
        return tf.reduce_prod(tf.cast(tf.io.extract_jpeg_shape(encoded)[:2], tf.float32))

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

    return tf.cond(_is_jpeg(encoded), jpeg_format, other_format)


def decode_image(parsed: Parsed, num_additional_channels: int) -> tf.Tensor:
    """Decodes an image to uint8 [h, w, 3 + additional]; of an animation the first frame."""
    image = tf.io.decode_image(parsed["image/encoded"], channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    if not num_additional_channels:
        return image
    channels = tf.map_fn(
        lambda encoded: tf.io.decode_image(encoded, channels=1, expand_animations=False)[..., 0],
        parsed["image/additional_channels/encoded"],
        fn_output_signature=tf.TensorSpec([None, None], tf.uint8),
    )
    image = tf.concat([image, tf.transpose(channels, [1, 2, 0])], axis=2)
    return tf.ensure_shape(image, [None, None, 3 + num_additional_channels])


def _cached(decode: Callable[[Parsed], tf.Tensor]) -> Callable[[Parsed], tf.Tensor]:
    """Keeps images that have been decoded once, by their encoded bytes.

    Only decoding is skipped: records are read in the same order, so that resumed runs and the guard
    do not depend on the cache.
    """
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "", checkpoint=False)

    def recall(parsed: Parsed) -> tf.Tensor:
        key = tf.strings.to_hash_bucket_fast(parsed["image/encoded"], tf.int64.max)
        kept = table.lookup(key)

        def add() -> tf.Tensor:
            image = decode(parsed)
            with tf.control_dependencies([table.insert(key, tf.io.serialize_tensor(image))]):
                return tf.identity(image)

        is_new = tf.equal(tf.strings.length(kept), 0)
        image = tf.cond(is_new, add, lambda: tf.io.parse_tensor(kept, tf.uint8))
        return tf.ensure_shape(image, [None, None, 3])

    return recall


def _decode_reduced(parsed: Parsed, resizer: Resizer) -> tf.Tensor:
    """Decodes an image, a large JPEG smaller.

    The smaller picture is an average of the full one. So it has all that the resizer, which picks
    single pixels, would keep.
    """
    encoded = parsed["image/encoded"]

    def full() -> tf.Tensor:
        return tf.io.decode_image(encoded, channels=3, expand_animations=False)

    def jpeg() -> tf.Tensor:
        size = tf.io.extract_jpeg_shape(encoded)[:2]
        resized = tf.stack(resizer.new_size(size[0], size[1]))
        room = tf.reduce_min(size / resized) / KEPT_SCALE
        decoders = [full] + [
            functools.partial(tf.io.decode_jpeg, encoded, channels=3, ratio=ratio)
            for ratio in JPEG_RATIOS
        ]
        branch = tf.reduce_sum(tf.cast(room >= tf.constant(JPEG_RATIOS, room.dtype), tf.int32))
        return tf.switch_case(branch, decoders)

    return tf.ensure_shape(tf.cond(_is_jpeg(encoded), jpeg, full), [None, None, 3])


def _is_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    return tf.equal(tf.strings.substr(encoded, 0, len(JPEG)), JPEG)

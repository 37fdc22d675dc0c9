"""Decodes single images in Python as the pipeline does, and finds JPEGs whose data end too early.

libjpeg completes such images with grey. It prints a warning to standard error, which names no file
and which neither TensorFlow nor Pillow passes on. But an image that lacks data shows other pixels
once data are added behind them; in a whole image, nothing reads them. Missing later scans of a
progressive JPEG, which are details, are not found.
"""

from __future__ import annotations

import functools
import io
import os
import re
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from PIL import JpegImagePlugin

from estimator_det.compat import failures, quick_callable, tf, tf1
from estimator_det.files.image_header import JPEG, PILLOW_ERRORS

END_TOO_EARLY = "its compressed data end too early, so that a part of the image is missing"

_SCAN = b"\xff\xda"
_END_OF_SCAN = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")
_FILLER = bytes(range(1, 255)) * 2
_LARGE = 128  # pixels wide: a second decoding would take long


def lacks_data(encoded: bytes) -> bool:
    """True for a JPEG that can be decoded, but not with its own data alone."""
    if not encoded.startswith(JPEG):
        return False
    end = _END_OF_SCAN.search(encoded, encoded.rfind(_SCAN) + len(_SCAN))
    if end is None:
        return False
    try:
        pixels = _eighth(encoded)
        is_large = pixels.shape[1] > _LARGE // 8
        if is_large and (pixels[-1, -2] != pixels[-1, -1]).any():  # missing rows are flat
            return False
        longer = _eighth(encoded[: end.start()] + _FILLER + encoded[end.start() :])
    except PILLOW_ERRORS:
        return False
    return not np.array_equal(pixels, longer)


def _eighth(encoded: bytes) -> np.ndarray:
    """Pixels of a JPEG at an eighth of its height and width, which is fast."""
    # `Image.open` warns of, or rejects, large images.
    with JpegImagePlugin.JpegImageFile(io.BytesIO(encoded)) as image:
        image.draft(None, (max(image.width // 8, 1), max(image.height // 8, 1)))
        return np.asarray(image)


def decode_mask(encoded: bytes) -> Optional[np.ndarray]:
    """uint8 [h, w] of a PNG mask as the pipeline decodes it; None if it cannot be decoded."""
    try:
        mask: np.ndarray = _image_decoder(os.getpid()).mask(encoded)
    except tf.errors.OpError:  # `decode_size` reports it
        return None
    return mask


def decode_size(encoded: bytes) -> Any:
    """Height and width of an image as TensorFlow decodes it, or the reason why it cannot."""
    try:
        height, width = _image_decoder(os.getpid()).shape(encoded)[:2]
    except tf.errors.OpError as error:
        return failures.reason(error)
    return int(height), int(width)


def decoding_problem(encoded: bytes) -> str:
    """The reason why TensorFlow cannot decode an image; "" if it can.

    Faster than `decode_size` for a JPEG, of which one pixel in 64 is computed.
    """
    decoder = _image_decoder(os.getpid())
    try:
        (decoder.jpeg if encoded.startswith(JPEG) else decoder.shape)(encoded)
    except tf.errors.OpError as error:
        return failures.reason(error)
    return ""


class _Decoder(NamedTuple):
    shape: Callable[[bytes], np.ndarray]
    mask: Callable[[bytes], np.ndarray]
    jpeg: Callable[[bytes], np.ndarray]


@functools.lru_cache(maxsize=1)
def _image_decoder(process: int) -> _Decoder:
    """Functions that decode; not shared with a forked process."""
    del process
    with tf.Graph().as_default() as graph:
        placeholder = tf1.placeholder(tf.string, [])
        image = tf.io.decode_image(placeholder, channels=3, expand_animations=False)
        shape = tf.shape(image)
        mask = tf.io.decode_png(placeholder, channels=1)[..., 0]
        # All coefficients are decoded, but only one pixel in 64 is computed.
        jpeg = tf.size(tf.io.decode_jpeg(placeholder, channels=3, ratio=8))
        # A negative number runs operations in the thread of the caller, without waiting for others.
        config = tf1.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
        session = tf1.Session(graph=graph, config=config)
        fetches = (shape, mask, jpeg)
        return _Decoder(*(quick_callable(session, fetch, placeholder) for fetch in fetches))

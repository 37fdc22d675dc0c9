"""Decodes single images in Python as the pipeline does, and finds JPEGs whose data end too early.

Every program reads image files by `decode_pixels`, so that all see the same pixels:
docs/image_formats.md is the table of formats.

libjpeg fills the missing part of a JPEG with grey. It only prints a warning to standard error,
without the name of the file. But data that are added at the end change the pixels of an image that
lacks data; in a whole image, nothing reads them. Missing later scans of a progressive JPEG, which
are details, are not found.
"""

from __future__ import annotations

import functools
import io
import os
import re
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
from PIL import Image, JpegImagePlugin

from estimator_det.compat import failures, quick_callable, tf, tf1
from estimator_det.files import image_header
from estimator_det.files.image_header import JPEG, PILLOW_ERRORS

END_TOO_EARLY = "its compressed data end too early, so that a part of the image is missing"
AS_GRAY = "whose numbers of colors are decoded as grays; write it as PNG"

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


def decode_pixels(encoded: bytes) -> np.ndarray:
    """uint8 [h, w, 3] of an image file as stored, as the pipeline decodes it.

    Pillow decodes what TensorFlow cannot, and raises PILLOW_ERRORS for what it cannot either.
    """
    if image_header.format_of(encoded) and not image_header.has_color_table(encoded):
        try:
            pixels: np.ndarray = _image_decoder(os.getpid()).pixels(encoded)
        except tf.errors.OpError:  # Pillow reads more kinds of these formats, and names damage
            pass
        else:
            return pixels
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(rgb_image(image))


def rgb_image(image: Image.Image) -> Image.Image:
    """Converts an image to mode RGB; of 16 bits the higher 8 remain, as in the pipeline.

    Raises ValueError for modes without a range of values, such as 32-bit numbers.
    """
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(
            f"its pixels are 32-bit numbers (mode {image.mode}), and black and white are not "
            "known; convert it to 8 or 16 bits"
        )
    elif image.format == "GIF":  # its transparent pixels are black
        canvas = Image.new("RGBA", image.size, "black")
        image = Image.alpha_composite(canvas, image.convert("RGBA"))
    return image.convert("RGB")


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

    Faster than `decode_size` for a JPEG: it computes one pixel in 64.
    """
    decoder = _image_decoder(os.getpid())
    try:
        (decoder.jpeg if encoded.startswith(JPEG) else decoder.shape)(encoded)
    except tf.errors.OpError as error:
        return failures.reason(error)
    return ""


class _Decoder(NamedTuple):
    pixels: Callable[[bytes], np.ndarray]
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
        # Threads within operations are left alone: the first session decides for the process.
        config = tf1.ConfigProto(inter_op_parallelism_threads=-1)
        session = tf1.Session(graph=graph, config=config)
        fetches = (image, shape, mask, jpeg)
        return _Decoder(*(quick_callable(session, fetch, placeholder) for fetch in fetches))

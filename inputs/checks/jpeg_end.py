"""Finds JPEG images whose compressed data end too early, and which decoders complete with grey.

libjpeg prints a warning to standard error, which names no file and which neither TensorFlow nor
Pillow passes on. But an image that lacks data shows other pixels once data are added behind them;
in a whole image, nothing reads them. What a progressive JPEG lacks of its later scans, which are
details, is not found.
"""

from __future__ import annotations

import io
import re

import numpy as np
from PIL import JpegImagePlugin

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
        if is_large and (pixels[-1, -2] != pixels[-1, -1]).any():  # what is missing becomes flat
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

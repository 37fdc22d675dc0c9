"""EXIF orientation: cameras store the sensor's pixels, and how the photo must be rotated."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image

from estimator_det.files.image_header import PILLOW_ERRORS

UPRIGHT = 1
FIRST_TRANSPOSED = 5  # from here on to 8, height and width change places
_TAG = 0x0112
_DAMAGE = (*PILLOW_ERRORS, Image.DecompressionBombError)
# First bytes of a format -> marks of EXIF data. Files without a mark are not parsed, to save time.
_EXIF_MARKS = {b"\xff\xd8": (b"Exif",), b"\x89P": (b"eXIf", b"Raw profile type exif")}


def exif_orientation(encoded: bytes) -> int:
    """Reads the EXIF orientation of a JPEG or PNG file, 1 to 8; UPRIGHT if absent or damaged."""
    if not any(mark in encoded for mark in _EXIF_MARKS.get(encoded[:2], ())):
        return UPRIGHT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(encoded)) as image:
                return image_orientation(image)
    except _DAMAGE:
        return UPRIGHT


def image_orientation(image: Image.Image) -> int:
    """Reads the EXIF orientation of an open image, 1 to 8; UPRIGHT if absent or damaged."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF data
            orientation = image.getexif().get(_TAG, UPRIGHT)
    except _DAMAGE:
        return UPRIGHT
    return int(orientation) if orientation in range(1, 9) else UPRIGHT


def rotate_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotates pixels [h, w, ...] of a file for viewing; a copy unless orientation is UPRIGHT."""
    if orientation == UPRIGHT:
        return pixels
    if orientation >= FIRST_TRANSPOSED:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)

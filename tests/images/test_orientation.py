"""EXIF orientation is read from files and applied as Pillow applies it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from estimator_det.images.orientation import exif_orientation, rotate_upright

TAG = 0x0112
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def encode(orientation: object, kind: str = "PNG") -> bytes:
    exif = Image.Exif()
    exif[TAG] = orientation
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, kind, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_every_orientation(orientation, kind):
    encoded = encode(orientation, kind)
    assert exif_orientation(encoded) == orientation
    with Image.open(io.BytesIO(encoded)) as image:
        pixels, expected = np.asarray(image), np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(rotate_upright(pixels, orientation), expected)


def test_damaged_or_missing_orientation_is_upright():
    assert exif_orientation(encode(0)) == exif_orientation(encode(9)) == 1
    encoded = encode(6, "JPEG")
    assert exif_orientation(encoded.replace(b"Exif\0\0MM", b"Exif\0\0XX")) == 1
    assert exif_orientation(b"\xff\xd8Exif") == exif_orientation(b"") == 1

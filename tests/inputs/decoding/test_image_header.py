"""The size in the header of an image file."""

from __future__ import annotations

import io
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from inputs.decoding import image_header


def jpeg(height: int, width: int, **save: Any) -> bytes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    image = Image.fromarray(pixels).convert(save.pop("mode", "RGB"))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **save)
    return buffer.getvalue()


def pillow_size(encoded: bytes) -> Any:
    with mock.patch.object(image_header, "_frame_size", lambda encoded: None):
        return image_header.claimed_size(encoded)


EXIF = Image.Exif()
EXIF[0x010E] = "a text" * 40


@pytest.mark.parametrize(
    "save",
    [
        {}, {"mode": "L"}, {"progressive": True}, {"exif": EXIF}, {"comment": b"\xff\xc0" * 9},
        {"icc_profile": b"p" * 70_000},
    ],
)  # fmt: skip
def test_common_jpeg_files_need_no_pillow(save: Any) -> None:
    encoded = jpeg(300, 517, **save)
    with mock.patch.object(JpegImagePlugin, "JpegImageFile", side_effect=AssertionError):
        assert image_header.claimed_size(encoded) == (300, 517)


def test_four_channels_and_fill_bytes_are_left_to_pillow() -> None:
    assert image_header.claimed_size(jpeg(30, 51, mode="CMYK")) == (30, 51)
    encoded = jpeg(30, 51)
    assert image_header.claimed_size(encoded[:2] + b"\xff" + encoded[2:]) == (30, 51)


def test_damaged_headers_give_the_size_that_pillow_finds() -> None:
    sound = jpeg(30, 51)
    random = np.random.default_rng(0)
    agree = 0
    for place in range(2, sound.index(b"\xff\xda") + 4, 2):
        damaged = bytearray(sound)
        damaged[place] = int(random.integers(256))
        found, expected = image_header.claimed_size(bytes(damaged)), pillow_size(bytes(damaged))
        # Pillow also refuses a few tables and notes that have nothing to do with the size.
        assert expected in (None, found), place
        agree += found == expected
    assert agree > 0.45 * place
    for end in range(2, 700, 5):
        assert image_header.claimed_size(sound[:end]) == pillow_size(sound[:end]), end

"""Format, size and end of an image file."""

from __future__ import annotations

import pytest
from PIL import Image

from estimator_det.files import image_header
from tests.inputs.examples import encoded, picture


def encode(kind: str, height: int, width: int) -> bytes:
    return encoded(picture(height, width, seed=height), kind)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_format_size_and_end(kind):
    content = encode(kind, 300, 517)
    assert image_header.format_of(content) == kind
    assert image_header.claimed_size(content) == (300, 517)
    assert not image_header.is_cut_short(content)
    assert image_header.is_cut_short(content[: len(content) // 2])
    assert image_header.claimed_size(content[:10]) is None or kind == "GIF"


def test_other_content_has_no_format():
    for content in (b"", b"ab", encode("TIFF", 3, 5)):
        assert image_header.format_of(content) == ""
        assert image_header.claimed_size(content) is None
        assert not image_header.is_cut_short(content)


def test_a_size_above_the_limit_of_pillow_is_read(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for kind in ("JPEG", "PNG", "BMP"):
        assert image_header.claimed_size(encode(kind, 30, 51)) == (30, 51)


def test_the_end_of_a_gif_is_its_last_byte():
    gif = encode("GIF", 30, 30)
    assert not image_header.is_cut_short(gif) and not image_header.is_cut_short(gif + b"\0\0")
    assert image_header.is_cut_short(gif[:40] + b";" + gif[41:60])

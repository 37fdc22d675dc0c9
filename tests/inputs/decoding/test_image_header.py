"""The number of pixels in a header, in the graph."""

from __future__ import annotations

import struct

import pytest

from estimator_det.compat import tf, tf1
from inputs.decoding.images import claimed_pixels
from tests.inputs.faults import picture_bytes


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_pixels_in_the_header(kind: str) -> None:
    content = picture_bytes(kind, 300, 517)
    contents = [content, content[:10], b"ab", b"", b"II*\0" + b"\1" * 40]
    with tf.Graph().as_default(), tf1.Session() as session:
        encoded = tf1.placeholder(tf.string, [])
        pixels = claimed_pixels(encoded)
        assert pixels.shape == []
        assert session.run(pixels, {encoded: contents[0]}) == 300 * 517
        if kind == "JPEG":
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(pixels, {encoded: contents[1]})
        elif kind != "GIF":  # whose size is in these bytes
            assert session.run(pixels, {encoded: contents[1]}) == 0
        assert [session.run(pixels, {encoded: other}) for other in contents[2:]] == [0, 0, 0]


@pytest.mark.parametrize(("height", "pixels"), [(-7, 35), (2**31 - 1, 5 * 2.0**31)])
def test_sides_of_a_bmp_may_be_negative_or_huge(height: int, pixels: float) -> None:
    content = b"BM" + b"\0" * 16 + struct.pack("<ii", 5, height)
    assert claimed_pixels(tf.constant(content)).numpy() == pixels

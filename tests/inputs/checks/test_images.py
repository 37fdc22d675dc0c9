from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inputs.checks.images import lacks_data


def photo(width: int = 96, **options: Any) -> bytes:
    """A JPEG of noise."""
    pixels = np.random.default_rng(5).integers(0, 256, [64, width, 3], np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": 0}, {"optimize": True}, {"quality": 20}, {"width": 200}],
    ids=str,
)
def test_missing_data_are_found_at_any_place(options: Any) -> None:
    whole = photo(**options)
    assert not lacks_data(whole)
    begin = whole.rindex(b"\xff\xda") + 20
    for end in range(begin, len(whole) - len(whole) // 8, max(1, len(whole) // 40)):
        assert lacks_data(whole[:end] + b"\xff\xd9"), end
    middle = (begin + len(whole)) // 2
    assert lacks_data(whole[:middle] + b"\xff\xd9" + whole[middle + 2 :])
    assert lacks_data(whole[:middle] + b"\xff\xff\xd9")


def test_whole_images_lack_nothing() -> None:
    """Flat ones, other modes and formats, and those with bytes behind their end included."""
    for mode in ("RGB", "L", "CMYK"):
        buffer = io.BytesIO()
        Image.new(mode, (200, 100), 7).save(buffer, "JPEG")
        assert not lacks_data(buffer.getvalue())
    assert not lacks_data(photo() + b"\0" * 99 + photo())
    assert not lacks_data(photo()[:-2] + b"\0\0\0\xff\xd9")
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9)).save(buffer, "PNG")
    assert not lacks_data(buffer.getvalue())
    assert not lacks_data(b"\xff\xd8\xff rubbish \xff\xda \xff\xd9")
    assert not lacks_data(b"")

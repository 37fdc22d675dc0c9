from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inputs.checks.images import lacks_data
from tests.inputs.examples import encoded, picture


def photo(width: int = 96, **options: Any) -> bytes:
    """A JPEG of noise."""
    return encoded(picture(64, width), "JPEG", **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": 0}, {"quality": 20}, {"width": 200}],
    ids=str,
)
def test_missing_data_are_found_at_any_place(options):
    whole = photo(**options)
    assert not lacks_data(whole)
    begin = whole.rindex(b"\xff\xda") + 20
    for end in range(begin, len(whole) - len(whole) // 8, max(1, len(whole) // 40)):
        assert lacks_data(whole[:end] + b"\xff\xd9"), end
    middle = (begin + len(whole)) // 2
    assert lacks_data(whole[:middle] + b"\xff\xd9" + whole[middle + 2 :])
    assert lacks_data(whole[:middle] + b"\xff\xff\xd9")


def test_whole_images_lack_nothing():
    """Flat ones, other modes and formats, and those with bytes behind their end included."""
    flat = np.full([100, 200, 3], 7, np.uint8)
    for mode in ("RGB", "L", "CMYK"):
        assert not lacks_data(encoded(flat, "JPEG", mode))
    assert not lacks_data(photo() + b"\0" * 99 + photo())
    assert not lacks_data(photo()[:-2] + b"\0\0\0\xff\xd9")
    assert not lacks_data(encoded(flat))
    assert not lacks_data(b"\xff\xd8\xff rubbish \xff\xda \xff\xd9")
    assert not lacks_data(b"")

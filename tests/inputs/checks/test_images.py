from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inputs.checks import images
from inputs.checks.images import lacks_data
from tests.inputs.examples import encoded, picture


def photo(width: int = 96, **options: Any) -> bytes:
    """A JPEG of noise."""
    return encoded(picture(64, width), "JPEG", **options)


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"quality": 20}, {"width": 200}], ids=str
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


def test_decoding_leaves_the_threads_of_the_process_alone(monkeypatch):
    """The first session of a process decides for all how many threads an operation has."""
    configs, session = [], images.tf1.Session
    monkeypatch.setattr(
        images.tf1, "Session", lambda graph, config: configs.append(config) or session(graph=graph)
    )
    images._image_decoder.cache_clear()
    assert images.decode_size(encoded(np.zeros([4, 6, 3], np.uint8))) == (4, 6)
    images._image_decoder.cache_clear()
    assert [config.intra_op_parallelism_threads for config in configs] == [0]

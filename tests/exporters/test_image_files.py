from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from exporters import image_files
from exporters.image_files import list_images, read_image
from tests.inputs.storm import bomb


def test_list_images(tmp_path: pathlib.Path) -> None:
    for name in ("b.JPG", "a.png", "notes.txt"):
        (tmp_path / name).touch()
    assert list_images([str(tmp_path)]) == [str(tmp_path / "a.png"), str(tmp_path / "b.JPG")]
    assert list_images([str(tmp_path / "notes.txt")]) == [str(tmp_path / "notes.txt")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no image in the folder"):
        list_images([str(tmp_path / "empty")])


def test_small_images_are_read_as_they_are(tmp_path: pathlib.Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = read_image(str(tmp_path / "a.png"))
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found[1:] == (20, 30, 1)


@pytest.mark.parametrize(("suffix", "factor"), [("png", 4), ("jpg", 4), ("jpg", 16)])
def test_large_images_are_reduced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, suffix: str, factor: int
) -> None:
    """The left half is dark, the right half light, at any size."""
    pixels = np.full((101, 204, 3), 10, np.uint8)
    pixels[:, 102:] = 240
    path = str(tmp_path / f"a.{suffix}")
    Image.fromarray(pixels).save(path)
    limit = -(-101 // factor) * -(-204 // factor)
    monkeypatch.setattr(image_files, "MAX_DETECTED_PIXELS", limit)
    found = read_image(path)
    assert found[1:] == (101, 204, factor)
    assert found.pixels.shape == (-(-101 // factor), -(-204 // factor), 3)
    assert (found.pixels[:, : 102 // factor - 1] < 40).all()
    assert (found.pixels[:, 102 // factor + 2 :] > 200).all()


def test_files_that_are_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "bomb.png").write_bytes(bomb())
    Image.new("RGB", (9, 9)).save(tmp_path / "a.bmp")
    monkeypatch.setattr(image_files, "MAX_PIXELS", 80)
    for name, reason in (
        ("pipe.jpg", "is a named pipe"),
        ("bomb.png", "cannot be read: it has too many pixels"),
        ("a.bmp", "cannot be read: it has 9 x 9 pixels, and the limit is"),
    ):
        with pytest.raises(OSError, match=f"{name} {reason}"):
            read_image(str(tmp_path / name))

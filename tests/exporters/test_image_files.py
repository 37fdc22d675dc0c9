from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from exporters import image_files
from exporters.image_files import list_images, read_image, subfolders_of
from tests.inputs.faults import bomb


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
    assert found[1:] == (20, 30, 1, 1)


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
    assert found[1:] == (101, 204, factor, 1)
    assert found.pixels.shape == (-(-101 // factor), -(-204 // factor), 3)
    assert (found.pixels[:, : 102 // factor - 1] < 40).all()
    assert (found.pixels[:, 102 // factor + 2 :] > 200).all()


def test_images_in_subfolders(tmp_path: pathlib.Path) -> None:
    """Each folder is searched once, also if a link leads back to it."""
    for name in ("a.png", "b/c.jpg", "b/d/e.png", "out/drawing.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    folder = str(tmp_path)
    assert list_images([folder]) == [f"{folder}/a.png"]
    assert [os.path.basename(each) for each in subfolders_of(folder)] == ["b", "out"]
    found = list_images([folder], recursive=True, skipped=f"{folder}/out")
    assert found == [f"{folder}/{name}" for name in ("a.png", "b/c.jpg", "b/d/e.png")]
    (tmp_path / "b" / "none" / "deep").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"no image in the folder .*/none or its subf"):
        list_images([f"{folder}/b/none"], recursive=True)


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("factor", [1, 2])
def test_photos_are_rotated_upright(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    orientation: int,
    suffix: str,
    factor: int,
) -> None:
    """The top of the upright photo is white, whatever of the file it is."""
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[:16] = 255
    stored = np.rot90(upright, {1: 0, 3: 2, 6: 1}[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = str(tmp_path / f"photo.{suffix}")
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif)
    monkeypatch.setattr(image_files, "MAX_DETECTED_PIXELS", 48 * 64 // factor**2)
    found = read_image(path)
    assert found[1:] == (48, 64, factor, orientation)
    assert found.pixels.shape == (48 // factor, 64 // factor, 3)
    assert found.pixels[: 12 // factor].min() > 200 and found.pixels[20 // factor :].max() < 50


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
    Image.new("RGB", (8, 10)).save(tmp_path / "a.bmp")
    assert read_image(str(tmp_path / "a.bmp")).pixels.shape == (10, 8, 3), "just the limit"

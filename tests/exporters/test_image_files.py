import os

import numpy as np
import pytest
from PIL import Image

from exporters import image_files
from exporters.image_files import list_images, read_image, subfolders_of


def test_list_images(tmp_path):
    for name in ("b.JPG", "a.png", "notes.txt"):
        (tmp_path / name).touch()
    assert list_images([str(tmp_path)]) == [str(tmp_path / "a.png"), str(tmp_path / "b.JPG")]
    assert list_images([str(tmp_path / "notes.txt")]) == [str(tmp_path / "notes.txt")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no image in the folder"):
        list_images([str(tmp_path / "empty")])


@pytest.mark.parametrize(("suffix", "factor"), [("png", 4), ("jpg", 4), ("jpg", 16)])
def test_large_images_are_reduced(tmp_path, monkeypatch, suffix, factor):
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


@pytest.mark.parametrize("mode", ["P", "1", "I;16"])
def test_large_images_of_other_modes_are_reduced(tmp_path, monkeypatch, mode):
    levels = np.repeat(np.uint16([0, 255]), 32).reshape(8, 8)
    if mode == "I;16":
        image = Image.fromarray(levels << 8)
    else:
        image = Image.fromarray(levels.astype(np.uint8)).convert(mode)
    image.save(tmp_path / "a.png")
    monkeypatch.setattr(image_files, "MAX_DETECTED_PIXELS", 16)
    found = read_image(str(tmp_path / "a.png"))
    assert found[1:] == (8, 8, 2, 1)
    assert found.pixels[..., 0].tolist() == [[0] * 4] * 2 + [[255] * 4] * 2


def test_images_in_subfolders(tmp_path):
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


def test_the_limit_of_pixels(tmp_path, monkeypatch):
    Image.new("RGB", (9, 9)).save(tmp_path / "a.bmp")
    monkeypatch.setattr(image_files, "MAX_PIXELS", 80)
    with pytest.raises(OSError, match=r"a.bmp cannot be read: it has 9 x 9 pixels, and the limit"):
        read_image(str(tmp_path / "a.bmp"))
    Image.new("RGB", (8, 10)).save(tmp_path / "a.bmp")
    assert read_image(str(tmp_path / "a.bmp")).pixels.shape == (10, 8, 3), "just the limit"
    monkeypatch.setattr(image_files, "_MAX_BYTES", 80)
    with pytest.raises(
        OSError, match=r"a.bmp cannot be read: it has \d+ bytes, and the limit is 80"
    ):
        read_image(str(tmp_path / "a.bmp"))

"""Image files for detection: finds them, and reads each within limits of memory."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pathlib
import warnings
from typing import BinaryIO, Callable, Iterator, List, NamedTuple, Sequence, Union

import numpy as np
from PIL import Image, UnidentifiedImageError

from estimator_det import files
from estimator_det.files.image_header import PILLOW_ERRORS
from estimator_det.images.orientation import (
    FIRST_TRANSPOSED,
    UPRIGHT,
    image_orientation,
    rotate_upright,
)
from inputs.checks.images import decode_pixels, rgb_image

# Formats of pictures that Pillow reads by itself: no documents, icons or scientific data.
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".webp", ".avif", ".tif",
    ".tiff", ".jp2", ".ppm", ".pgm",
)  # fmt: skip
MAX_PIXELS = 178_956_970  # pixels of a file; also the default of bad_records.max_megapixels
_MAX_BYTES = 8 * MAX_PIXELS  # a file of 4 channels of 16 bits is not larger
# Detection needs about 36 bytes per pixel, for the image in several types and the drawing.
MAX_DETECTED_PIXELS = 24_000_000


class ImageFile(NamedTuple):
    """A decoded image file."""

    pixels: np.ndarray  # uint8 [h, w, 3] RGB
    height: int  # size of the whole image
    width: int
    reduced_by: int  # factor by which `pixels` is reduced; its sides are rounded up
    orientation: int = UPRIGHT  # by EXIF, in the file; `pixels`, height and width are upright


def list_images(paths: Sequence[str], *, recursive: bool = False, skipped: str = "") -> List[str]:
    """The given files, and the image files of given folders by name.

    Args:
        recursive: Subfolders are searched, too; links to folders are followed.
        skipped: Folder that is not searched.
    """
    images: List[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = _files_below(path, skipped) if recursive else _files_in(path)
            images_inside = [each for each in inside if is_image(each)]
            if not images_inside:
                below = " or its subfolders" if recursive else ""
                others = f" ({count_suffixes(inside)})" if inside else ""
                raise FileNotFoundError(
                    f"no image in the folder {path}{below}{others}; known suffixes: "
                    f"{', '.join(IMAGE_SUFFIXES)}"
                )
            images += images_inside
        elif os.path.exists(path):
            images.append(path)
        else:
            hint = "; write a pattern without quotes" if "*" in path else ""
            raise FileNotFoundError(f"the image file or folder {path} does not exist{hint}")
    return images


def other_files(folder: str, *, recursive: bool = False, skipped: str = "") -> List[str]:
    """The files of a folder that `list_images` leaves out, except hidden ones."""
    files_inside = _files_below(folder, skipped) if recursive else _files_in(folder)
    return [each for each in files_inside if not is_image(each)]


def count_suffixes(paths: Sequence[str]) -> str:
    """Number of files by suffix, such as "2 .heic, 1 .txt"; the most frequent suffix first."""
    counts = collections.Counter(os.path.splitext(path)[1].lower() for path in paths)
    return ", ".join(
        f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts.most_common()
    )


def subfolders_of(path: str) -> List[str]:
    """Folders in a folder by name, except those that are listed as images."""
    return sorted(
        each.path for each in os.scandir(path) if each.is_dir() and not is_image(each.name)
    )


def is_image(path: str) -> bool:
    """True if a file is an image by its name."""
    return path.lower().endswith(IMAGE_SUFFIXES)


def _files_in(folder: str) -> List[str]:
    """Entries of a folder by name: whatever has the suffix of an image, and other visible files."""
    return sorted(
        each.path
        for each in os.scandir(folder)
        if is_image(each.name) or not (each.is_dir() or each.name.startswith("."))
    )


def _files_below(folder: str, skipped: str) -> List[str]:
    """Files in a folder and its subfolders, each of which is searched once."""
    paths, waiting, seen = [], [folder], {os.path.realpath(skipped)} if skipped else set()
    while waiting:
        each = waiting.pop()
        if os.path.realpath(each) not in seen:
            seen.add(os.path.realpath(each))
            paths += _files_in(each)
            waiting += subfolders_of(each)
    return sorted(paths)


def read_image(path: str) -> ImageFile:
    """Reads an image file and rotates it upright, as its EXIF data state.

    An image of more than MAX_DETECTED_PIXELS is reduced to 1/2, 1/4, … of its height and width.

    Raises:
        OSError: if the file is not a regular file, not a readable image, or has more than
            MAX_PIXELS. The text contains the path.
    """
    if kind := files.special_kind(path):
        raise OSError(f"{path} is {kind}, not an image file")
    try:
        with _opened(path, MAX_PIXELS) as image:
            if (size := os.path.getsize(path)) > _MAX_BYTES:
                raise OSError(f"it has {size:,} bytes, and the limit is {_MAX_BYTES:,}")
            return _decode(image, pathlib.Path(path).read_bytes)
    except PILLOW_ERRORS as error:
        raise OSError(f"{path} cannot be read: {error}") from error


def decode_image(encoded: bytes, max_pixels: int = MAX_PIXELS) -> ImageFile:
    """The image of an encoded file, as `read_image` reads it.

    Raises:
        OSError: if the bytes are not a readable image, or one of more pixels.
    """
    try:
        with _opened(io.BytesIO(encoded), max_pixels) as image:
            return _decode(image, lambda: encoded)
    except UnidentifiedImageError:
        raise OSError("it is not an image of a known format") from None
    except PILLOW_ERRORS as error:
        raise OSError(str(error)) from error


@contextlib.contextmanager
def _opened(source: Union[str, BinaryIO], max_pixels: int) -> Iterator[Image.Image]:
    """An image whose header is read and whose size is within the limit."""
    with warnings.catch_warnings():
        # Pillow warns from half the limit on at which it refuses; the limit here is another one.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(source)
        except Image.DecompressionBombError as error:
            raise OSError(f"it has too many pixels: {error}") from error
    with image:
        if image.width * image.height > max_pixels:
            raise OSError(
                f"it has {image.width} x {image.height} pixels, and the limit is "
                f"{max_pixels / 1e6:.0f} megapixels; reduce the image"
            )
        yield image


def _decode(image: Image.Image, encoded: Callable[[], bytes]) -> ImageFile:
    width, height = image.size
    factor = 1
    while -(-width // factor) * -(-height // factor) > MAX_DETECTED_PIXELS:
        factor *= 2
    if factor == 1:
        pixels = decode_pixels(encoded())
    else:
        # Only JPEG decodes at a fraction of its size, 1/8 at least; other files stay as they are.
        image.draft("RGB", (width // factor, height // factor))
        pixels = np.asarray(rgb_image(image).reduce(factor // round(width / image.width)))
    orientation = image_orientation(image)  # only now, since a PNG file is decoded for it
    if orientation >= FIRST_TRANSPOSED:
        width, height = height, width
    return ImageFile(rotate_upright(pixels, orientation), height, width, factor, orientation)


def pillow_pixels(image: Image.Image) -> np.ndarray:
    """uint8 [h, w, 3] of a Pillow image, rotated upright as its EXIF data state.

    Raises:
        ValueError: if black and white of its mode are not known.
    """
    return rotate_upright(np.asarray(rgb_image(image)), image_orientation(image))

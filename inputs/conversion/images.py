"""Image files of a data set: verified, and encoded again only on request."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass
from typing import Iterable, Iterator, NamedTuple, Optional, Tuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from estimator_det.errors import UsageError
from estimator_det.files import image_header
from estimator_det.files.image_header import JPEG, PILLOW_ERRORS
from estimator_det.images.orientation import (
    FIRST_TRANSPOSED,
    UPRIGHT,
    exif_orientation,
    image_orientation,
    rotate_upright,
)
from estimator_det.images.tiles import Tile
from inputs.checks.images import decode_pixels, decoding_problem

REFUSE, APPLY = "refuse", "apply"
DECODE, HEADER = "decode", "header"


@dataclass(frozen=True)
class ImageOptions:
    """Checks and changes of images."""

    verify: str = DECODE  # the whole image; HEADER: its header and its end
    exif: str = REFUSE  # action for an image that its EXIF data rotate
    encode: str = ""  # jpeg or png, which all images become; "" keeps their bytes
    quality: int = 92  # quality of JPEG files that are encoded again
    max_megapixels: float = 178.95697  # the limit of `bad_records` in training

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality is {self.quality}; allowed: 1 to 100")
        if not self.max_megapixels > 0:
            raise UsageError(f"max_megapixels is {self.max_megapixels}; it must be positive")


class ImageFault(Exception):
    """An image, or one of its objects, cannot be used."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Checked(NamedTuple):
    """An image for a record."""

    encoded: bytes
    size: Tuple[int, int]  # height and width
    turned_from: Optional[Tuple[int, int]] = None  # height and width before EXIF rotation
    is_encoded_again: bool = False


def check_image(encoded: bytes, options: ImageOptions) -> Checked:
    """Verifies an image file, rotates and encodes it again if the options say so."""
    if not encoded:
        raise ImageFault("undecodable_image", "the file is empty")
    if not image_header.format_of(encoded) or image_header.has_color_table(encoded):
        return _other_format(encoded, options)
    size = image_header.claimed_size(encoded)
    if size is None:
        raise ImageFault("undecodable_image", "the header gives no size")
    _check_pixels(size, options)
    if image_header.is_cut_short(encoded):
        raise ImageFault("truncated_image", f"the {len(encoded):,} bytes end within the image")
    if min(size) < 1:
        raise ImageFault("undecodable_image", f"the header gives {size[1]} x {size[0]} pixels")
    if options.verify == DECODE and (problem := decoding_problem(encoded)):
        raise ImageFault("undecodable_image", f"the decoder says: {problem}")
    orientation = exif_orientation(encoded)
    _check_orientation(orientation, size, options)
    if orientation != UPRIGHT or options.encode:
        return _encoded_again(encoded, options)
    return Checked(encoded, size)


def _check_pixels(size: Tuple[int, int], options: ImageOptions) -> None:
    if size[0] * size[1] > options.max_megapixels * 1e6:
        raise ImageFault(
            "huge_image",
            f"its header gives {size[1]} x {size[0]} pixels; the limit is "
            f"{options.max_megapixels:.6g} megapixels",
        )


def _check_orientation(orientation: int, size: Tuple[int, int], options: ImageOptions) -> None:
    """Refuses a rotated image unless the options apply rotation: boxes may fit either frame."""
    if orientation == UPRIGHT or options.exif == APPLY:
        return
    height, width = size if orientation < FIRST_TRANSPOSED else size[::-1]
    raise ImageFault(
        "exif_rotation",
        f"its EXIF orientation is {orientation}; it has {size[1]} x {size[0]} pixels as stored, "
        f"{width} x {height} upright",
    )


def _other_format(encoded: bytes, options: ImageOptions) -> Checked:
    """An image that training cannot read, encoded as asked."""
    with _opened(encoded, "it is not an image") as image:
        kind, size = image.format or "unknown", (image.height, image.width)
        if image_header.has_color_table(encoded):
            kind += " with a palette"
        orientation = image_orientation(image)
    _check_pixels(size, options)
    if not options.encode:
        raise ImageFault("unsupported_image", f"its format is {kind}")
    _check_orientation(orientation, size, options)
    return _encoded_again(encoded, options)


@contextlib.contextmanager
def _opened(encoded: bytes, problem: str) -> Iterator[Image.Image]:
    """Context with the image of a file; errors of Pillow, also in the context, are faults."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(encoded)) as image:
                yield image
    except Image.DecompressionBombError as error:
        raise ImageFault("huge_image", str(error)) from error
    except PILLOW_ERRORS as error:
        # Pillow names the object in memory, which says nothing of the file.
        reason = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        raise ImageFault("undecodable_image", problem + reason) from error


def _encoded_again(encoded: bytes, options: ImageOptions) -> Checked:
    with _opened(encoded, "the decoder says") as image:
        before = (image.height, image.width)
        orientation = image_orientation(image)
        upright = rotate_upright(_pixels(encoded, image), orientation)
        written = _written(upright, encoded, options)
    after = (upright.shape[0], upright.shape[1])
    _check_pixels(after, options)
    turned_from = before if orientation != UPRIGHT else None
    return Checked(written, after, turned_from, True)


def cut_out(encoded: bytes, tiles: Iterable[Tile], options: ImageOptions) -> Iterator[bytes]:
    """Files of the tiles of an upright image that was verified."""
    with _opened(encoded, "the decoder says") as image:
        pixels = _pixels(encoded, image)
    for top, left, height, width in tiles:
        yield _written(pixels[top : top + height, left : left + width], encoded, options)


def _pixels(encoded: bytes, image: Image.Image) -> np.ndarray:
    pixels = decode_pixels(encoded)
    return pixels[..., 0] if image.mode == "L" else pixels


def _written(pixels: np.ndarray, encoded: bytes, options: ImageOptions) -> bytes:
    """Pixels as a file of the chosen format, or else of the format of `encoded`."""
    kind = options.encode or ("jpeg" if encoded.startswith(JPEG) else "png")
    settings = {"quality": options.quality} if kind == "jpeg" else {}
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, kind.upper(), **settings, exif=b"")
    return buffer.getvalue()

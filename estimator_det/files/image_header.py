"""Format and size of an encoded image, from its header alone; nothing is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any, Dict, Optional, Tuple

from PIL import BmpImagePlugin, JpegImagePlugin, PngImagePlugin

# Pillow raises these for files that it cannot read or decode.
PILLOW_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError, struct.error,
    zlib.error,
)  # fmt: skip

JPEG, PNG, GIF, BMP = b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM"

_FORMATS = {JPEG: "JPEG", PNG: "PNG", GIF: "GIF", BMP: "BMP"}
# The classes themselves: `Image.open` warns of, or rejects, images above Image.MAX_IMAGE_PIXELS.
_READERS: Dict[str, Any] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
}
_END = {JPEG: b"\xff\xd9", PNG: b"IEND", GIF: b"\x3b"}
_TAIL = 64  # bytes; an end marker further from the end belongs to a thumbnail or the like


def format_of(encoded: bytes) -> str:
    """JPEG, PNG, GIF or BMP; "" for anything else."""
    return next((name for start, name in _FORMATS.items() if encoded.startswith(start)), "")


def claimed_size(encoded: bytes) -> Optional[Tuple[int, int]]:
    """Height and width in the header; None if it cannot be read."""
    kind = format_of(encoded)
    try:
        if kind == "GIF":  # Pillow would also read the first frame, and allocate memory for it.
            width, height = struct.unpack_from("<HH", encoded, 6)
        elif kind:
            width, height = _READERS[kind](io.BytesIO(encoded)).size
        else:
            return None
    except PILLOW_ERRORS:
        return None
    return height, width


def has_color_table(encoded: bytes) -> bool:
    """True for a BMP with a table of colors, which TensorFlow refuses or takes for grays."""
    if not encoded.startswith(BMP):
        return False
    try:
        return bool(_READERS["BMP"](io.BytesIO(encoded)).mode in ("P", "1"))
    except PILLOW_ERRORS:
        return False


def is_cut_short(encoded: bytes) -> bool:
    """Whether the end of the file, as its format requires it, is missing."""
    if encoded.startswith(GIF):  # its end is a single byte, which is common in the data
        return not encoded.rstrip(b"\0").endswith(_END[GIF])
    for start, end in _END.items():
        if encoded.startswith(start):
            return end not in encoded[-_TAIL:]
    return encoded.startswith(BMP) and len(encoded) < int.from_bytes(encoded[2:6], "little")

"""The size of an encoded image, from its header alone; nothing is decoded."""

from __future__ import annotations

import io
import struct
from typing import Any, Dict, Optional, Tuple

import numpy as np
from PIL import BmpImagePlugin, JpegImagePlugin, PngImagePlugin

from estimator_det.compat import tf

HEAD = 26  # bytes that contain the size in PNG, GIF and BMP
JPEG, PNG, GIF, BMP = b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM"

# The classes themselves: `Image.open` warns of, or rejects, images above Image.MAX_IMAGE_PIXELS.
_READERS: Dict[str, Any] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
}
_END = {JPEG: b"\xff\xd9", PNG: b"IEND", GIF: b"\x3b"}
# Of a segment of a JPEG file: marker, length, and what follows them in a frame: bits, height, width
# and channels. No other segment that matters is shorter.
_SEGMENT = struct.Struct(">HHBHHB")
_FRAMES = (0xFFC0, 0xFFC1, 0xFFC2)  # of the common kinds of JPEG
_SCAN = 0xFFDA  # where pixels begin
# Other segments with a length: tables, intervals, comments and those of applications.
_OTHERS = frozenset((0xFFC4, 0xFFDB, 0xFFDD, 0xFFFE, *range(0xFFE0, 0xFFF0)))
_TAIL = 64  # bytes; an end marker further from the end belongs to a thumbnail or the like


def _side_weights() -> np.ndarray:
    """float32 [HEAD, 6]: the first bytes times this are the widths, then heights, of PNG, GIF, BMP.

    A side of a BMP has at most 2**24 pixels here, and its height is not negative.
    """
    weights = np.zeros([HEAD, 6], np.float32)
    rising = 256.0 ** np.arange(4)
    for axis in range(2):
        weights[16 + 4 * axis : 20 + 4 * axis, 3 * axis] = rising[::-1]
        weights[6 + 2 * axis : 8 + 2 * axis, 3 * axis + 1] = rising[:2]
        weights[18 + 4 * axis : 21 + 4 * axis, 3 * axis + 2] = rising[:3]
    return weights


_SIDES = _side_weights()
_FIRST_BYTES = np.array([PNG[0], GIF[0], BMP[0]], np.float32)


def format_of(encoded: bytes) -> str:
    """One of JPEG, PNG, GIF and BMP; "" for anything else."""
    starts = {JPEG: "JPEG", PNG: "PNG", GIF: "GIF", BMP: "BMP"}
    return next((name for start, name in starts.items() if encoded.startswith(start)), "")


def claimed_size(encoded: bytes) -> Optional[Tuple[int, int]]:
    """Height and width in the header; None if it cannot be read."""
    kind = format_of(encoded)
    found = _frame_size(encoded) if kind == "JPEG" else None
    if found is not None:
        return found
    try:
        if kind == "GIF":  # Pillow would also read the first frame, and allocate memory for it.
            width, height = struct.unpack_from("<HH", encoded, 6)
        elif kind:
            width, height = _READERS[kind](io.BytesIO(encoded)).size
        else:
            return None
    except (OSError, SyntaxError, ValueError, struct.error):  # what Pillow raises on bad headers
        return None
    return height, width


def _frame_size(encoded: bytes) -> Optional[Tuple[int, int]]:
    """Height and width of a JPEG of 8 bits with sound segments, in a tenth of Pillow's time.

    None for anything uncommon, which Pillow decides.
    """
    place, found = 2, None
    while place + _SEGMENT.size <= len(encoded):
        marker, length, bits, height, width, channels = _SEGMENT.unpack_from(encoded, place)
        if marker == _SCAN:
            return found if place + 2 + length <= len(encoded) else None
        if marker in _FRAMES and found is None and bits == 8 and channels in (1, 3):
            found = height, width
        elif marker not in _OTHERS or length < 2:
            return None
        place += 2 + length
    return None


def is_cut_short(encoded: bytes) -> bool:
    """Whether the end of the file, as its format requires it, is missing."""
    if encoded.startswith(GIF):  # its end is a single byte, which is common in the data
        return not encoded.rstrip(b"\0").endswith(_END[GIF])
    for start, end in _END.items():
        if encoded.startswith(start):
            return end not in encoded[-_TAIL:]
    return encoded.startswith(BMP) and len(encoded) < int.from_bytes(encoded[2:6], "little")


def claimed_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Float32 scalar: height times width in the header, in the graph; 0 for unknown formats.

    Raises:
        InvalidArgumentError: when run, if it starts like a JPEG but has no size.
    """

    def jpeg() -> tf.Tensor:
        return tf.reduce_prod(tf.cast(tf.io.extract_jpeg_shape(encoded), tf.float32)) / 3.0

    # Few operations: those of the branch that is not taken cost time, too.
    def other() -> tf.Tensor:
        head = tf.strings.substr(tf.strings.join([encoded[tf.newaxis], "\0" * HEAD]), 0, HEAD)
        numbers = tf.cast(tf.io.decode_raw(head, tf.uint8), tf.float32)
        sides = tf.abs(tf.reshape(tf.matmul(numbers, tf.constant(_SIDES)), [2, 3]))
        matches = tf.cast(tf.equal(numbers[0, 0], _FIRST_BYTES), tf.float32)
        return tf.reduce_sum(tf.reduce_prod(sides, 0) * matches)

    is_jpeg = tf.equal(tf.strings.substr(encoded, 0, len(JPEG)), JPEG)
    return tf.cond(is_jpeg, jpeg, other)

"""What an encoded picture says of its size, read from its first bytes without decoding it."""

from __future__ import annotations

import struct
from typing import Optional, Tuple

import numpy as np

from estimator_det.compat import tf

HEAD = 26  # bytes that hold the size in PNG, GIF and BMP
JPEG, PNG, GIF, BMP = b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM"

# JPEG markers: frames, which give the size, and those without a length.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
_END = {JPEG: b"\xff\xd9", PNG: b"IEND", GIF: b"\x3b"}
_TAIL = 64  # an end marker further away belongs to something else, such as a thumbnail


def _side_weights() -> np.ndarray:
    """float32 [HEAD, 6]: the first bytes times this are the widths, then heights, of PNG, GIF, BMP.

    BMP has at most 2**24 pixels a side here; a negative height, rows from the top, is left out.
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
    """The picture format, one of JPEG, PNG, GIF, BMP; empty for anything else."""
    starts = {JPEG: "JPEG", PNG: "PNG", GIF: "GIF", BMP: "BMP"}
    return next((name for start, name in starts.items() if encoded.startswith(start)), "")


def claimed_size(encoded: bytes) -> Optional[Tuple[int, int]]:
    """Height and width that the header gives; None where it gives none."""
    kind = format_of(encoded)
    if kind == "JPEG":
        return _jpeg_size(encoded)
    if not kind or len(encoded) < HEAD:
        return None
    if kind == "PNG":
        width, height = struct.unpack_from(">II", encoded, 16)
    elif kind == "GIF":
        width, height = struct.unpack_from("<HH", encoded, 6)
    else:
        width, height = struct.unpack_from("<ii", encoded, 18)
    return abs(height), abs(width)  # BMP: a negative height means rows from the top


def is_cut_short(encoded: bytes) -> bool:
    """Whether the end that belongs to the picture's format is missing."""
    for start, end in _END.items():
        if encoded.startswith(start):
            return end not in encoded[-_TAIL:]
    return encoded.startswith(BMP) and len(encoded) < int.from_bytes(encoded[2:6], "little")


def claimed_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Float32 scalar: height times width of the header, in the graph; 0 for unknown formats.

    Raises:
        InvalidArgumentError: when run, if it begins as a JPEG and has no size.
    """

    def jpeg() -> tf.Tensor:
        return tf.reduce_prod(tf.cast(tf.io.extract_jpeg_shape(encoded), tf.float32)) / 3.0

    # Few operations: also those of the branch that is not taken cost time.
    def other() -> tf.Tensor:
        head = tf.strings.substr(tf.strings.join([encoded[tf.newaxis], "\0" * HEAD]), 0, HEAD)
        numbers = tf.cast(tf.io.decode_raw(head, tf.uint8), tf.float32)
        sides = tf.abs(tf.reshape(tf.matmul(numbers, tf.constant(_SIDES)), [2, 3]))
        matches = tf.cast(tf.equal(numbers[0, 0], _FIRST_BYTES), tf.float32)
        return tf.reduce_sum(tf.reduce_prod(sides, 0) * matches)

    is_jpeg = tf.equal(tf.strings.substr(encoded, 0, len(JPEG)), JPEG)
    return tf.cond(is_jpeg, jpeg, other)


def _jpeg_size(encoded: bytes) -> Optional[Tuple[int, int]]:
    position = 2
    while position + 9 <= len(encoded):
        if encoded[position] != 0xFF:
            return None
        marker = encoded[position + 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", encoded, position + 5)
            return height, width
        if marker == 0xFF:  # padding
            position += 1
        elif marker in _BARE:
            position += 2
        else:
            position += 2 + int.from_bytes(encoded[position + 2 : position + 4], "big")
    return None

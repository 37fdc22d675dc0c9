"""CRC32C, the checksum that Cloud Storage keeps of every file."""

from __future__ import annotations

import base64
import os
from typing import Any, Optional

import google_crc32c

_BLOCK = 2**20


class Checksum:
    """CRC32C of bytes that come in pieces."""

    def __init__(self) -> None:
        self._checksum = google_crc32c.Checksum()
        self.size = 0  # bytes so far

    def update(self, data: Any) -> None:
        """Adds bytes."""
        self._checksum.update(data)
        self.size += len(data)

    def text(self) -> str:
        """As the service writes it: base64 of the four bytes, big-endian."""
        return base64.b64encode(self._checksum.digest()).decode("ascii")


def of_file(path: str, most: Optional[int] = None) -> Checksum:
    """The checksum of a file, or of its first bytes; read in blocks of 1 MiB."""
    checksum = Checksum()
    with open(path, "rb") as file:
        while most is None or checksum.size < most:
            left = _BLOCK if most is None else min(_BLOCK, most - checksum.size)
            block = file.read(left)
            if not block:
                break
            checksum.update(block)
    return checksum


def is_same(path: str, size: int, crc32c: str) -> bool:
    """Whether a local file exists and has this size and checksum."""
    try:
        if os.stat(path).st_size != size:
            return False
    except FileNotFoundError:
        return False
    return of_file(path).text() == crc32c

"""Reads TFRecord files record by record in Python, and continues after damage.

A record is: its length (8 bytes, little-endian), a checksum of the length (4 bytes), the data, and
a checksum of the data (4 bytes); checksums are CRC-32C, rotated and shifted by a constant. If the
checksum of the data is wrong, the length still gives the start of the next record. If the checksum
of the length is wrong, the reader searches the next offset whose 12 bytes are a length and its
checksum.

This reader serves examination, and the rest of files that TensorFlow's reader abandons. Records are
numbered from 0, damaged ones included. A gap in a file counts as one record, since the number of
records lost in it is unknown.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import zlib
from typing import Any, Iterator, NamedTuple, Optional, Tuple, Union

import google_crc32c

from estimator_det import files

COMPRESSIONS = {".gz": "GZIP", ".gzip": "GZIP", ".zlib": "ZLIB", ".zz": "ZLIB"}
HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
OVERHEAD = HEADER.size + CHECKSUM.size
MASK_DELTA = 0xA282EAD8
CHUNK = 1 << 20
ANY_FORMAT = 32 + zlib.MAX_WBITS  # zlib reads its own format and gzip


class Damage(NamedTuple):
    """Replaces a record that cannot be read."""

    kind: str  # "damaged_record", or "lost_records" if nothing after it can be read either
    message: str  # with offsets in the (uncompressed) file


BytesOrDamage = Union[bytes, Damage]


class Frame(NamedTuple):
    """The place of a record in the (uncompressed) file."""

    offset: int  # its first byte
    end: int  # first byte after it
    damage: Optional[Damage] = None


def compression_of(path: str) -> str:
    """Compression by file suffix: "GZIP", "ZLIB", or "" for none."""
    return next((kind for end, kind in COMPRESSIONS.items() if path.endswith(end)), "")


def read_records(path: str, offset: int = 0) -> Iterator[BytesOrDamage]:
    """The bytes or the damage of each record, starting with the record at an offset."""
    return (record for _, record in read_frames(path, offset))


def read_frames(path: str, offset: int = 0) -> Iterator[Tuple[Frame, BytesOrDamage]]:
    """`read_records`, each with its place."""
    with contextlib.closing(_Source(path)) as source:
        for frame in _frames(source, offset):
            yield frame, _data(source, frame)


def read_record(path: str, number: int) -> BytesOrDamage:
    """A record by its number, found by the lengths of the records before it."""
    count = 0
    with contextlib.closing(_Source(path)) as source:
        for count, frame in enumerate(_frames(source), 1):
            if count == number + 1:
                return _data(source, frame)
    raise IndexError(f"{path}: there is no record {number}; the file has {count}")


def record_offsets(path: str) -> Iterator[int]:
    """The offset of each record; fast for a local file that is not compressed."""
    with contextlib.closing(_Source(path)) as source:
        for frame in _frames(source):
            yield frame.offset


def sample_records(path: str, num_places: int, num_records: int) -> Iterator[BytesOrDamage]:
    """Up to `num_records` records from each of some places that divide a file.

    In a compressed file, they are its first records, since it is only readable from the beginning.
    """
    with contextlib.closing(_Source(path)) as source:
        if source.size is None:
            num_places, num_records = 1, num_places * num_records
        end = 0  # offset behind the last record
        for place in range(num_places):
            start = place * (source.size or 0) // num_places
            begin = _search(source, max(start, end)) if place else 0
            if begin is None:
                return
            for frame in itertools.islice(_frames(source, begin), num_records):
                yield _data(source, frame)
                end = frame.end


def file_size(path: str) -> int:
    """Bytes of a local or remote file."""
    if files.is_remote(path):
        from estimator_det.compat import tf

        return int(tf.io.gfile.stat(path).length)
    return os.path.getsize(path)


def masked_crc(data: bytes) -> int:
    """Checksum of some bytes as record files store it."""
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


class _Source:
    """Access to bytes by their offset, which must not fall in a compressed file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.error = ""  # why a compressed file cannot be read to its end
        self._is_compressed = compression_of(path) != ""
        # Bytes of the file; None if only reading it would show.
        self.size = None if self._is_compressed else file_size(path)
        self._file: Any
        if files.is_remote(path):
            from estimator_det.compat import tf

            self._file = tf.io.gfile.GFile(path, "rb")
        else:
            self._file = open(path, "rb")  # noqa: SIM115 (`close` closes it)
        self._window, self._begin = b"", 0  # decompressed bytes, and the offset of the first one
        self._inflate = zlib.decompressobj(ANY_FORMAT)
        self._ended = False

    def close(self) -> None:
        self._file.close()

    def at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on, fewer at the end of the file."""
        if not self._is_compressed:
            self._file.seek(offset)
            content: bytes = self._file.read(length)
            return content
        assert offset >= self._begin
        while self._begin + len(self._window) < offset + length and not self._ended:
            num_passed = min(max(offset - self._begin, 0), len(self._window))
            self._window, self._begin = (
                self._window[num_passed:] + self._next_chunk(),
                self._begin + num_passed,
            )
        return self._window[offset - self._begin :][:length]

    def _next_chunk(self) -> bytes:
        compressed = self._inflate.unconsumed_tail or self._file.read(CHUNK)
        if not compressed:
            self._ended = True
            if not self._inflate.eof:
                self.error = "the compressed file ends too early"
            return b""
        try:
            content = self._inflate.decompress(compressed, 4 * CHUNK)
        except zlib.error as error:
            self._ended, self.error = True, f"it cannot be decompressed ({error})"
            return b""
        if self._inflate.eof and self._inflate.unused_data:
            self._ended, self.error = True, "bytes follow the end of the compressed data"
        return content


def _frames(source: _Source, offset: int = 0) -> Iterator[Frame]:
    """The frame of every record from an offset on, found by the lengths; data are not read."""
    size = source.size
    while True:
        header = source.at(offset, HEADER.size)
        if not header or (source.error and len(header) < HEADER.size):
            break
        length = _length(header)
        if length is None or (size is not None and offset + OVERHEAD + length > size):
            following = _search(source, offset + 1)
            end = following or size or offset
            yield Frame(offset, end, _frame_damage(offset, header, length, end))
            if following is None:
                break
            offset = following
            continue
        if size is None and len(source.at(offset, OVERHEAD + length)) < OVERHEAD + length:
            if not source.error:
                yield Frame(offset, offset, _frame_damage(offset, header, length, offset))
            break
        yield Frame(offset, offset + OVERHEAD + length)
        offset += OVERHEAD + length
    if source.error:
        message = f"{source.error}; the records after byte {offset} of its content are lost"
        yield Frame(offset, offset, Damage("lost_records", message))


def _length(header: bytes) -> Optional[int]:
    """The length in 12 bytes; None if their checksum is wrong."""
    if len(header) < HEADER.size:
        return None
    length, checksum = HEADER.unpack(header)
    return int(length) if masked_crc(header[:8]) == checksum else None


def _frame_damage(offset: int, header: bytes, length: Optional[int], end: int) -> Damage:
    if length is not None:
        what = f"the file ends within the record, which begins at byte {offset}"
    elif len(header) < HEADER.size:
        what = f"the file ends within the length of the record, which begins at byte {offset}"
    else:
        what = f"the record's length at byte {offset} fails its checksum"
    return Damage("damaged_record", f"{what}; {end - offset} bytes are skipped")


def _search(source: _Source, offset: int) -> Optional[int]:
    """The next offset of a length with its checksum; its four high bytes are zero."""
    while True:
        chunk = source.at(offset, CHUNK)
        position = chunk.find(b"\0\0\0\0", 4)
        while position >= 0 and position + 8 <= len(chunk):
            length = _length(chunk[position - 4 : position + 8])
            end = offset + position - 4 + OVERHEAD + (length or 0)
            if length is not None and (source.size is None or end <= source.size):
                return offset + position - 4
            position = chunk.find(b"\0\0\0\0", position + 1)
        if len(chunk) < CHUNK:
            return None
        offset += CHUNK - HEADER.size


def _data(source: _Source, frame: Frame) -> BytesOrDamage:
    if frame.damage is not None:
        return frame.damage
    begin = frame.offset + HEADER.size
    content = source.at(begin, frame.end - begin)
    data, stored = content[: -CHECKSUM.size], content[-CHECKSUM.size :]
    if CHECKSUM.pack(masked_crc(data)) == stored:
        return data
    num_bytes = frame.end - CHECKSUM.size - begin
    message = f"the record's {num_bytes} bytes of data, from byte {begin} on, fail their checksum"
    return Damage("damaged_record", message)

from __future__ import annotations

import pathlib
import re
from typing import Any, List

import pytest

from inputs.records import tfrecord
from inputs.records.tfrecord import Damage
from tests.inputs.examples import write
from tests.inputs.faults import frames_of, gzipped

DATA = [b"zero", b"", b"two" * 5000, b"three", b"four"]


def changed(frame: bytes, position: int) -> bytes:
    return frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :]


def found(path: pathlib.Path) -> List[Any]:
    """Data, or the kind of damage and the numbers in its message."""
    records = list(tfrecord.read_records(str(path)))
    offsets = list(tfrecord.record_offsets(str(path)))
    assert len(offsets) == len(records)
    for number, (record, offset) in enumerate(zip(records, offsets)):
        assert tfrecord.read_record(str(path), number) == record
        assert list(tfrecord.read_records(str(path), offset)) == records[number:]
        frames = [frame for frame, _ in tfrecord.read_frames(str(path), offset)]
        assert [frame.offset for frame in frames] == offsets[number:]
    with pytest.raises(IndexError, match=f"no record {len(records)}; the file has {len(records)}"):
        tfrecord.read_record(str(path), len(records))
    return [
        (r.kind, *map(int, re.findall(r"\d+", r.message))) if isinstance(r, Damage) else r
        for r in records
    ]


@pytest.mark.parametrize(("end", "kind"), [("", ""), (".gz", "GZIP"), (".zz", "ZLIB")])
def test_reads_what_tensorflow_writes(tmp_path, end, kind):
    for data in (DATA, []):
        write(tmp_path / f"r{end}", data, kind)
        assert found(tmp_path / f"r{end}") == data


@pytest.mark.parametrize(
    ("places", "numbers"),
    [
        ((1, 3), [0, 1, 2]),
        ((4, 1), [0, 3, 5, 8]),
        ((4, 2), [0, 1, 3, 4, 5, 6, 8, 9]),
        ((2, 7), [*range(10)]),
        ((20, 1), [*range(10)]),
    ],
)
def test_a_sample_is_from_all_of_a_file(tmp_path, places, numbers):
    path = write(tmp_path / "r", [b"%d" % number * 9 for number in range(10)])
    records = list(tfrecord.sample_records(path, *places))
    assert records == [b"%d" % number * 9 for number in numbers]
    compressed = write(tmp_path / "r.gz", [b"%d" % number for number in range(10)], "GZIP")
    first = list(tfrecord.sample_records(compressed, 2, 2))
    assert first == [b"0", b"1", b"2", b"3"]


def test_searches_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "CHUNK", 64)
    frames = frames_of(DATA)
    for shift in range(70):  # the next record begins anywhere in a chunk
        rubbish = b"\xee" * (3 + shift)
        (tmp_path / f"r{shift}").write_bytes(frames[0] + rubbish + frames[3])
        damage = ("damaged_record", len(frames[0]), len(rubbish))
        assert found(tmp_path / f"r{shift}") == [DATA[0], damage, DATA[3]]


@pytest.mark.parametrize("missing", [1, 4, 6, 15, 18])
def test_a_file_that_ends_too_early(tmp_path, missing):
    content = b"".join(frames_of(DATA))
    (tmp_path / "r").write_bytes(content[:-missing])
    *records, damage = found(tmp_path / "r")
    assert records == DATA[:-1]
    assert damage == ("damaged_record", len(content) - 20, 20 - missing)


def test_damage_inside_a_compressed_file(tmp_path):
    frames = frames_of(DATA)
    frames[1] = changed(frames[1], 13)
    (tmp_path / "r.gz").write_bytes(gzipped(b"".join(frames)))
    assert found(tmp_path / "r.gz") == [DATA[0], ("damaged_record", 0, 32), *DATA[2:]]

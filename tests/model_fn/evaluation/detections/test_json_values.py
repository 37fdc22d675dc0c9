"""JSON lists and lines of any size, read piece by piece."""

from __future__ import annotations

import json
import os
import pathlib
import tracemalloc

import pytest

from model_fn.checkpoints.errors import RunError
from model_fn.evaluation.detections import json_values
from model_fn.evaluation.detections.json_values import read_values

ENTRIES = [{"a": 1, "b": "x\ny € \U0001f600"}, [1.5, -2e-3, None, True], "}, ]", 12345, {}]


def _write(folder: pathlib.Path, content: str | bytes) -> str:
    path = folder / "found.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize(
    ("text", "in_list"),
    [
        (json.dumps(ENTRIES), True),
        (json.dumps(ENTRIES, indent=2, ensure_ascii=False) + "\n\n", True),
        ("\n".join(map(json.dumps, ENTRIES)), False),
        ("\ufeff" + "\r\n\r\n".join(map(json.dumps, ENTRIES)) + "\r\n", False),
    ],
)
def test_values(
    text: str, in_list: bool, chunk: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_values, "CHUNK", chunk)
    if not in_list:
        text = text.replace("[1.5, -2e-3, null, true]", "{}")  # a list would begin a file
    found = list(read_values(_write(tmp_path, text)))
    assert [one.value for one in found] == ENTRIES
    assert [one.number for one in found] == [1, 2, 3, 4, 5]
    assert {one.in_list for one in found} == {in_list}


def test_lines_are_counted(tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path, '[\n{"a":\n1},\n\n{"a": 2}, {"a": 3}\n]')
    assert [one.line for one in read_values(path)] == [2, 5, 5]
    path = _write(tmp_path, '{"a": 1}\n\n{"a": "2\\n"}\n3')
    assert [one.line for one in read_values(path)] == [1, 3, 4]


@pytest.mark.parametrize("text", ["", "\n \n", "[]", " [ ] \n"])
def test_files_without_values(text: str, tmp_path: pathlib.Path) -> None:
    assert list(read_values(_write(tmp_path, text))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n{"a": ', r"line 2: is not JSON \(Expecting value\), ends too early"),
        ('[{"a": 1},\n', "line 2: is not JSON"),
        ('[{"a": 1}', "line 1: between two entries of the list a comma is missing"),
        ('[{"a": 1}\n{"a": 2}]', "line 2: between two entries of the list a comma is missing"),
        ('[{"a": 1}] x', "line 1: text follows the end of the list"),
        ('{"a": 1}\n\n{"a" 1}\n{"a": 2}', "line 3: is not JSON"),
        ("[" * 100_000, "line 1: is nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "line 1: has a number of more than 40 digits"),
        (b'{"a": "\xff"}', "is not a text file"),
        (b"\x80\x04\x95pickle", "is not a text file"),
    ],
)
def test_faults_name_the_line(content: str | bytes, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunError, match=message):
        list(read_values(_write(tmp_path, content)))


def test_values_without_end_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_values, "CHUNK", 100)
    monkeypatch.setattr(json_values, "LONGEST_VALUE", 1000)
    path = _write(tmp_path, '{"a": "' + "x" * 100_000)
    with pytest.raises(RunError, match="an entry of more than 1,000 characters"):
        list(read_values(path))


def test_what_is_no_file_is_refused(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(RunError, match="is a named pipe, not a file of detections"):
        list(read_values(str(tmp_path / "pipe.json")))
    with pytest.raises(FileNotFoundError, match=r"no such file of detections: .*none\.json"):
        list(read_values(str(tmp_path / "none.json")))


def test_memory_does_not_grow_with_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_values, "CHUNK", 1 << 12)
    path = _write(tmp_path, json.dumps([{"image_id": k, "score": 0.5} for k in range(5_000)]))
    tracemalloc.start()
    count = sum(1 for _ in read_values(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 5_000
    assert peak < 80_000 < os.path.getsize(path)

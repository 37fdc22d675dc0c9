"""JSON documents piece by piece: the values of the json module, with lines."""

import json

import pytest

from inputs.datasets import json_stream
from inputs.datasets.source import SourceError

DOCUMENT = {
    "info": {"year": 2017, "text": 'a "quoted" [x]'},
    "images": [{"id": 1, "name": "Ä\n"}, {"id": 2}],
    "none": [],
    "number": -12.5e3,
    "nested": [[1, [2]], "x", None, True],
}


def entries(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(json_stream.read_entries(str(path)))


@pytest.mark.parametrize("chunk", [1, 2, 7, 2**20])
@pytest.mark.parametrize("indent", [None, 1])
def test_values_are_those_of_the_json_module(chunk, indent, tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    found = entries(tmp_path / "a.json", json.dumps(DOCUMENT, indent=indent, ensure_ascii=False))
    again = {entry.key: entry.value for entry in found if not entry.is_in_array}
    for entry in found:
        assert json.loads(entry.text) == entry.value
        if entry.is_in_array:
            again.setdefault(entry.key, []).append(entry.value)
    assert again == {key: value for key, value in DOCUMENT.items() if value != []}


@pytest.mark.parametrize("chunk", [1, 2**20])
def test_lines_of_entries(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    found = entries(tmp_path / "a.json", '\ufeff{\n"a": [\n1,\n\n2, 3\n],\r\n"b":\n{}}\n')
    assert [(entry.key, entry.value, entry.line) for entry in found] == [
        ("a", 1, 3), ("a", 2, 5), ("a", 3, 5), ("b", {}, 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "'{' is expected; found the end of the file"),
        ("[1]", 1, "'{' is expected; found '\\['"),
        ('{"a": [1,\n2', 2, "']' is expected|',' is expected"),
        ('{"a": [1,\n\n{"b": }]}', 3, "Expecting value"),
        ('{"a"\n1}', 2, "':' is expected; found '1'"),
        ('{\n"a": 1} x', 2, "follows the end"),
        ("{\na: 1}", 2, "a key in quotes is expected"),
        ('{"a": ' + "[" * 100_000 + "}", 1, "recursion|Expecting"),
        (b'{"a": [1,\n"\xff"]}', 2, "byte 0xff is not UTF-8"),
        ('{"a": [' + "9" * 5000 + "]}", 1, "digits"),
    ],
)
def test_damage_is_reported_by_line(text, line, message, tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(SourceError, match=message) as caught:
        entries(path, text)
    assert caught.value.fault[:3] == ("broken_source", str(path), line)


def test_an_entry_without_end_is_refused_before_it_fills_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", 100)
    monkeypatch.setattr(json_stream, "MAX_ENTRY", 1000)
    text = '{"a": ["' + "x" * 100_000
    with pytest.raises(SourceError, match="an entry has more than 1,000 characters"):
        entries(tmp_path / "a.json", text)

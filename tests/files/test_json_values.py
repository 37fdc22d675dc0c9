"""JSON of any size, value by value: the values of the json module, with lines."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from typing import Any, List

import pytest

from estimator_det.files import json_values
from estimator_det.files.json_values import JsonError, read_members, read_values

DOCUMENT = {
    "info": {"year": 2017, "text": 'a "quoted" [x]'},
    "images": [{"id": 1, "name": "Ä\n"}, {"id": 2}],
    "none": [],
    "number": -12.5e3,
    "nested": [[1, [2]], "x", None, True],
}
ENTRIES = [{"a": 1, "b": "x\ny € \U0001f600"}, [1.5, -2e-3, None, True], "}, ]", 12345, {}]


def _file(text: str | bytes) -> io.BytesIO:
    return io.BytesIO(text if isinstance(text, bytes) else text.encode())


@pytest.fixture(params=[1, 2, 7, 2**20])
def _chunk(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "CHUNK", request.param)


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("indent", [None, 1])
def test_members_are_those_of_the_json_module(indent):
    values = list(read_members(_file(json.dumps(DOCUMENT, indent=indent, ensure_ascii=False))))
    again: dict[str, Any] = {value.key: value.value for value in values if not value.in_list}
    for value in values:
        assert json.loads(value.text) == value.value
        if value.in_list:
            again.setdefault(value.key, []).append(value.value)
    assert again == {key: value for key, value in DOCUMENT.items() if value != []}
    assert list(read_members(_file("{}"))) == []


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize(
    ("text", "in_list"),
    [
        (json.dumps(ENTRIES), True),
        (json.dumps(ENTRIES, indent=2, ensure_ascii=False) + "\n\n", True),
        ("\n".join(map(json.dumps, ENTRIES)), False),
        ("\ufeff" + "\r\n\r\n".join(map(json.dumps, ENTRIES)) + "\r\n", False),
    ],
)
def test_values_of_lists_and_lines(text, in_list):
    values = list(read_values(_file(text)))
    assert [value.value for value in values] == ENTRIES
    assert {value.in_list for value in values} == {in_list}


@pytest.mark.usefixtures("_chunk")
def test_lines_of_values():
    def lines(values: Any) -> List[Any]:
        return [(value.key, value.value, value.line) for value in values]

    text = '\ufeff{\n"a": [\n1,\n\n2, 3\n],\r\n"b":\n{}}\n'
    assert lines(read_members(_file(text))) == [("a", 1, 3), ("a", 2, 5), ("a", 3, 5), ("b", {}, 8)]
    assert lines(read_values(_file("[\n1,\n\n2, 3\n]"))) == [("", 1, 2), ("", 2, 4), ("", 3, 4)]
    text = '{"a":\n1}\n\n"2\\n"\n3'
    assert lines(read_values(_file(text))) == [("", {"a": 1}, 1), ("", "2\n", 4), ("", 3, 5)]


@pytest.mark.parametrize("text", ["", "\n \n", "[]", " [ ] \n"])
def test_files_without_values(text):
    assert list(read_values(_file(text))) == []


@pytest.mark.parametrize(
    ("read", "text", "line", "message"),
    [
        (read_members, "", 1, "'{' is expected; found the end of the file"),
        (read_members, "[1]", 1, r"'{' is expected; found '\['"),
        (read_members, '{"a": [1,\n2', 2, "',' is expected; found the end"),
        (read_members, '{"a": [1,\n\n{"b": }]}', 3, "Expecting value"),
        (read_members, '{\n"a": 1} x', 2, "'x' follows the end"),
        (read_members, "{\na: 1}", 2, "a key in quotes is expected; found 'a'"),
        (read_members, '{"a": ' + "[" * 100_000 + "}", 1, "Expecting|nested too deeply"),
        (read_members, b'{"a": [1,\n"\xff"]}', 2, "byte 0xff is not UTF-8"),
        (read_members, '{"a": [' + "9" * 5000 + "]}", 1, "a number has more than 40 digits"),
        (read_values, '{"a": 1}\n{"a": ', 2, "Expecting value"),
        (read_values, '[{"a": 1},\n', 2, "the file ends where a value is expected"),
        (read_values, '[{"a": 1}\n{"a": 2}]', 2, "',' is expected; found '{'"),
        (read_values, "[" * 100_000, 1, "nested too deeply"),
    ],
)
def test_damage(read, text, line, message):
    with pytest.raises(JsonError, match=f"^not valid JSON: .*{message}") as caught:
        list(read(_file(text)))
    assert caught.value.line == line


@pytest.mark.parametrize("text", ['{"a": ["', '[{"a": "', '{"a": "'])
def test_a_value_without_end_is_refused(text, monkeypatch):
    monkeypatch.setattr(json_values, "CHUNK", 100)
    monkeypatch.setattr(json_values, "MAX_VALUE", 1000)
    file = _file(text + "x" * 100_000)
    with pytest.raises(JsonError, match="an entry has more than 1,000 characters"):
        list((read_values if text[1] == "{" else read_members)(file))
    assert file.tell() < 5_000


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(json_values, "CHUNK", 1 << 12)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"image_id": k, "score": 0.5} for k in range(5_000)]))
    tracemalloc.start()
    with open(path, "rb") as file:
        count = sum(1 for _ in read_values(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 5_000
    assert peak < 80_000 < os.path.getsize(path)

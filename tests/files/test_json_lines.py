import json
import logging
import pathlib

import pytest

from estimator_det.compat import tf
from estimator_det.files import json_lines
from tests.hostile import CONTROLS, shows_as_itself


def test_json_has_no_raw_controls_and_parses_to_the_same():
    value = {"name": CONTROLS, "list": [CONTROLS, 1, None], CONTROLS: "猫"}
    for options in ({}, {"indent": 2}):
        text = json_lines.dumps(value, **options)
        assert shows_as_itself(text) and "猫" in text
        assert json.loads(text) == value
    assert len(json_lines.dumps({"name": "x" * 10**6})) < 2 * json_lines.LONGEST_STRING
    assert json.loads(json_lines.dumps("\U000e0001")) == "\U000e0001"


@pytest.mark.parametrize("scheme", ["", "ram:/"])
def test_an_entry_begins_on_a_new_line(scheme, tmp_path, caplog):
    path = f"{scheme}{tmp_path}/made/log.jsonl"
    assert json_lines.read(path) == []
    json_lines.append(path, {"step": 1})
    with tf.io.gfile.GFile(path, "a") as file:
        file.write('{"step": 2, "na')  # killed
    json_lines.append(path, {"step": 3})
    json_lines.append(path, {"step": 4})
    assert json_lines.read(path) == [{"step": 1}, {"step": 3}, {"step": 4}]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{path}, line 2: incomplete" in record.getMessage()
    json_lines.read(path)
    assert len(caplog.records) == 1
    assert json_lines.read_last(path) == {"step": 4}
    json_lines.append(path, {"text": "x" * 4100})
    json_lines.append(path, {"step": 5})
    assert json_lines.read_last(path) == {"step": 5} and json_lines.read_last(path + "2") == {}
    assert json_lines.read_last(path + "/3") == {}  # below a file


@pytest.mark.parametrize(
    "line", [b'{"a": "\xc3', b"[1]", b"7", b'{"b": 1}', b'{"a": 1}{"a": 2}', b"\xff\xfe"]
)
def test_lines_that_are_no_entries(line, tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 0}\n\n' + line + b'\n{"a": 3}\n' + line + b"\n")
    assert json_lines.read(str(path), ["a"]) == [{"a": 0}, {"a": 3}]
    assert "line 3 and 1 more: incomplete" in caplog.text
    assert "a" not in json_lines.read_last(str(path))


def test_lines_of_text_with_line_separators(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": "x\u2028y\u0085z"}\n', encoding="utf-8")  # as earlier versions wrote it
    assert json_lines.read(str(path)) == [{"a": "x\u2028y\u0085z"}]


def test_errors_name_the_file(tmp_path):
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    with pytest.raises(OSError, match=r"folder\.jsonl"):
        json_lines.append(str(folder), {})
    with pytest.raises(ValueError, match="Out of range float"):
        json_lines.append(str(tmp_path / "a"), {"loss": float("nan")})
    if pathlib.Path("/dev/full").exists():
        with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
            json_lines.append("/dev/full", {"a": 1})

from __future__ import annotations

import pathlib
from typing import Any, List

import pytest

from inputs.checks.class_names import check_class_names
from tests.inputs.examples import BOXES, LABEL_MAP, example, reader, write


def reading(folder: pathlib.Path, names: List[str], end: str = "", kind: str = "") -> Any:
    (folder / "map.pbtxt").write_text(LABEL_MAP)
    text = {"image/object/class/text": names} if names else {}
    path = write(folder / f"r{end}", [example({**BOXES, **text})] * 3, kind)
    return reader(
        f'label_map_path: "{folder / "map.pbtxt"}"tf_record_input_reader {{ input_path: "{path}" }}'
    )


def test_known_names_and_none_pass(tmp_path: pathlib.Path, caplog: Any) -> None:
    check_class_names(reading(tmp_path, ["cat", "/m/cat"]))
    check_class_names(reading(tmp_path, []))
    check_class_names(reader())
    options = reading(tmp_path, ["cat"])
    write(options.tf_record_input_reader.input_path[0], [])
    check_class_names(options)
    assert not [record for record in caplog.records if record.name == "inputs.checks.class_names"]


@pytest.mark.parametrize(("end", "kind"), [("", ""), (".gz", "GZIP")])
def test_some_unknown_names_are_a_warning(
    tmp_path: pathlib.Path, caplog: Any, end: str, kind: str
) -> None:
    check_class_names(reading(tmp_path, ["cat", "horse"], end, kind))
    assert "of 6 boxes" in caplog.text
    assert "'horse' (3)" in caplog.text


def test_only_unknown_names_are_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"'Dog' \(3\).*did you mean 'dog'.*label_map_path"):
        check_class_names(reading(tmp_path, ["Dog", "Dogs"]))

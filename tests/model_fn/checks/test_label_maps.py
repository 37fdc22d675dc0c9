import pathlib
from typing import Any, List

import pytest

from estimator_det.config.pipeline import Problem
from inputs import label_map
from model_fn.checks import config_check
from model_fn.checks.files import LabelMaps, check_hierarchies, check_label_maps
from tests.inputs import examples
from tests.model_fn.checks.small import small_config


def _problems(path: pathlib.Path, text: str = "") -> List[Problem]:
    if text:
        path.write_text(text)
    return list(check_label_maps(_config(path), LabelMaps()))


def _config(path: pathlib.Path, *more: str):
    return small_config(
        "model.ssd.num_classes=2",
        f"train_input_reader.label_map_path={path}",
        f"eval_input_reader.label_map_path={path}",
        *more,
    )


@pytest.mark.parametrize(
    ("text", "severity", "message"),
    [
        ("item { id: 3 name: 'c' }", "error", "has id 3, the model has 2 classes"),
        ("item { id: 1 name: 'a' }", "warning", "ends at id 1"),
        ("\n", "error", "no item has an id of 1 or more"),
        ("item { idd: 1 }", "error", "did you mean 'id'"),
        ("item { id: 2 name: 'a' } item { id: 2 name: 'b' }", "error", "id 2 is given twice"),
        ("item { id: 1 name: 'a' } item { id: 2 name: 'a' }", "error", "name 'a' is given twice"),
    ],
)
def test_label_maps(tmp_path: pathlib.Path, text: str, severity: str, message: str) -> None:
    (problem,) = _problems(tmp_path / "map.pbtxt", text)
    assert problem.field == "train_input_reader.label_map_path"
    assert problem.severity == severity and message in problem.message


def test_a_missing_one_is_reported_once(tmp_path: pathlib.Path) -> None:
    (problem,) = _problems(tmp_path / "map.pbtxt")
    assert "map.pbtxt: no such file" in problem.message


@pytest.mark.parametrize("path", ["gs://nowhere/map.pbtxt", "PATH_TO_BE_CONFIGURED/map.pbtxt"])
def test_remote_ones_and_placeholders_are_not_read(path: str) -> None:
    fields = [
        f"{name}.label_map_path={path}" for name in ("train_input_reader", "eval_input_reader")
    ]
    assert list(check_label_maps(small_config(*fields), LabelMaps())) == []


def test_no_number_of_classes_is_proposed_that_no_model_has(tmp_path: pathlib.Path) -> None:
    text = "item { id: 1 name: 'a' } item { id: 2147483647 name: 'b' }"
    (problem,) = _problems(tmp_path / "map.pbtxt", text)
    assert problem.severity == "error" and "id 2147483647" in problem.message
    assert "num_classes" not in str(problem) and "from 1 without gaps" in problem.remedy


def test_ids_with_gaps_are_renumbered_rather_than_the_model_enlarged(
    tmp_path: pathlib.Path,
) -> None:
    (problem,) = _problems(tmp_path / "map.pbtxt", "item { id: 3 name: 'c' }")
    assert problem.remedy.startswith("number the classes from 1 without gaps")
    assert _problems(tmp_path / "fits", "item { id: 1 name: 'a' } item { id: 2 name: 'b' }") == []
    text = "".join(f"item {{ id: {i} name: 'c{i}' }}" for i in (1, 2, 3))
    (problem,) = _problems(tmp_path / "dense.pbtxt", text)
    assert problem.remedy == "--set model.ssd.num_classes=3"


@pytest.mark.parametrize("text", ["item { id: 1 name: 'circle' }", "item {"])
def test_each_is_opened_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "map.pbtxt").write_text(text)
    config = _config(tmp_path / "map.pbtxt")
    for reader in (config.train_input_reader, *config.eval_input_reader):
        reader.tf_record_input_reader.input_path[:] = [str(tmp_path / "a.record")]
    examples.write(tmp_path / "a.record", [examples.example({})])
    real, opened = label_map.files.read_text, []

    def read_text(path: str, *more: Any) -> str:
        opened.append(path)
        return real(path, *more)

    monkeypatch.setattr(label_map.files, "read_text", read_text)
    for depth in (config_check.FILES, config_check.CONTENTS, config_check.GRAPHS):
        assert config_check.check(config, depth).problems
        assert opened == [str(tmp_path / "map.pbtxt")], depth
        opened.clear()


def test_label_hierarchies(tmp_path: pathlib.Path) -> None:
    labels, hierarchy = tmp_path / "map.pbtxt", tmp_path / "hierarchy.json"
    labels.write_text("item { id: 1 name: 'a' } item { id: 2 name: 'b' }")
    hierarchy.write_text('{"LabelName": "root", "Subcategory": [{"LabelName": "c"}]}')
    reader = "eval_input_reader[0]"
    path = f"{reader}.label_hierarchy_path={hierarchy}"
    config = _config(labels, path, f"{reader}.expand_labels_hierarchy=true")
    (problem,) = check_hierarchies(config, LabelMaps())
    assert problem.field == f"{reader}.label_hierarchy_path"
    assert "no LabelName is a name of" in problem.message
    assert [one.field for one in config_check.check(config).problems if one.field == problem.field]
    hierarchy.write_text('{"LabelName": "root", "Subcategory": [{"LabelName": "b"}]}')
    assert list(check_hierarchies(config, LabelMaps())) == []
    # Without expansion it has no effect; a file that does not exist is reported by its path.
    (unused,) = (
        p for p in config_check.check(_config(labels, path)).problems if p.field == problem.field
    )
    assert "has no effect: expand_labels_hierarchy is not set" in unused.message
    hierarchy.unlink()
    (missing,) = (p for p in config_check.check(config).problems if p.field == problem.field)
    assert "hierarchy.json: no such file" in missing.message and missing.severity == "error"

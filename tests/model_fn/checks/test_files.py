"""Files that a configuration names: label maps, label hierarchies and records."""

from __future__ import annotations

import os
import pathlib
from typing import Any, List

import pytest

from estimator_det.errors import Problem, UsageError
from model_fn.checks import config_check, files
from model_fn.checks.subject import read_subject
from model_fn.runs import runner
from tests.inputs import examples
from tests.inputs.examples import BOXES, encoded, example
from tests.model_fn.checks.small import small_config

PATHS = "tf_record_input_reader.input_path"
A, B, C = (f"item {{ id: {i} name: '{name}' }}" for i, name in enumerate("abc", 1))


def _config(path: Any, *more: str) -> Any:
    both = [
        f"{field}.label_map_path={path}" for field in ("train_input_reader", "eval_input_reader")
    ]
    return small_config("model.ssd.num_classes=2", *both, *more)


def _label_map_problems(path: pathlib.Path, text: str = "") -> List[Problem]:
    if text:
        path.write_text(text)
    return list(files.check_label_maps(read_subject(_config(path), reads_all=False)))


@pytest.mark.parametrize(
    ("text", "severity", "message", "remedy"),
    [
        (C, "error", "'c' (id 3) cannot be learnt", "number the classes from 1 without gaps"),
        (A + B + C, "error", "has id 3, the model has 2", "--set model.ssd.num_classes=3"),
        (A, "warning", "ends at id 1, the model has 2 classes", "--set model.ssd.num_classes=1"),
        (A + "item { id: 2147483647 name: 'b' }", "error", "id 2147483647", files.RENUMBER),
        ("\n", "error", "no item has an id of 1 or more", ""),
        ("item { idd: 1 }", "error", "did you mean 'id'", ""),
        ("", "error", "map.pbtxt: no such file", ""),
    ],
)
def test_label_maps(tmp_path, text, severity, message, remedy):
    (problem,) = _label_map_problems(tmp_path / "map.pbtxt", text)
    assert problem.field == "train_input_reader.label_map_path"
    assert problem.severity == severity and message in problem.message
    assert problem.remedy.startswith(remedy)
    assert _label_map_problems(tmp_path / "fits.pbtxt", A + B) == []


@pytest.mark.parametrize("path", ["gs://nowhere/map.pbtxt", "PATH_TO_BE_CONFIGURED/map.pbtxt"])
def test_remote_label_maps_and_placeholders_are_not_read(path):
    subject = read_subject(_config(path), reads_all=False)
    assert [reader.labels for reader in subject.readers] == [None, None]


def test_label_hierarchies(tmp_path):
    labels, hierarchy = tmp_path / "map.pbtxt", tmp_path / "hierarchy.json"
    labels.write_text(A + B)
    field = "eval_input_reader[0].label_hierarchy_path"
    path = f"{field}={hierarchy}"
    config = _config(labels, path, "eval_input_reader[0].expand_labels_hierarchy=true")

    def problems(config: Any) -> List[Problem]:
        return [each for each in config_check.check(config).problems if each.field == field]

    for name, message in (("c", "no LabelName is a name of"), ("b", "")):
        text = f'{{"LabelName": "root", "Subcategory": [{{"LabelName": "{name}"}}]}}'
        hierarchy.write_text(text)
        assert [message in problem.message for problem in problems(config)] == [True][
            : len(message)
        ]
    # Without expansion it has no effect; a file that does not exist is reported by its path.
    (unused,) = problems(_config(labels, path))
    assert "has no effect: expand_labels_hierarchy is not set" in unused.message
    hierarchy.unlink()
    (missing,) = problems(config)
    assert "hierarchy.json: no such file" in missing.message and missing.severity == "error"


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.record").mkdir()
    (tmp_path / "a.record").write_bytes(b"x")
    os.mkfifo(tmp_path / "a.pipe")  # Opening it would wait without end.
    for path, field, message in (
        (tmp_path / "*.record", PATHS, "folder.record' cannot be read"),  # each file of a pattern
        (tmp_path / "a.pipe", PATHS, "a.pipe' cannot be read: it is a named pipe"),
        ("ram://nowhere/x.record", PATHS, "no file matches"),
        ("ram://nowhere/map.pbtxt", "label_map_path", "map.pbtxt: no such file"),
    ):
        value = f'["{path}"]' if field == PATHS else path
        changes = ["train_input_reader={}", "eval_input_reader=[]"]
        subject = read_subject(small_config(*changes, f"train_input_reader.{field}={value}"))
        (problem,) = [*files.check_files(subject), *files.check_label_maps(subject)]
        assert problem.field.startswith(f"train_input_reader.{field}")
        assert message in problem.message


@pytest.fixture
def make_config(tmp_path: pathlib.Path) -> Any:
    """Records of a cat and a dog; label maps with a cat, with an owl, and cut off."""
    features = {"image/encoded": encoded(examples.picture()), **BOXES}
    features["image/object/class/text"] = ["cat", "dog"]
    examples.write(tmp_path / "a.record", [example(features)])
    for name, text in (("same", "'cat'"), ("other", "'owl'"), ("cut", "'owl' {")):
        (tmp_path / f"{name}.pbtxt").write_text(f"item {{ id: 1 name: {text} }}")

    def make(train: str, evaluation: str, records: str = "a.record") -> Any:
        return small_config(
            f"train_input_reader.label_map_path={tmp_path}/{train}.pbtxt",
            f"train_input_reader.{PATHS}=[{tmp_path}/{records}]",
            f"eval_input_reader[0].label_map_path={tmp_path}/{evaluation}.pbtxt",
            f"eval_input_reader[0].{PATHS}=[{tmp_path}/{records}]",
        )

    return make


def _foreign(config: Any) -> List[Problem]:
    found = files.check_label_maps(read_subject(config))
    return [problem for problem in found if "names are" in problem.message]


def test_a_label_map_of_other_classes_is_an_error_of_its_reader(make_config):
    assert not _foreign(make_config("same", "same"))
    (problem,) = _foreign(make_config("same", "other"))
    assert (problem.severity, problem.field) == ("error", "eval_input_reader[0].label_map_path")
    assert "'cat' (1), 'dog' (1)" in problem.message and "names are ['owl']" in problem.message
    assert len(_foreign(make_config("other", "other"))) == 2


def test_training_refuses_the_label_map_of_an_evaluation_at_once(make_config, tmp_path):
    refused = r"names are \['owl'\].*Correct label_map"
    with pytest.raises(UsageError, match=refused):
        runner.train_and_evaluate(make_config("same", "other"), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_what_cannot_be_read_is_left_to_other_checks(make_config, tmp_path):
    (tmp_path / "b.record").write_bytes(b"no record")
    os.mkfifo(tmp_path / "pipe.record")  # Opening it would wait without end.
    assert not _foreign(make_config("cut", "gone"))
    for records in ("none.record", "b.record", "pipe.record"):
        assert not _foreign(make_config("other", "other", records))
    without = make_config("other", "other")
    without.train_input_reader.ClearField("tf_record_input_reader")
    without.eval_input_reader[0].ClearField("label_map_path")
    assert not _foreign(without)


@pytest.mark.parametrize("name", ["Aa", "aas", " aa "])  # case, plural, blanks
def test_boxes_of_a_misspelt_class_are_a_counted_warning(tmp_path, name):
    record, map_path = tmp_path / "a.record", tmp_path / "map.pbtxt"
    examples.write(record, [example({**BOXES, "image/object/class/text": ["aa", name]})] * 3)
    map_path.write_text(A.replace("'a'", "'aa'") + B)
    readers = ("train_input_reader", "eval_input_reader")
    config = _config(map_path, *(f"{reader}.{PATHS}=[{record}]" for reader in readers))
    for problem in files.check_label_maps(read_subject(config)):
        assert problem.severity == "warning"
        assert f"of 6 boxes in a sample from {record}, 3 have class names" in problem.message
        assert problem.message.endswith("; did you mean 'aa'?")
    assert len(list(files.check_label_maps(read_subject(config)))) == 2

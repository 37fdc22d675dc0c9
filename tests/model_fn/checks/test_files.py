import os
import pathlib

from model_fn.checks import files
from tests.model_fn.checks.small import small_config


def test_files_that_cannot_be_read(tmp_path: pathlib.Path):
    folder = tmp_path / "a_folder"
    folder.mkdir()
    config = small_config(
        f'train_input_reader.tf_record_input_reader.input_path=["{folder}"]',
        "train_input_reader.label_map_path=ram://nowhere/map.pbtxt",
        'eval_input_reader[0].tf_record_input_reader.input_path=["ram://nowhere/x.record"]',
        "eval_input_reader[0].label_map_path=",
    )
    problems = {
        problem.field: problem.message for problem in files.check_files(config, files.LabelMaps())
    }
    assert set(problems) == {
        "train_input_reader.tf_record_input_reader.input_path[0]",
        "train_input_reader.label_map_path",
        "eval_input_reader[0].tf_record_input_reader.input_path[0]",
    }
    assert "cannot be read" in problems["train_input_reader.tf_record_input_reader.input_path[0]"]
    assert "no file matches" in problems["train_input_reader.label_map_path"]
    os.mkfifo(folder / "a.pipe")  # Opening it would wait without end.
    pipe = f'train_input_reader.tf_record_input_reader.input_path=["{folder}/a.pipe"]'
    (problem,) = files.check_files(small_config(pipe, "eval_input_reader=[]"), files.LabelMaps())
    assert problem.message.endswith("a.pipe' cannot be read: it is a named pipe")
    (folder / "a.record").write_bytes(b"x")
    (folder / "b.record").mkdir()  # Every file of a pattern is read.
    twice = tmp_path / "map.pbtxt"
    twice.write_text("item { id: 1 name: 'a' } item { id: 1 name: 'b' }")
    config = small_config(
        f'train_input_reader.tf_record_input_reader.input_path=["{folder}/*.record"]',
        f"train_input_reader.label_map_path={twice}",
        "eval_input_reader=[]",
    )
    first, second = files.check_files(config, files.LabelMaps())
    assert "id 1 is given twice" in first.message and "ids from 1" in first.remedy
    assert "b.record' cannot be read" in second.message

"""Reading and saving whole configurations."""

from __future__ import annotations

import glob
import os
import pathlib
from typing import List

import pytest

import estimator_det
from estimator_det.config.pipeline import (
    format_pipeline,
    parse_pipeline,
    read_pipeline,
    save_pipeline,
)
from estimator_det.errors import Problem, UsageError
from estimator_det.protos.pipeline_pb2 import TrainEvalPipelineConfig
from tests.config.test_check import check
from tests.conftest import MODELS

TEXT = """
# A comment.
model: { ssd { num_classes: 3 negative_class_weight: 0.1 } }
train_config { batch_size: 0, freeze_variables: ['a', "b"]; }
"""


def test_real_configurations_survive_parse_print_parse():
    paths = sorted((MODELS / "pipelines").glob("*.config"))
    assert len(paths) == 43
    for path in paths:
        config = read_pipeline(path)
        printed = format_pipeline(config)
        assert parse_pipeline(printed) == config, path.name
        assert format_pipeline(parse_pipeline(printed)) == printed, path.name
        assert config.model.WhichOneof("model") and not errors(path), path.name


def errors(path: pathlib.Path) -> List[Problem]:
    """Errors of a configuration, but for the paths that a user fills in."""
    return [
        problem
        for problem in check(read_pipeline(path))
        if problem.severity == "error" and "placeholder" not in problem.message
    ]


def test_shipped_configurations_have_no_errors_but_placeholders():
    paths = list((pathlib.Path(estimator_det.__file__).parent / "configs").glob("*.config"))
    assert paths
    assert [error for path in paths for error in errors(path)] == []


def test_save_makes_the_folder_and_replaces_whole_files(tmp_path):
    model_dir = tmp_path / "a" / "b"
    config = parse_pipeline(TEXT)
    path = save_pipeline(config, str(model_dir))
    assert path == str(model_dir / "pipeline.config")
    config.train_config.batch_size = 8
    save_pipeline(config, str(model_dir))
    assert read_pipeline(path) == config
    assert os.listdir(model_dir) == ["pipeline.config"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    config = parse_pipeline(TEXT)
    path = save_pipeline(config, str(tmp_path))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_pipeline(TrainEvalPipelineConfig(), str(tmp_path))
    assert read_pipeline(path) == config
    assert os.listdir(tmp_path) == ["pipeline.config"]


def test_remote_paths_go_through_tensorflow(tmp_path):
    pytest.importorskip("tensorflow")
    model_dir = f"ram://{tmp_path.name}/model"
    config = parse_pipeline(TEXT)
    assert save_pipeline(config, model_dir) == f"{model_dir}/pipeline.config"
    save_pipeline(config, model_dir + "/")
    assert read_pipeline(f"{model_dir}/pipeline.config") == config
    with pytest.raises(UsageError, match="no such file"):
        read_pipeline(f"{model_dir}/other.config")


@pytest.mark.parametrize("name", ["project[1]", "'my \"run "])
def test_relative_paths_are_tried_beside_the_file(name, tmp_path, monkeypatch):
    project, elsewhere = tmp_path / name, tmp_path / "elsewhere"
    for folder in (project / "records", elsewhere):
        folder.mkdir(parents=True)
    (project / "records" / "train.record-0").touch()
    (project / "model.ckpt.index").touch()
    (elsewhere / "map.pbtxt").touch()
    (project / "map.pbtxt").touch()
    (project / "joints.pbtxt").touch()
    (project / "my.config").write_text(
        """model { center_net { keypoint_label_map_path: "joints.pbtxt" } }
        train_config { fine_tune_checkpoint: "model.ckpt" }
        train_input_reader { label_map_path: "map.pbtxt"
          tf_record_input_reader { input_path: ["records/train*", "none*"] } }"""
    )
    monkeypatch.chdir(elsewhere)
    config = read_pipeline(f"../{name}/my.config")
    assert config.model.center_net.keypoint_label_map_path == f"../{name}/joints.pbtxt"
    assert config.train_config.fine_tune_checkpoint == f"../{name}/model.ckpt"
    assert config.train_input_reader.label_map_path == "map.pbtxt"  # the working folder has it
    patterns = config.train_input_reader.tf_record_input_reader.input_path
    assert list(patterns) == [f"../{glob.escape(name)}/records/train*", "none*"]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"no\.config: no such file$"):
        read_pipeline(str(tmp_path / "no.config"))
    with pytest.raises(UsageError, match=r"there is no folder .*sub either"):
        read_pipeline(str(tmp_path / "sub" / "no.config"))
    with pytest.raises(UsageError, match="is a folder"):
        read_pipeline(str(tmp_path))
    binary = tmp_path / "binary.config"
    binary.write_bytes(b"model { \xff }")
    with pytest.raises(UsageError, match="0xff at position 8 is not UTF-8"):
        read_pipeline(str(binary))


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "windows.config"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert read_pipeline(path) == parse_pipeline(TEXT)

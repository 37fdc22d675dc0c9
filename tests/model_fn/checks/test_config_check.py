"""Each depth of a check finds more than the one before it."""

from __future__ import annotations

import os
import pathlib
from typing import Any, List

import pytest

from model_fn.checks import config_check
from model_fn.checks.config_check import CONTENTS, FILES, GRAPHS, NAMES
from tests.inputs import examples
from tests.inputs.examples import BOXES, encoded, example
from tests.model_fn.checks.small import small_config

LABEL_MAP = "train_input_reader.label_map_path"
RECORDS = "train_input_reader.tf_record_input_reader.input_path"
EVALUATION = "eval_input_reader=[]"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Records of a circle; label maps `same` with its class and `other` without it."""
    features = {"image/encoded": encoded(examples.picture()), **BOXES}
    texts = {"image/object/class/text": ["circle", "circle"]}
    examples.write(tmp_path / "a.record", [example({**features, **texts})])
    (tmp_path / "same.pbtxt").write_text("item { id: 1 name: 'circle' }")
    (tmp_path / "other.pbtxt").write_text("item { id: 1 name: 'owl' }")
    return tmp_path


def errors(config: Any, depth: str) -> List[str]:
    problems = config_check.check(config, depth).problems
    return [problem.field for problem in problems if problem.severity == "error"]


def make_config(folder: pathlib.Path, label_map: str, records: str, *more: str) -> Any:
    paths = (f"{LABEL_MAP}={folder}/{label_map}", f"{RECORDS}=[{folder}/{records}]", EVALUATION)
    return small_config("model.ssd.num_classes=1", *paths, *more)


def test_names_need_no_file(folder):
    config = make_config(folder, "none.pbtxt", "none.record", "model.ssd.feature_extractor.type=x")
    assert errors(config, NAMES) == ["model.ssd.feature_extractor.type"]
    fields = {"model.ssd.feature_extractor.type", LABEL_MAP, f"{RECORDS}[0]"}
    for depth in (FILES, CONTENTS, GRAPHS):
        assert set(errors(config, depth)) == fields
        assert config_check.check(config, depth).graphs is None


def test_contents_are_read_after_files(folder):
    os.mkfifo(folder / "a.pipe")
    for label_map, records, field in (
        ("other.pbtxt", "a.record", LABEL_MAP),
        ("same.pbtxt", "a.pipe", f"{RECORDS}[0]"),
    ):
        config = make_config(folder, label_map, records)
        assert errors(config, NAMES) == errors(config, FILES) == []
        assert errors(config, CONTENTS) == [field]


@pytest.mark.usefixtures("small_network")
def test_graphs_are_built_last(folder):
    checkpoint = [f"train_config.fine_tune_checkpoint={folder}/model.ckpt"]
    checkpoint.append("train_config.fine_tune_checkpoint_type=detection")
    (folder / "model.ckpt.index").write_bytes(b"x")
    config = make_config(folder, "same.pbtxt", "a.record", *checkpoint)
    assert errors(config, CONTENTS) == []
    assert errors(config, GRAPHS) == ["train_config.fine_tune_checkpoint"]
    (folder / "model.ckpt.index").unlink()
    assert errors(config, FILES) == errors(config, GRAPHS) == ["train_config.fine_tune_checkpoint"]
    assert config_check.check(make_config(folder, "same.pbtxt", "a.record"), GRAPHS).graphs
    steps = "train_config.data_augmentation_options=[{copy_paste {}}]"
    config = make_config(folder, "same.pbtxt", "a.record", steps)
    fields = [errors(config, depth) for depth in (FILES, CONTENTS, GRAPHS)]
    assert len(fields[0]) == 1 and fields[1] == fields[2] == fields[0]


def test_an_unknown_metrics_set_is_reported_once():
    config = small_config("eval_config.metrics_set=[unknown]")
    for depth in (NAMES, FILES):
        fields = [field for field in errors(config, depth) if "reader" not in field]
        assert fields == ["eval_config.metrics_set[0]"], depth

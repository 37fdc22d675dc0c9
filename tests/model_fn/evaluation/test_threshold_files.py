"""Files of thresholds: round trips, where they are found, and what is refused."""

from __future__ import annotations

import json
import logging
import math
import os
import pathlib
from typing import Any

import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import pipeline_pb2
from model_fn.evaluation import threshold_files
from model_fn.evaluation.thresholds import Row, Table

TABLE = Table(Row("all classes", 9, 9, 0.5), (Row("cat\u202e", 9, 9, 0.25, class_id=3),))


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(threshold_files, "step_of", lambda prefix: int(prefix.rsplit("-")[-1]))
    made = pipeline_pb2.TrainEvalPipelineConfig()
    made.model.ssd.post_processing.score_converter = 1
    made.eval_input_reader.add()
    return made


def _write(folder: Any, config: Any, step: int = 20) -> str:
    return threshold_files.write(str(folder), step, "0", TABLE, config.model)


def test_round_trip(config: Any, tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path / "eval_0", config)
    assert path == str(tmp_path / "eval_0" / "thresholds-20.json")
    assert os.listdir(tmp_path / "eval_0") == ["thresholds-20.json"]
    assert threshold_files.read(path).table == TABLE
    values = json.loads(pathlib.Path(path).read_text())
    assert (values["reader"], values["step"], values["match_iou"]) == ("0", 20, 0.5)
    assert "\u202e" not in pathlib.Path(path).read_text()
    threshold_files.check(path, config.model)


def test_thresholds_of_a_checkpoint(config: Any, tmp_path: pathlib.Path) -> None:
    prefix = str(tmp_path / "model.ckpt-20")
    assert threshold_files.find(config, prefix) is None
    path = _write(tmp_path / "eval_0", config)
    assert threshold_files.find(config, prefix) == path
    # A copy of the checkpoint in best/; another step; another folder for the evaluation.
    assert threshold_files.find(config, str(tmp_path / "best" / "model.ckpt-20")) == path
    assert threshold_files.find(config, str(tmp_path / "model.ckpt-30")) is None
    other = _write(tmp_path / "other" / "eval_0", config)
    assert threshold_files.find(config, prefix, str(tmp_path / "other")) == other
    config.eval_input_reader.add().name = "second"
    assert threshold_files.find(config, prefix) == path
    config.eval_input_reader[0].name = "val"
    assert threshold_files.find(config, prefix) is None
    path = _write(tmp_path / "eval_val", config)
    assert threshold_files.find(config, prefix) == path


def test_thresholds_of_other_scores_are_refused_or_left_out(
    config: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _write(tmp_path / "eval_0", config)
    assert threshold_files.find_usable(config, str(tmp_path / "model.ckpt-20")) == path
    config.model.ssd.post_processing.calibration_config.sigmoid_calibration.SetInParent()
    with pytest.raises(ConfigError, match=r"for other scores: model\.ssd\.post_processing was not"):
        threshold_files.check(path, config.model)
    with caplog.at_level(logging.WARNING):
        assert threshold_files.find_usable(config, str(tmp_path / "model.ckpt-20")) is None
    assert "Exporting without thresholds: " in caplog.text
    # Those of a file of detections are of no model, and may be given.
    path = threshold_files.write(str(tmp_path), 0, "0", TABLE)
    threshold_files.check(path, config.model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it is no JSON object"),
        (b"{}", "a value is missing or wrong: 'all_classes'"),
        (b'{"all_classes": 1, "classes": []}', "a value is missing or wrong"),
        (b'{"all_classes": {}, "classes": []}', "a value is missing or wrong"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "thresholds.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not a file of thresholds") as caught:
        threshold_files.read(str(path))
    assert message in str(caught.value)


def test_thresholds_that_are_not_finite_are_refused(tmp_path: pathlib.Path) -> None:
    values = Table(Row("all", 1, 1, math.inf), ()).to_json()
    (tmp_path / "a.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="a threshold is not finite"):
        threshold_files.read(str(tmp_path / "a.json"))


def test_large_special_and_missing_files_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        threshold_files.read(str(tmp_path / "none.json"))
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ConfigError, match="is a named pipe, not a file"):
        threshold_files.read(str(tmp_path / "pipe.json"))
    monkeypatch.setattr(threshold_files, "LONGEST_FILE", 3)
    (tmp_path / "a.json").write_text("{   }")
    with pytest.raises(ConfigError, match="has 5 bytes; allowed: 3"):
        threshold_files.read(str(tmp_path / "a.json"))

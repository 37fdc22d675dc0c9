"""Tables of thresholds worked out by hand, and their files."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from estimator_det.config.derived_models import final_scores
from estimator_det.errors import UsageError
from estimator_det.protos import pipeline_pb2
from model_fn.evaluation import score_thresholds
from model_fn.evaluation.matching import ClassMatches
from model_fn.evaluation.readers import OTHER_SETTINGS
from model_fn.evaluation.score_thresholds import (
    ThresholdRow,
    ThresholdTable,
    best_f1,
    format_table,
    make_table,
)
from tests.model_fn.evaluation.test_matching import BOX, FAR, batch, matches_of

TABLE = ThresholdTable(
    ThresholdRow("all classes", 9, 9, 0.5), (ThresholdRow("cat\u202e", 9, 9, 0.25, class_id=3),)
)


def judged(scores: list[float], correct: list[int], num_boxes: int) -> ClassMatches:
    return ClassMatches(np.float32(scores), np.array(correct, bool), num_boxes)


@pytest.mark.parametrize(
    ("matches", "threshold", "precision", "recall", "f1"),
    [
        # Precision 1, 1/2, 2/3, 3/4, 3/5; recall 1/4, 1/4, 1/2, 3/4, 3/4;
        # F1 2/5, 1/3, 4/7, 3/4, 2/3.
        (judged([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0], 4), 0.6, 0.75, 0.75, 0.75),
        # With the correct one of 0.8 alone F1 would be 1; both of 0.8 give 2/3.
        (judged([0.8, 0.8, 0.7], [1, 0, 0], 1), 0.8, 1 / 2, 1, 2 / 3),
        # Of equal F1 the highest threshold: 2/3 at 0.9 and again at 0.6.
        (judged([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], 2), 0.9, 1, 1 / 2, 2 / 3),
    ],
)
def test_best_f1(matches, threshold, precision, recall, f1):
    row = best_f1("cat", matches, 7)
    assert row.threshold == pytest.approx(threshold)
    assert (row.precision, row.recall, row.f1) == pytest.approx((precision, recall, f1))
    assert (row.class_id, row.num_detections) == (7, len(matches.scores))


@pytest.mark.parametrize(
    ("matches", "text"),
    [(judged([0.9], [0], 3), "no correct detection"), (judged([0.9], [0], 0), "no box")],
)
def test_without_boxes_or_correct_detections_no_threshold_is_best(matches, text):
    row = best_f1("cat", matches)
    assert row.threshold is row.precision is row.recall is row.f1 is None
    assert text in format_table(ThresholdTable(row, ()), "file")


def test_table_of_an_evaluation():
    table = make_table(
        matches_of(
            batch([BOX, FAR], [1, 2], [BOX, FAR, BOX], [0.9, 0.4, 0.3], [1, 2, 2]),
            batch([BOX], [1], [FAR], [0.8], [1]),
        )
    )
    # Cats: 1 of 1 is correct, of 2 boxes; then 1 of 2. Dogs: 1 of 1, of 1 box; then 1 of 2.
    assert [row.f1 for row in table.classes[:2]] == pytest.approx([2 / 3, 1.0])
    assert table.per_class() == pytest.approx({1: 0.9, 2: 0.4})
    # All: 1 of 1, 1 of 2, 2 of 3 at 0.4, 2 of 4; of 3 boxes: F1 1/2, 2/5, 2/3, 4/7.
    assert (table.all_classes.threshold, table.all_classes.f1) == pytest.approx((0.4, 2 / 3))


def test_printed_tables_are_short_and_escaped():
    rows = [
        ThresholdRow(f"class {k}", 100 - k, 5, 0.5, 0.25, 0.75, 0.375, class_id=k)
        for k in range(40)
    ]
    rows[3] = ThresholdRow("\x1b[2J" + "x" * 5000, 300, 5, class_id=3)
    text = format_table(ThresholdTable(rows[0], tuple(rows)), "run/thresholds-2.json")
    lines = text.splitlines()
    assert len(lines) == score_thresholds.MAX_ROWS_PRINTED + 3
    assert max(map(len, lines)) < 100
    assert "\x1b" not in text
    assert "class 8 " in text and "class 10 " not in text
    assert lines[-1].endswith("30 classes more  all in run/thresholds-2.json")
    assert lines[1].split()[-5:] == ["100", "0.500", "0.250", "0.750", "0.375"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(score_thresholds, "step_of", lambda prefix: int(prefix.rsplit("-")[-1]))
    pipeline = pipeline_pb2.TrainEvalPipelineConfig()
    pipeline.model.ssd.post_processing.score_converter = 1
    pipeline.eval_input_reader.add()
    return pipeline


def write(folder: Any, config: Any, step: int = 20) -> str:
    scores = final_scores(config.model).fingerprint()
    return score_thresholds.write(str(folder), step, "0", dataclasses.replace(TABLE, scores=scores))


def test_files_of_a_checkpoint(config, tmp_path):
    prefix = str(tmp_path / "model.ckpt-20")
    assert score_thresholds.find_usable(config, prefix) is None
    path = write(tmp_path / "eval_0", config)
    assert path == str(tmp_path / "eval_0" / "thresholds-20.json")
    assert dataclasses.replace(score_thresholds.read(path), scores=None) == TABLE
    assert "\u202e" not in pathlib.Path(path).read_text()
    assert score_thresholds.find_usable(config, prefix) == path
    # A copy of the checkpoint in best/; another step; another folder for the evaluation.
    copy = tmp_path / "best" / "model.ckpt-20"
    assert score_thresholds.find_usable(config, str(copy)) is None, "another run"
    copy.parent.mkdir()
    (copy.parent / "best.json").touch()
    assert score_thresholds.find_usable(config, str(copy)) == path
    assert score_thresholds.find_usable(config, str(tmp_path / "model.ckpt-30")) is None
    other = write(tmp_path / "other" / "eval_0", config)
    assert score_thresholds.find_usable(config, prefix, str(tmp_path / "other")) == other
    config.eval_input_reader.add().name = "second"
    assert score_thresholds.find_usable(config, prefix) == path
    config.eval_input_reader[0].name = "val"
    assert score_thresholds.find_usable(config, prefix) is None


def test_thresholds_of_other_scores_are_refused_or_left_out(config, tmp_path, caplog):
    path = write(tmp_path / "eval_0", config)
    config.model.ssd.post_processing.calibration_config.sigmoid_calibration.SetInParent()
    with pytest.raises(UsageError, match=r"for other scores: model\.ssd\.post_processing was not"):
        score_thresholds.check(path, config.model)
    with caplog.at_level(logging.WARNING):
        assert score_thresholds.find_usable(config, str(tmp_path / "model.ckpt-20")) is None
    assert "Exporting without thresholds: " in caplog.text
    # An evaluation of the run with these scores has a folder of its own.
    fitting = write(tmp_path / OTHER_SETTINGS / "eval_0", config)
    assert score_thresholds.find_usable(config, str(tmp_path / "model.ckpt-20")) == fitting
    # Thresholds of a file of detections belong to no model, and may be given.
    path = score_thresholds.write(str(tmp_path), 0, "0", TABLE)
    score_thresholds.check(path, config.model)


def changed_table(**change: Any) -> bytes:
    values = json.loads(json.dumps(dataclasses.asdict(TABLE)))
    values["classes"][0].update(change)
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "JSONDecodeError"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
        (b"[" * 100_000, "RecursionError"),
        (b"[]", "TypeError"),
        (b"{}", "KeyError('all_classes')"),
        (b'{"all_classes": {}, "classes": []}', "missing 3 required"),
        (changed_table(threshold="high"), "not a row of a table"),
        (changed_table(threshold=math.inf), "not a row of a table"),
        (changed_table(class_id=1.5), "not a row of a table"),
        (changed_table(other=1), "unexpected keyword argument 'other'"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    path = tmp_path / "thresholds.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a file of thresholds") as caught:
        score_thresholds.read(str(path))
    assert message in str(caught.value)


def test_large_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(score_thresholds, "LONGEST_FILE", 3)
    (tmp_path / "a.json").write_text("{   }")
    with pytest.raises(UsageError, match="has 5 bytes; allowed: 3"):
        score_thresholds.read(str(tmp_path / "a.json"))

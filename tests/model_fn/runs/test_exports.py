from __future__ import annotations

import logging
import pathlib
from typing import Any

from estimator_det.compat import tf
from exporters.formats.saved_model import SavedModelDetector
from model_fn.evaluation import score_thresholds
from model_fn.model_fn import create_model_fn
from model_fn.runs import exports, runner
from model_fn.runs.backends.base import make_estimator
from model_fn.runs.options import EvaluationOptions
from model_fn.serving import saved_model
from tests.model_fn import fake


def _with_label_map(path: pathlib.Path) -> Any:
    config = fake.pipeline_config()
    config.eval_input_reader[0].label_map_path = str(path)
    return config


def test_exports_carry_the_label_map(readers, tmp_path):
    path = tmp_path / "labels.pbtxt"
    path.write_text("item { id: 1 name: 'cat' } item { id: 3 name: 'cow' }")
    config = _with_label_map(path)
    records = tmp_path / "records"
    with tf.io.TFRecordWriter(str(records)) as writer:  # no class names that could differ
        writer.write(tf.train.Example().SerializeToString())
    config.eval_input_reader[0].tf_record_input_reader.input_path[:] = [str(records)]
    model_dir = tmp_path / "model"
    evaluating = EvaluationOptions(best_metric="loss")
    runner.train_and_evaluate(config, str(model_dir), evaluation=evaluating, progress=False)
    content = path.read_bytes()
    path.unlink()  # the exports need it no more
    for name in ("Servo", "best"):
        (exported,) = (model_dir / "export" / name).iterdir()
        (asset,) = (exported / "assets").iterdir()
        assert (asset.name, asset.read_bytes()) == ("labels.pbtxt", content)
        thresholds = score_thresholds.read(str(exported / score_thresholds.IN_EXPORTS))
        assert [row.name for row in thresholds.classes] == ["cat", "cow"]
        predictor = SavedModelDetector(str(model_dir / "export" / name))
        assert [predictor.name(class_id) for class_id in (1, 2, 3)] == ["cat", "2", "cow"]


def test_an_export_does_not_fail_for_its_label_map(readers, tmp_path, caplog):
    (tmp_path / "folder").mkdir()
    (tmp_path / "no_text").write_bytes(b"\xff\xff")
    (tmp_path / "no_label_map").write_text("item {")
    model_dir = str(tmp_path / "model")
    trained = make_estimator(
        create_model_fn(fake.pipeline_config()), model_dir, save_checkpoints_steps=1
    )
    trained.train(fake.train_input_fn, max_steps=1)
    for name in ("missing", "folder", "no_text", "no_label_map"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, saved_model.__name__):
            context = fake.run_context(model_dir, _with_label_map(tmp_path / name))
            exported = exports.export(context, trained, "best")
        (warning,) = (record for record in caplog.records if record.name == saved_model.__name__)
        assert f"without the label map {tmp_path / name}: " in warning.getMessage()
        assert SavedModelDetector(exported).class_names == {}


def test_the_two_newest_exports_stay(tmp_path, monkeypatch):
    for name in ("7", "12", "100", "notes", f"{saved_model.UNFINISHED}13"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(exports, "export", lambda *_: str(tmp_path / "100"))
    exports.export_best(None, None, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100", "12", "notes"]

from __future__ import annotations

from estimator_det.compat import tf
from exporters.formats.saved_model import SavedModelDetector
from model_fn.evaluation import score_thresholds
from model_fn.runs import exports, runner
from model_fn.runs.options import EvaluationOptions
from model_fn.serving import saved_model
from tests.model_fn import fake


def test_exports_carry_the_label_map(readers, tmp_path):
    path = tmp_path / "labels.pbtxt"
    path.write_text("item { id: 1 name: 'cat' } item { id: 3 name: 'cow' }")
    config = fake.pipeline_config()
    config.eval_input_reader[0].label_map_path = str(path)
    records = tmp_path / "records"
    with tf.io.TFRecordWriter(str(records)) as writer:  # no class names that could differ
        writer.write(tf.train.Example().SerializeToString())
    config.eval_input_reader[0].tf_record_input_reader.input_path[:] = [str(records)]
    model_dir = tmp_path / "model"
    evaluating = EvaluationOptions(best_metric="loss")
    runner.train_and_evaluate(config, model_dir, evaluation=evaluating, progress=False)
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


def test_the_two_newest_exports_stay(tmp_path, monkeypatch):
    for name in ("7", "12", "100", "notes", f"{saved_model.UNFINISHED}13"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(exports, "export", lambda *_: str(tmp_path / "100"))
    exports.export_best(None, None, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100", "12", "notes"]

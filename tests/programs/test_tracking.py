"""`train --track mlflow`, with a module that stands in for MLflow's client."""

import importlib
import importlib.util
import json
import threading

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import UsageError
from estimator_det.programs import tracking
from model_fn.drawing import boxes
from model_fn.runs.context import StepResult
from tests.model_fn import fake

STAND_IN = """
import types
entries, calls = {}, []
def search_runs(filter_string, max_results, output_format):
    folder = filter_string.split("'")[1]
    runs = [types.SimpleNamespace(run_id=folder)] if folder in entries else []
    return [types.SimpleNamespace(info=run) for run in runs]
def start_run(run_id=None, run_name=None, tags=None):
    entries.setdefault(run_id or tags["estimator_det.model_dir"], [])
    calls.append(("start", run_id is None))
def log_params(values): calls.append(("params", values))
def log_metrics(values, step): calls.append(("metrics", step, values))
def log_artifact(path): calls.append(("artifact", path))
def log_image(image, path): calls.append(("artifact", path, image.size))
def end_run(): calls.append(("end",))
"""


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    (tmp_path / "mlflow.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.delitem(importlib.sys.modules, "mlflow", raising=False)
    yield importlib.import_module("mlflow")
    del importlib.sys.modules["mlflow"]


def _run(folder):
    """The files of a run after an evaluation of step 4."""
    folder.mkdir()
    (folder / "pipeline.config").touch()
    line = {"step": 4, "reader": "eval_0", "metrics": {"mAP@.50": 0.5, "AR": None}}
    (folder / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    picture = boxes.picture_summary({"image-0/boxes": boxes.jpeg(np.zeros([2, 2, 3], "u1"))})
    with tf.Graph().as_default(), tf1.summary.FileWriter(str(folder / "eval_0")) as writer:
        writer.add_summary(picture, 4)
    return folder


def _train(folder, steps):
    hook = tracking.MlflowHook()
    config = fake.pipeline_config("train_config { batch_size: 4 }")
    hook.begin(fake.run_context(str(folder), config, progress_steps=2), steps[0])
    for step in steps:
        values = {"Loss/total_loss": float(step), "bad": float("nan")}
        hook.after_step(StepResult(step, 1, values))
    hook.close()


def test_a_run_and_its_continuation_are_one_entry(mlflow, tmp_path):
    folder = _run(tmp_path / "run")
    _train(folder, [0, 1, 2, 3, 4])
    (start, params, *metrics), end = mlflow.calls[:5], mlflow.calls[-1]
    assert start == ("start", True) and params[1]["train_config.batch_size"] == "4"
    assert metrics == [
        ("metrics", 2, {"Loss/total_loss": 2.0}),
        ("metrics", 4, {"Loss/total_loss": 4.0}),
        ("metrics", 4, {"eval_0/mAP_.50": 0.5}),
    ]
    picture, config = (call[1:] for call in mlflow.calls if call[0] == "artifact")
    assert config == (str(folder / "pipeline.config"),) and end == ("end",)
    assert picture == ("pictures/eval_0/00000004 image-0 boxes.png", (2, 2))
    mlflow.calls.clear()
    _train(folder, [4, 5, 6])
    assert mlflow.calls[0] == ("start", False) and len(mlflow.entries) == 1
    kinds = [call[0] for call in mlflow.calls]
    assert "params" not in kinds and kinds.count("metrics") == 1  # nothing twice


def test_a_training_that_lost_its_variables_continues_its_entry(mlflow, tmp_path):
    hook = tracking.MlflowHook()
    context = fake.run_context(str(_run(tmp_path / "run")), progress_steps=2)
    for first_step in (0, 2):
        hook.begin(context, first_step)
        hook.after_step(StepResult(first_step + 2, 1, {"Loss/total_loss": 1.0}))
    hook.close()
    kinds = [call[0] for call in mlflow.calls]
    assert kinds.count("start") == 1 and kinds.count("metrics") == 3  # with the evaluation


def test_a_tracker_that_is_down_or_slow_ends_nothing(mlflow, tmp_path, monkeypatch, caplog):
    def fail(**_):
        raise ConnectionError("no answer")

    monkeypatch.setattr(mlflow, "search_runs", fail)
    _train(tmp_path, range(5000))
    assert caplog.text.count("MLflow gets no more of this run: no answer") == 1
    waits = threading.Event()
    monkeypatch.setattr(mlflow, "search_runs", lambda **_: waits.wait(60))
    monkeypatch.setattr(tracking, "_LAST_SECONDS", 0.1)
    _train(tmp_path, range(5000))
    waits.set()
    assert "MLflow has not taken all of this run" in caplog.text


@pytest.mark.filterwarnings("ignore")  # of MLflow
def test_the_store_of_mlflow(tmp_path, monkeypatch, caplog):
    client = pytest.importorskip("mlflow", exc_type=ImportError).MlflowClient
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = _run(tmp_path / "run")
    (folder / "export" / "best" / "1").mkdir(parents=True)
    (folder / "export" / "best" / "1" / "saved_model.pb").touch()
    _train(folder, [0, 1, 2, 3, 4])
    _train(folder, [4, 5, 6])
    (entry,) = client().search_runs(["0"])
    assert entry.info.status == "FINISHED" and entry.data.params["train_config.batch_size"] == "4"
    losses = client().get_metric_history(entry.info.run_id, "Loss/total_loss")
    assert [loss.step for loss in losses] == [2, 4, 6]
    assert entry.data.metrics["eval_0/mAP_.50"] == 0.5
    for path in ("pictures/eval_0", "export/best/1"):
        (file,) = client().list_artifacts(entry.info.run_id, path)
        assert file.path.endswith((".png", "saved_model.pb"))
    assert not caplog.records


def test_mlflow_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"run pip install 'estimator-det\[mlflow\]'"):
        tracking.MlflowHook()

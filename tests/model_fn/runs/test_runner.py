from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import signal
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.text import ConfigError
from exporters.saved_model_detector import SavedModelDetector
from inputs import pipeline as input_pipeline
from inputs import schema
from inputs.bad_records import log as fault_log
from inputs.bad_records.kinds import SKIP, RecordFault
from model_fn import model_fn
from model_fn.checkpoints import label_map_asset
from model_fn.checkpoints.errors import CheckpointGoneError, DamagedCheckpointsError
from model_fn.checkpoints.find import find_checkpoint
from model_fn.evaluation import threshold_files
from model_fn.runs import (
    best_checkpoints,
    data_cursor,
    evaluator,
    history,
    progress,
    runner,
    training_evaluations,
)
from model_fn.runs.backends import estimator as estimators
from model_fn.runs.options import Evaluating, Saving
from model_fn.runs.signals import Stopped
from tests import checkpoints
from tests.model_fn import fake

NO_EXPORT = Evaluating(export_final=False)
PREFIX = "DetectionBoxes_Precision/mAP"


def _make_receiver(*_: Any, **__: Any) -> Callable[[], Any]:
    def receive() -> Any:
        examples = tf1.placeholder(tf.string, [None], name="serialized_example")
        size = tf.shape(examples)[0]
        features = {
            schema.IMAGE: tf.zeros([size, fake.SIZE, fake.SIZE, 3]),
            schema.TRUE_IMAGE_SHAPE: tf.fill([size, 3], fake.SIZE),
        }
        return estimator.export.ServingInputReceiver(features, {"serialized_example": examples})

    return receive


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """Puts the fake detector and its data in place; collects the arguments of reader makers."""
    made: List[Any] = []

    def make_train(config: Any, preprocess: Any, seed: Any, **others: Any) -> Callable[[], Any]:
        made.append(("train", seed))
        return fake.make_train_input_fn(**others)

    def make_eval(
        config: Any, preprocess: Any, input_config: Any, sample_1_of_n: Any, fault_log: Any
    ) -> Callable[[], Any]:
        made.append((input_config.name, sample_1_of_n))
        return fake.eval_input_fn

    fake.install(monkeypatch)
    monkeypatch.setattr(input_pipeline, "create_train_input_fn", make_train)
    monkeypatch.setattr(input_pipeline, "create_eval_input_fn", make_eval)
    monkeypatch.setattr(best_checkpoints.serving, "create_predict_input_fn", _make_receiver)
    return made


def _events(folder: pathlib.Path) -> List[str]:
    """Tags in the event files of a folder."""
    tags = []
    for path in sorted(folder.glob("events.*")):
        for event in tf1.train.summary_iterator(str(path)):
            tags += [value.tag for value in event.summary.value]
    return tags


def _steps_with(folder: pathlib.Path, tag: str) -> List[int]:
    """The steps for which the event files of a folder hold a tag."""
    return sorted(
        event.step
        for path in folder.glob("events.*")
        for event in tf1.train.summary_iterator(str(path))
        if tag in [value.tag for value in event.summary.value]
    )


def test_train_evaluate_resume_stop(
    readers: List[Any], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir = tmp_path / "model"
    config = fake.pipeline_config("train_config { optimizer { use_moving_average: true } }")
    metrics = runner.train_and_evaluate(
        config, str(model_dir), seed=3, progress_steps=2, evaluating=Evaluating(best_metric="loss")
    )
    assert readers == [("train", 3), ("", None)]
    assert metrics["global_step"] == 4 and PREFIX in metrics
    told = capsys.readouterr()
    assert "step 1/4 | localization" in told.err and "step 4/4" in told.err
    assert "evaluation '0' at step 4 | loss " in told.err and told.out == ""
    assert (model_dir / "pipeline.config").exists()
    assert "Detections_Left_Groundtruth_Right/0" in _events(model_dir / "eval_0")
    assert "Loss/total_loss" in _events(model_dir)
    for name in ("Servo", "best"):
        (exported,) = (model_dir / "export" / name).iterdir()
        loaded = tf.saved_model.load(str(exported)).signatures
        assert set(loaded) == {"serving_default", "tensorflow/serving/predict"}
        served = loaded["serving_default"]
        assert served(tf.constant(["x"]))["detection_boxes"].shape == (1, 1, 4)
        assert list((exported / "variables").iterdir()) == []  # constants
        assert (exported / "assets.extra" / "tf_serving_warmup_requests").exists()

    # The second run starts where the first ended, with its optimizer state.
    momentum = "BoxPredictor/All/weights/Momentum"
    before = tf1.train.load_checkpoint(str(model_dir)).get_tensor(momentum)
    runner.train_and_evaluate(
        config, str(model_dir), num_train_steps=6, progress_steps=1, evaluating=NO_EXPORT
    )
    told = capsys.readouterr()
    assert "step 5/6" in told.err and "step 4/6" not in told.err
    reader = tf1.train.load_checkpoint(str(model_dir))
    assert not np.array_equal(reader.get_tensor(momentum), before)
    assert reader.get_tensor("global_step") == 6

    # A third has nothing to do, unless the second was stopped before its last evaluation.
    assert runner.train_and_evaluate(config, str(model_dir), num_train_steps=6) == {}
    (model_dir / history.EVALUATIONS_FILE).unlink()
    (model_dir / history.OVER_FILE).unlink()
    caught_up = runner.train_and_evaluate(config, str(model_dir), num_train_steps=6)
    assert caught_up["global_step"] == 6
    assert history.last_step(str(model_dir)) == 6
    assert checkpoints.trained_steps(str(model_dir)) == 6


@pytest.mark.parametrize(
    "settings",
    [
        {"cluster": {"chief": ["h:1"]}, "task": {"type": "chief", "index": 0}},
        {"cluster": {}, "task": {"type": "master", "index": 0}},
    ],
)
def test_a_lone_chief_evaluates_and_exports(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(settings))
    metrics = runner.train_and_evaluate(
        fake.pipeline_config(), str(tmp_path), num_train_steps=1, progress=False
    )
    assert metrics["global_step"] == 1 and PREFIX in metrics
    assert [evaluation.step for evaluation in history.read(str(tmp_path), "0")] == [1]
    assert list((tmp_path / "export" / "Servo").iterdir())
    assert history.last_step(str(tmp_path)) == 1
    assert (tmp_path / data_cursor.POSITION_FILE).exists()


def test_the_position_in_the_data_is_kept(
    readers: List[Any], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, model_dir = fake.pipeline_config(), str(tmp_path)

    def count(step: int) -> int:
        position = data_cursor.read_cursor_state(model_dir, step)
        return -1 if position is None else position.count

    with pytest.raises(Stopped):
        runner.train(config, model_dir, num_train_steps=9, hooks=[_SignalAt(step=3)])
    assert (count(0), count(3), count(9)) == (0, 6, -1)
    runner.train(config, model_dir, num_train_steps=5)
    assert (count(3), count(5)) == (6, 10)
    # Back to an older checkpoint, by hand.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"')
    os.remove(tmp_path / "model.ckpt-5.index")
    runner.train(config, model_dir, num_train_steps=4)
    assert (count(4), count(5)) == (8, -1)
    # Without the file the data begin anew.
    path = tmp_path / data_cursor.POSITION_FILE
    path.write_text("[1]")
    caplog.set_level("INFO")
    runner.train(config, model_dir, num_train_steps=6, seed=3)
    assert "cannot be read" in caplog.text and "begin with a new epoch" in caplog.text
    assert count(6) == 4
    assert readers == [("train", None)] * 3 + [("train", 3)]


class _SignalAt(tf1.train.SessionRunHook):
    """Sends SIGTERM in a step."""

    def __init__(self, step: int) -> None:
        self._steps_left = step

    def before_run(self, run_context: Any) -> None:
        self._steps_left -= 1
        if not self._steps_left:
            os.kill(os.getpid(), signal.SIGTERM)


def _reported_steps(model_dir: pathlib.Path) -> List[int]:
    lines = (model_dir / progress.PROGRESS_FILE).read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert all(entry["Loss/total_loss"] > 0 for entry in entries)
    return [entry["step"] for entry in entries]


def test_the_last_step_is_reported_once(
    readers: List[Any], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    runner.train(config, model_dir, num_train_steps=5, progress_steps=3)
    assert _reported_steps(tmp_path) == [1, 3, 5]
    assert capsys.readouterr().err.count("step 5/5 | localization") == 1
    with pytest.raises(Stopped):
        runner.train(config, model_dir, num_train_steps=99, hooks=[_SignalAt(step=3)])
    assert _reported_steps(tmp_path) == [1, 3, 5, 6, 8]
    assert capsys.readouterr().err.count("step 8/99 | localization") == 1
    runner.train_and_evaluate(config, model_dir, num_train_steps=10, evaluating=NO_EXPORT)
    assert _reported_steps(tmp_path) == [1, 3, 5, 6, 8, 9, 10]
    assert _steps_with(tmp_path, "run/images_per_second") == [3, 5, 8, 10]


def _with_label_map(path: pathlib.Path) -> Any:
    config = fake.pipeline_config()
    config.eval_input_reader[0].label_map_path = str(path)
    return config


def test_exports_carry_the_label_map(readers: List[Any], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "labels.pbtxt"
    path.write_text("item { id: 1 name: 'cat' } item { id: 3 name: 'cow' }")
    model_dir = tmp_path / "model"
    evaluating = Evaluating(best_metric="loss")
    runner.train_and_evaluate(
        _with_label_map(path), str(model_dir), evaluating=evaluating, progress=False
    )
    content = path.read_bytes()
    path.unlink()  # the exports need it no more
    for name in ("Servo", "best"):
        (exported,) = (model_dir / "export" / name).iterdir()
        (asset,) = (exported / "assets").iterdir()
        assert (asset.name, asset.read_bytes()) == ("labels.pbtxt", content)
        thresholds = threshold_files.read(str(exported / threshold_files.IN_EXPORTS))
        assert [row.name for row in thresholds.table.classes] == ["cat", "cow"]
        predictor = SavedModelDetector(str(model_dir / "export" / name))
        assert [predictor.name(class_id) for class_id in (1, 2, 3)] == ["cat", "2", "cow"]


@pytest.mark.parametrize("damage", ["missing", "a folder", "no text", "no label map"])
def test_an_export_does_not_fail_for_its_label_map(
    readers: List[Any],
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    path = tmp_path / "labels.pbtxt"
    if damage == "a folder":
        path.mkdir()
    elif damage == "no text":
        path.write_bytes(b"\xff\xff")
    elif damage == "no label map":
        path.write_text("item {")
    model_dir = str(tmp_path / "model")
    trained = estimators.make_estimator(fake.pipeline_config(), model_dir)
    trained.train(fake.train_input_fn, max_steps=1)
    with caplog.at_level(logging.WARNING, label_map_asset.__name__):
        exported = best_checkpoints.export(_with_label_map(path), trained, model_dir, "best")
    (warning,) = (record for record in caplog.records if record.name == label_map_asset.__name__)
    assert f"without the label map {path}: " in warning.getMessage()
    assert SavedModelDetector(exported).class_names == {}


def test_several_readers_and_training_data(readers: List[Any], tmp_path: pathlib.Path) -> None:
    config = fake.pipeline_config("eval_input_reader { name: 'second' }")
    runner.train_and_evaluate(
        config,
        str(tmp_path),
        evaluating=Evaluating(sample_1_of_n=7, on_training_data=True, export_final=False),
        progress=False,
    )
    assert readers == [("train", None), ("", 7), ("second", 7), ("", 5)]
    assert {path.name for path in tmp_path.glob("eval_*")} == {
        "eval_0",
        "eval_second",
        "eval_training_data",
    }


def test_evaluate_and_continuous_eval(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = fake.pipeline_config(
        "train_config { optimizer { use_moving_average: true moving_average_decay: 0.5 } }"
    )
    model_dir = str(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        evaluator.evaluate(config, model_dir)
    estimated = estimators.make_estimator(config, model_dir, saving=Saving(steps=2))
    estimated.train(fake.train_input_fn, max_steps=4)
    plain = evaluator.evaluate(config, model_dir)["0"]
    assert plain["global_step"] == 4
    assert "DetectionBoxes_Recall/AR@100" in plain

    config.eval_config.use_moving_averages = True
    averaged = evaluator.evaluate(config, model_dir, model_dir=str(tmp_path / "other"))["0"]
    assert averaged["loss"] != plain["loss"]
    assert (tmp_path / "other" / "eval_0").is_dir()
    found: Dict[str, Any] = {}
    first = evaluator.evaluate(
        config, str(tmp_path / "model.ckpt-2"), on_training_data=True, matches=found
    )
    assert first["training_data"]["global_step"] == 2
    assert (tmp_path / "eval_training_data" / "thresholds-2.json").exists()
    # Each of two batches has two images of one box and one detection.
    assert found["training_data"].of_all().num_boxes == len(found["training_data"].classes())

    # Ends by itself at num_steps, and after a time without a new checkpoint.
    last = evaluator.continuous_eval(config, model_dir, min_interval_secs=0)
    assert last["0"]["global_step"] == 4
    last = evaluator.continuous_eval(
        config, model_dir, num_train_steps=9, min_interval_secs=0, timeout_secs=0.1
    )
    assert last["0"]["global_step"] == 4


def test_faults_of_evaluated_records_are_told(
    readers: List[Any],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = RecordFault("truncated_image", "cut", "copy it again", SKIP)

    def make_eval(config: Any, preprocess: Any, reader: Any, every: Any, log: Any) -> Any:
        def input_fn() -> Any:
            log.report(fault, "a.record", 7, "cat")
            return fake.eval_input_fn()

        return input_fn

    monkeypatch.setattr(input_pipeline, "create_eval_input_fn", make_eval)
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    runner.train_and_evaluate(config, model_dir, num_train_steps=2, evaluating=NO_EXPORT)
    assert "truncated_image: an image file ends too early: 1 record" in capsys.readouterr().err
    evaluator.evaluate(config, model_dir)
    told = capsys.readouterr().err
    assert "(1 record skipped), as before: see" in told and "truncated_image" not in told
    (line,) = (tmp_path / "eval_0" / fault_log.LOG_FILE).read_text().splitlines()
    assert json.loads(line)["source_id"] == "cat"
    (evaluation,) = history.read(model_dir, "0")
    assert evaluation.bad_records == {"truncated_image": 1, "skipped_records": 1}
    assert _steps_with(tmp_path / "eval_0", "bad_records/truncated_image") == [2, 2]


def test_damaged_checkpoints_are_not_evaluated(
    readers: List[Any], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = fake.pipeline_config()
    estimated = estimators.make_estimator(config, str(tmp_path), saving=Saving(steps=2))
    estimated.train(fake.train_input_fn, max_steps=4)
    data = tmp_path / "model.ckpt-4.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(DamagedCheckpointsError, match="give another one"):
        evaluator.evaluate(config, str(tmp_path))
    options: Any = {"num_train_steps": 4, "min_interval_secs": 0, "timeout_secs": 0.1}
    assert evaluator.continuous_eval(config, str(tmp_path), **options) == {}
    assert "model.ckpt-4 is not evaluated" in caplog.text
    # Training resumes from the one before, and saves the step anew, which is found to be new.
    appearing = evaluator._appearing(str(tmp_path), 0, 0.1)
    assert next(appearing).endswith("-4")
    runner.train(config, str(tmp_path), num_train_steps=4, progress=False)
    assert next(appearing).endswith("-4")
    assert list(appearing) == []
    last = evaluator.continuous_eval(config, str(tmp_path), **options)
    assert last["0"]["global_step"] == 4


class _DeleteBeforeRestore(tf1.train.SessionRunHook):
    """Deletes the checkpoint that a run is about to restore."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def begin(self) -> None:
        tf1.train.remove_checkpoint(self._prefix)


def test_checkpoints_that_are_deleted_before_they_are_read(
    readers: List[Any],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = fake.pipeline_config()
    model_dir = str(tmp_path)
    estimated = estimators.make_estimator(config, model_dir, saving=Saving(steps=1))
    estimated.train(fake.train_input_fn, max_steps=4)
    real = estimated.evaluate
    left = [1, 2, 3, 4]

    def name_latest() -> None:
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{left[0]}"')

    def delete_first(input_fn: Any, hooks: Any, checkpoint_path: str, **options: Any) -> Any:
        """Of four checkpoints two are deleted while their evaluation starts."""
        if len(left) in (3, 1):
            return {"global_step": left[0], "loss": 1.0}
        hooks = [*hooks, _DeleteBeforeRestore(checkpoint_path)]
        del left[0]
        name_latest()
        return real(input_fn, hooks=hooks, checkpoint_path=checkpoint_path, **options)

    monkeypatch.setattr(estimated, "evaluate", delete_first)
    monkeypatch.setattr(evaluator, "make_estimator", lambda *_, **__: estimated)
    name_latest()
    assert evaluator.evaluate(config, model_dir)["0"]["global_step"] == 2
    assert "model.ckpt-1 was deleted before it was read" in caplog.text
    left.remove(2)
    name_latest()
    last = evaluator.continuous_eval(config, model_dir, num_train_steps=4, min_interval_secs=0)
    assert last["0"]["global_step"] == 4
    assert "model.ckpt-3 was deleted before it was evaluated" in caplog.text
    # A prefix names one checkpoint, and a training has read its step already.
    with pytest.raises(CheckpointGoneError, match=r"ckpt-4 was deleted before it was read\. Run"):
        hook = _DeleteBeforeRestore(f"{model_dir}/model.ckpt-4")
        runner.train(config, model_dir, num_train_steps=6, hooks=[hook], progress=False)


def test_continuous_eval_ends_where_the_latest_checkpoint_is_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(seconds: float) -> None:
        raise AssertionError("the time is over")

    monkeypatch.setattr(evaluator.time, "sleep", wait)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"')
    (tmp_path / "model.ckpt-4.index").write_text("")
    appearing = evaluator._appearing(str(tmp_path), 0, 0.0)
    assert next(appearing).endswith("model.ckpt-4")
    (tmp_path / "model.ckpt-4.index").unlink()
    assert list(appearing) == []
    with pytest.raises(FileNotFoundError, match=r"ckpt-4, which the file 'checkpoint' in .* names"):
        find_checkpoint(str(tmp_path))


def test_continuous_eval_retries(readers: List[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: List[str] = []

    def broken(config: Any, estimated: Any, reader: Any, checkpoint: str) -> Any:
        calls.append(checkpoint)
        raise tf.errors.InvalidArgumentError(None, None, "bad record")

    monkeypatch.setattr(evaluator, "evaluate_reader", broken)
    monkeypatch.setattr(evaluator, "step_of", lambda checkpoint: 1)
    monkeypatch.setattr(evaluator, "find_damage", lambda checkpoint: None)
    monkeypatch.setattr(evaluator, "_appearing", lambda *_: iter("abc"))
    config = fake.pipeline_config()
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad record"):
        evaluator.continuous_eval(config, "folder", max_retries=1)
    assert calls == ["a", "b"]
    assert evaluator.continuous_eval(config, "folder", max_retries=-1) == {}


def test_contradictions(tmp_path: pathlib.Path) -> None:
    config = fake.pipeline_config()
    with pytest.raises(ValueError, match="not both"):
        Saving(steps=1, secs=1)
    del config.eval_input_reader[:]
    with pytest.raises(ValueError, match="none to evaluate on"):
        evaluator.evaluation_inputs(config)


@pytest.mark.parametrize("program", ["train", "train_and_evaluate"])
def test_a_refused_run_leaves_no_trace(
    readers: List[Any], tmp_path: pathlib.Path, program: str
) -> None:
    run: Any = getattr(runner, program)
    refused = fake.pipeline_config('train_config { freeze_variables: "." }')
    new = tmp_path / "new" / "model"
    with pytest.raises(ConfigError, match="freeze_variables"):
        run(refused, str(new))
    assert list(tmp_path.iterdir()) == []
    # What an earlier run left stays as it was.
    new.mkdir(parents=True)
    (new / "pipeline.config").write_text("of the run before")
    history.mark_over(str(new), 4, "num_train_steps")
    with pytest.raises(ConfigError, match="freeze_variables"):
        run(refused, str(new))
    assert (new / "pipeline.config").read_text() == "of the run before"
    assert history.last_step(str(new)) == 4 and len(list(new.iterdir())) == 2


def test_a_refused_evaluation_leaves_no_folder(readers: List[Any], tmp_path: pathlib.Path) -> None:
    config, other = fake.pipeline_config(), str(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        evaluator.evaluate(config, str(tmp_path), model_dir=other)
    prefix = str(tmp_path / "model.ckpt-1")
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, prefix)
    with pytest.raises(tf.errors.NotFoundError):
        evaluator.evaluate(config, prefix, model_dir=other)
    config.ClearField("eval_input_reader")
    with pytest.raises(ConfigError, match="none to evaluate on"):
        evaluator.continuous_eval(config, str(tmp_path), model_dir=other)
    assert not (tmp_path / "other").exists()


def test_best_metric_must_be_evaluated(readers: List[Any], tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="best_metric: 'mAP' is not evaluated"):
        runner.train_and_evaluate(
            fake.pipeline_config(),
            str(tmp_path),
            evaluating=Evaluating(best_metric="mAP"),
            progress=False,
        )


def test_evaluates_by_steps_and_stops_early(readers: List[Any], tmp_path: pathlib.Path) -> None:
    # Nothing is learned, so that no evaluation is better than the first.
    config = fake.pipeline_config("train_config { num_steps: 50 }")
    rate = config.train_config.optimizer.momentum_optimizer.learning_rate
    rate.constant_learning_rate.learning_rate = 0.0
    evaluating = Evaluating(
        every_steps=2, best_metric=PREFIX, keep_best=2, patience=3, export_final=False
    )
    model_dir = str(tmp_path)

    def train(**options: Any) -> Any:
        return runner.train_and_evaluate(
            config, model_dir, saving=Saving(steps=1), progress=False, **options
        )

    train(evaluating=evaluating)
    evaluations = history.read(model_dir, "0")
    steps = [evaluation.step for evaluation in evaluations]
    assert steps == [2, 4, 6, 8]
    assert history.evaluations_without_progress(evaluations, PREFIX) == 3
    assert history.last_step(model_dir) == steps[-1]
    kept = best_checkpoints.BestCheckpoints(model_dir, PREFIX, 2).kept()
    assert len(kept) == 2 and kept[0]["value"] >= kept[1]["value"]
    assert tf1.train.latest_checkpoint(str(tmp_path / "best")).endswith(kept[0]["checkpoint"])
    assert len(list((tmp_path / "export" / "best").iterdir())) == 1
    # An evaluator beside it ends with the training, though num_steps was never reached.
    last = evaluator.continuous_eval(config, model_dir, min_interval_secs=0)
    assert last["0"]["global_step"] == steps[-1]
    # A resumed run remembers that its patience is at an end; with more it goes on.
    assert train(evaluating=evaluating) == {}
    more = dataclasses.replace(evaluating, patience=4)
    assert train(evaluating=more)["global_step"] == steps[-1] + 2


def test_an_evaluation_saves_its_checkpoint(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(config: Any, evaluator: Any, reader: Any, checkpoint: str, **_: Any) -> Any:
        return history.Evaluation(reader.name, int(checkpoint.rpartition("-")[2]), {})

    monkeypatch.setattr(training_evaluations, "evaluate_reader", evaluate)
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    evaluating = Evaluating(every_steps=3, export_final=False)

    def train(num_train_steps: int, *hooks: Any) -> None:
        runner.train_and_evaluate(
            config,
            model_dir,
            num_train_steps=num_train_steps,
            evaluating=evaluating,
            progress=False,
            hooks=hooks,
        )

    def evaluated() -> List[int]:
        return [evaluation.step for evaluation in history.read(model_dir, "0")]

    # No checkpoint is due by itself within ten minutes.
    with pytest.raises(Stopped):
        train(99, _SignalAt(step=4))
    assert evaluated() == [3]
    assert (tmp_path / "model.ckpt-3.index").exists()
    # The schedule is that of a run without interruption.
    train(7)
    assert evaluated() == [3, 6, 7]
    # A run that ends before the evaluation of its step evaluates it when it resumes.
    with pytest.raises(Stopped):
        train(99, _SignalAt(step=2))
    assert evaluated() == [3, 6, 7] and checkpoints.trained_steps(model_dir) == 9
    train(10)
    assert evaluated() == [3, 6, 7, 9, 10]


def test_evaluation_leaves_the_training_session_and_its_data_alone(
    readers: List[Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []
    made = model_fn.make_detector

    def make_detector(model_config: Any, is_training: bool, graph_rewriter: Any) -> Any:
        graphs.append(is_training)
        return made(model_config, is_training, graph_rewriter)

    monkeypatch.setattr(model_fn, "make_detector", make_detector)
    runner.train_and_evaluate(
        fake.pipeline_config(),
        str(tmp_path),
        saving=Saving(steps=1),
        evaluating=Evaluating(every_steps=1, export_final=False),
        progress=False,
    )
    assert graphs.count(True) == 1 and graphs.count(False) == 4

"""What an evaluation reads, and of which checkpoints."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.derived_models import evaluated_model
from estimator_det.detectors.base import build_preprocessor
from estimator_det.errors import (
    CheckpointGoneError,
    ConfigError,
    DamagedCheckpointsError,
    RunError,
    UsageError,
)
from inputs import pipeline as input_pipeline
from inputs.bad_records import log as fault_log
from inputs.bad_records.kinds import SKIP, RecordFault
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checks.graphs import placeholders
from model_fn.evaluation import history
from model_fn.evaluation.readers import Reader
from model_fn.model_fn import create_model_fn
from model_fn.runs import evaluator, runner
from model_fn.runs.backends.base import make_estimator
from model_fn.runs.options import EvaluationOptions, TrainOptions
from model_fn.runs.training_end import TrainingEnd
from tests.checkpoints import save
from tests.inputs.examples import BOXES, example, picture, pipeline, reader, write
from tests.model_fn import fake
from tests.model_fn.runs.test_runner import NO_EXPORT

AT_ONCE = TrainOptions(evaluation=EvaluationOptions(throttle_secs=0))
EXTRACTOR = "model { ssd { feature_extractor { type: 'ssd_mobilenet_v1' } } }"


@pytest.mark.parametrize(("text", "size"), [("", (6, 10)), ("force_no_resize: true", (8, 12))])
def test_images_keep_their_size_where_nothing_is_resized(text, size, tmp_path):
    config = pipeline(f"{EXTRACTOR} eval_config {{ {text} }}")
    path = write(tmp_path / "in.record", [example({**BOXES, "image/object/class/label": [2, 1]})])
    config.eval_input_reader[0].tf_record_input_reader.input_path.append(path)
    preprocess = build_preprocessor(evaluated_model(config))
    dataset = input_pipeline.build_eval_input_fn(config, preprocess, config.eval_input_reader[0])()
    ((features, labels),) = dataset.as_numpy_iterator()
    assert features["image"].shape == (1, *size, 3)
    assert features["true_image_shape"].tolist() == [[*size, 3]]
    assert features["original_image"].shape == (1, *size, 3)
    np.testing.assert_allclose(labels["groundtruth_boxes"][0, 0], [0, 0, 0.5, 0.25])
    if text:
        np.testing.assert_allclose(features["image"][0], picture() / 127.5 - 1, atol=1e-5)
    with tf.Graph().as_default():
        shape = placeholders(config, estimator.ModeKeys.EVAL)[0]["image"].shape.as_list()
        training = placeholders(config, estimator.ModeKeys.TRAIN)[0]["image"].shape.as_list()
    assert shape[1:3] == ([None, None] if text else list(size))
    assert training[1:3] == [6, 10]


def test_evaluate_and_continuous_eval(readers, tmp_path, monkeypatch):
    config = fake.pipeline_config(
        "train_config { optimizer { use_moving_average: true moving_average_decay: 0.5 } }"
    )
    model_dir = str(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        evaluator.evaluate(config, model_dir)
    estimated = make_estimator(create_model_fn(config), model_dir, save_checkpoints_steps=2)
    estimated.train(fake.train_input_fn, max_steps=4)
    plain = evaluator.evaluate(config, model_dir)[0].metrics
    assert plain["global_step"] == 4
    assert "DetectionBoxes_Recall/AR@100" in plain

    config.eval_config.use_moving_averages = True
    averaged = evaluator.evaluate(config, tmp_path / "other", checkpoint=model_dir)[0].metrics
    assert averaged["loss"] != plain["loss"]
    assert (tmp_path / "other" / "eval_0").is_dir()
    (first,) = evaluator.evaluate(
        config, model_dir, checkpoint=f"{model_dir}/model.ckpt-2", on_training_data=True
    )
    assert (first.reader, first.step, first.metrics["global_step"]) == ("training_data", 2, 2)
    assert (tmp_path / "eval_training_data" / "thresholds-2.json").exists()
    # Each of two batches has two images of one box and one detection.
    assert first.matches.all_classes_merged().num_boxes == len(first.matches.classes())

    # Ends by itself at num_steps, and after a time without a new checkpoint.
    assert evaluator.continuous_eval(config, model_dir, AT_ONCE)[0].step == 4
    longer = dataclasses.replace(AT_ONCE, num_train_steps=9)
    assert evaluator.continuous_eval(config, model_dir, longer, timeout_secs=0.1)[0].step == 4


def test_a_prepared_graph_gives_the_values_of_a_short_evaluation(readers, tmp_path, monkeypatch):
    config = fake.pipeline_config()
    estimated = make_estimator(create_model_fn(config), str(tmp_path), save_checkpoints_steps=2)
    estimated.train(fake.train_input_fn, max_steps=2)
    short = evaluator.evaluate(config, tmp_path)[0].metrics
    monkeypatch.setattr(evaluator, "_SHORT_BYTES", -1)
    assert evaluator.evaluate(config, tmp_path)[0].metrics == pytest.approx(short, nan_ok=True)


@pytest.mark.parametrize("count", [100, 101])
def test_many_small_records_are_not_a_short_evaluation(tmp_path, count):
    path = write(tmp_path / "in.record", [b""] * count)
    config = reader(f"tf_record_input_reader {{ input_path: '{path}' }}")
    assert evaluator._is_short(Reader("0", config, None)) == (count == 100)


def test_faults_of_evaluated_records_are_told(readers, tmp_path, monkeypatch, capsys):
    fault = RecordFault("truncated_image", SKIP, message="cut", remedy="copy it again")

    def make_eval(config: Any, preprocess: Any, reader: Any, every: Any, log: Any, _: Any) -> Any:
        def input_fn() -> Any:
            log.report(fault.at("a.record", 7, "cat"))
            return fake.eval_input_fn()

        return input_fn

    monkeypatch.setattr(input_pipeline, "build_eval_input_fn", make_eval)
    config, model_dir = fake.pipeline_config(), str(tmp_path)
    runner.train_and_evaluate(config, model_dir, num_train_steps=2, evaluation=NO_EXPORT)
    assert "truncated_image: an image file ends too early: 1 record" in capsys.readouterr().err
    evaluator.evaluate(config, model_dir)
    printed = capsys.readouterr().err
    assert "(1 record skipped), as before: see" in printed and "truncated_image" not in printed
    (line,) = (tmp_path / "eval_0" / fault_log.LOG_FILE).read_text().splitlines()
    assert json.loads(line)["source_id"] == "cat"
    (evaluation,) = history.read(model_dir, "0")
    assert evaluation.bad_records == {"truncated_image": 1, "skipped_records": 1}
    assert fake.steps_with(tmp_path / "eval_0", "bad_records/truncated_image") == [2, 2]


def test_damaged_checkpoints_are_not_evaluated(readers, tmp_path, caplog):
    config = fake.pipeline_config()
    estimated = make_estimator(create_model_fn(config), str(tmp_path), save_checkpoints_steps=2)
    estimated.train(fake.train_input_fn, max_steps=4)
    data = tmp_path / "model.ckpt-4.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(DamagedCheckpointsError, match="give another one"):
        evaluator.evaluate(config, str(tmp_path))
    options = dataclasses.replace(AT_ONCE, num_train_steps=4)
    assert evaluator.continuous_eval(config, str(tmp_path), options, timeout_secs=0.1) == []
    assert "model.ckpt-4 is not evaluated" in caplog.text
    # Training resumes from the one before, and saves the step anew, which is found to be new.
    appearing = evaluator._appearing(str(tmp_path), 0, 0.1, lambda: False)
    assert next(appearing).endswith("-4")
    runner.train(config, str(tmp_path), num_train_steps=4, progress=False)
    assert next(appearing).endswith("-4")
    assert list(appearing) == []


class _DeleteBeforeRestore(tf1.train.SessionRunHook):
    """Deletes the checkpoint that a run is about to restore."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def begin(self) -> None:
        tf1.train.remove_checkpoint(self._prefix)


def test_checkpoints_that_are_deleted_before_they_are_read(readers, tmp_path, monkeypatch, caplog):
    config = fake.pipeline_config()
    model_dir = str(tmp_path)
    estimated = make_estimator(create_model_fn(config), model_dir, save_checkpoints_steps=1)
    estimated.train(fake.train_input_fn, max_steps=4)
    left = [1, 2, 3, 4]

    def name_latest() -> None:
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{left[0]}"')

    real = evaluator.EvaluationRun.evaluate_on

    def delete_first(run: Any, reader: Any, checkpoint: str) -> Any:
        """Of four checkpoints two are deleted while their evaluation starts."""
        if len(left) in (3, 1):
            return history.Evaluation(reader.name, left[0], {"global_step": left[0]})
        del left[0]
        with monkeypatch.context() as patch:
            hook = _DeleteBeforeRestore(checkpoint)
            patch.setattr(evaluator.report, "EndPreparation", lambda _: hook)
            name_latest()
            return real(run, reader, checkpoint)

    monkeypatch.setattr(evaluator.EvaluationRun, "evaluate_on", delete_first)
    name_latest()
    assert evaluator.evaluate(config, model_dir)[0].step == 2
    assert "model.ckpt-1 was deleted before it was read" in caplog.text
    left.remove(2)
    name_latest()
    options = dataclasses.replace(AT_ONCE, num_train_steps=4)
    assert evaluator.continuous_eval(config, model_dir, options)[0].step == 4
    assert "model.ckpt-3 was deleted before it was read" in caplog.text
    # A prefix names one checkpoint, and a training has read its step already.
    with pytest.raises(CheckpointGoneError, match=r"ckpt-4 was deleted before it was read\. Run"):
        hook = _DeleteBeforeRestore(f"{model_dir}/model.ckpt-4")
        runner.train(config, model_dir, num_train_steps=6, hooks=[hook], progress=False)


def test_continuous_eval_ends_where_the_latest_checkpoint_is_missing(tmp_path, monkeypatch):
    def wait(seconds: float) -> None:
        raise AssertionError("the time is over")

    monkeypatch.setattr(evaluator.time, "sleep", wait)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"')
    (tmp_path / "model.ckpt-4.index").write_text("")
    appearing = evaluator._appearing(str(tmp_path), 0, 0.0, lambda: False)
    assert next(appearing).endswith("model.ckpt-4")
    (tmp_path / "model.ckpt-4.index").unlink()
    assert list(appearing) == []
    with pytest.raises(FileNotFoundError, match=r"ckpt-4, which the file 'checkpoint' in .* names"):
        find_checkpoint(str(tmp_path))


def test_the_last_checkpoint_is_evaluated_however_soon_training_ends_after_it(monkeypatch):
    saved = ["first"]
    monkeypatch.setattr(evaluator.tf1.train, "latest_checkpoint", lambda _: saved[-1])
    monkeypatch.setattr(evaluator, "modified", lambda _: 1)
    moments = iter([False, True, True])

    def is_over() -> bool:
        """Training saves its last checkpoint and ends just before the second question."""
        now = next(moments)
        if now:
            saved[1:] = ["last"]
        return now

    assert list(evaluator._appearing("folder", 10**6, None, is_over)) == ["first", "last"]


@pytest.mark.parametrize("error", [tf.errors.InvalidArgumentError, tf.errors.DataLossError])
def test_continuous_eval_retries(readers, monkeypatch, error):
    calls: List[str] = []

    def broken(run: Any, reader: Any, checkpoint: str) -> Any:
        calls.append(checkpoint)
        raise error(None, None, "bad record")

    monkeypatch.setattr(evaluator.EvaluationRun, "evaluate_on", broken)
    monkeypatch.setattr(evaluator, "_appearing", lambda *_: iter("abc"))
    config = fake.pipeline_config()
    with pytest.raises(error, match="bad record"):
        evaluator.continuous_eval(config, "folder", max_retries=1)
    assert calls == ["a", "b"]
    assert evaluator.continuous_eval(config, "folder", max_retries=-1) == []


def test_the_direction_of_a_metric_is_not_guessed_by_its_name(readers, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator.exports, "export_best", lambda *_: None)
    (tmp_path / "map.pbtxt").write_text("item { id: 1 name: 'blossom' }")
    config = fake.pipeline_config("eval_config { include_metrics_per_category: true }")
    config.eval_input_reader[0].label_map_path = str(tmp_path / "map.pbtxt")
    name = "DetectionBoxes_PerformanceByCategory/mAP/blossom"
    for metric, best, deleted in ((name, 2, 1.0), ("loss", 1, 0.0)):
        options = EvaluationOptions(best_metric=metric)
        run = evaluator.EvaluationRun(fake.run_context(tmp_path, config, evaluation=options), [])
        for step, value in ((1, 0.1), (2, 0.9), (3, 0.5)):
            checkpoint = save(tmp_path, {"x": value}, step)
            run.keep([history.Evaluation("0", step, {metric: value})], checkpoint)
        run.keep([history.Evaluation("0", 4, {metric: deleted})], str(tmp_path / "model.ckpt-4"))
        assert history.read(str(tmp_path), "0")[-1].step == 4
        assert json.loads((tmp_path / "best" / "best.json").read_text())["kept"][0]["step"] == best


def test_a_continuous_evaluation_takes_a_folder(tmp_path):
    (tmp_path / "model.ckpt-2.index").touch()
    run, checkpoint = evaluator.EvaluationRun(fake.run_context(tmp_path), []), "model.ckpt-2"
    end = TrainingEnd(str(tmp_path), 2)
    with pytest.raises(UsageError, match=r"model\.ckpt-2 is one checkpoint.*give the folder"):
        evaluator.follow(run, str(tmp_path / checkpoint), end)


def test_tiles_have_no_effect_on_whole_images(tmp_path, caplog):
    context = fake.run_context(tmp_path)
    context.config.eval_config.tiles.side = 64
    evaluator.EvaluationRun(context, [])
    assert "eval_config.tiles has no effect here" in caplog.text


def test_a_refused_evaluation_leaves_no_folder(readers, tmp_path):
    config, other = fake.pipeline_config(), str(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        evaluator.evaluate(config, other, checkpoint=str(tmp_path))
    prefix = save(tmp_path, {"other": 0})
    with pytest.raises(RunError, match="does not fit the configuration"):
        evaluator.evaluate(config, other, checkpoint=prefix)
    config.ClearField("eval_input_reader")
    with pytest.raises(ConfigError, match="eval_input_reader: is missing"):
        evaluator.continuous_eval(config, other, checkpoint_dir=str(tmp_path))
    assert not (tmp_path / "other").exists()


def test_an_evaluation_checks_the_parts_that_it_uses(tmp_path):
    config = fake.pipeline_config("eval_input_reader { name: '0' } train_config { batch_size: 0 }")
    with pytest.raises(ConfigError, match="overwrite the other's") as refused:
        evaluator.evaluate(config, str(tmp_path))
    assert "train_config" not in str(refused.value)

"""`evaluate --detections` and `--calibrate` as a user runs them."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from estimator_det.config import pipeline
from estimator_det.programs import cli, console
from estimator_det.protos import pipeline_pb2
from model_fn.evaluation import calibration, history, score_thresholds
from model_fn.evaluation.readers import OTHER_SETTINGS
from model_fn.runs import evaluator
from tests.config.test_check import GOOD
from tests.model_fn.evaluation.detections.test_scoring import (
    CAT,
    DOG,
    record,
    write_records,
    write_results,
)
from tests.model_fn.evaluation.test_calibration import overconfident, synthetic


@pytest.mark.usefixtures("no_charts")
def test_without_a_configuration(tmp_path, capsys, caplog):
    write_records(
        tmp_path,
        [
            record("a.jpg", [CAT, DOG], [1, 2], source_id="1"),
            record("b.jpg", [CAT], [1], source_id="2"),
            record("c.jpg", [], [], source_id="3"),
            record("d.jpg", [], [], source_id="4"),
        ],
    )
    # Cats: wrong, right, of two boxes: precision 1/2 up to recall 1/2. Dogs: right, wrong.
    found: list[Any] = [(1, 1, CAT, 0.9), (1, 2, DOG, 0.8), (2, 1, DOG, 0.95), (3, 2, CAT, 0.7)]
    path = write_results(tmp_path, [*found, ("x\x1b[2J", 1, CAT, 0.6), (1, 90, CAT, 0.5)])
    arguments = ["evaluate", "--detections", path, "--records", str(tmp_path / "eval.record")]
    assert cli.main([*arguments, "--label_map", str(tmp_path / "map.pbtxt")]) == 0
    run = tmp_path / "found_evaluation"
    (line,) = history.read(str(run), "0")
    recalls = np.arange(101) <= 50
    expected = (0.5 * recalls.mean() + 1.0) / 2
    assert line.metrics["DetectionBoxes_Precision/mAP"] == pytest.approx(expected, rel=1e-5)
    assert line.step == 0
    counts = {name: value for name, value in line.metrics.items() if "detections" in name}
    assert counts == {
        "detections_in_file": 6,
        "detections_of_images_without_record": 1,
        "detections_of_unknown_classes": 1,
        "records_without_detections": 1,
    }
    path = score_thresholds.path_for(str(run / "eval_0"), 0)
    assert score_thresholds.read(path).per_class() == pytest.approx({1: 0.9, 2: 0.8})
    assert score_thresholds.read(path).scores is None  # of no model, so exports may be given it
    assert list((run / "eval_0").glob("events*"))
    captured = capsys.readouterr()
    assert f"{'DetectionBoxes_Precision/mAP':<57}{expected:.4f}" in captured.out
    assert "evaluation '0' at step 0 | mAP " in captured.err
    assert f"all in {path}" in captured.err
    assert "1 detections of 1 images are not scored" in caplog.text
    assert "1 images of the records have no detection in the file: '4'" in caplog.text
    assert "no class of these ids: 90 (1)" in caplog.text
    assert "\x1b" not in caplog.text + captured.out + captured.err


@pytest.mark.usefixtures("no_charts")
def test_the_folder_of_a_run_keeps_its_own_evaluations(tmp_path, capsys):
    write_records(tmp_path, [record("a.jpg", [CAT], [1], source_id="1")])
    path, run = write_results(tmp_path, [(1, 1, CAT, 0.9)]), tmp_path / "run"
    run.mkdir()
    (run / "pipeline.config").write_text(pipeline.format_pipeline(GOOD))
    records = ["--records", str(tmp_path / "eval.record")]
    records += ["--label_map", str(tmp_path / "map.pbtxt")]
    assert cli.main(["evaluate", "--detections", path, *records, "--output_dir", str(run)]) == 0
    assert "detections: not as in the run, whose own evaluations stay" in capsys.readouterr().err
    # A perfect evaluation of step 0 would end a training with --patience.
    assert not history.read(str(run), "0")
    (line,) = history.read(str(run / OTHER_SETTINGS / "other_detector"), "0")
    assert line.metrics["DetectionBoxes_Precision/mAP"] == pytest.approx(1.0)


def test_calibration_with_a_configuration(tmp_path, capsys):
    places = [[5 * i, 5 * j, 5 * i + 4, 5 * j + 4] for i in range(8) for j in range(10)]
    made = write_records(tmp_path, [record(f"{k}", places, [1] * 80) for k in range(3)])
    config = pipeline_pb2.TrainEvalPipelineConfig(model=GOOD.model)
    config.eval_input_reader.extend(made.eval_input_reader)
    config_path = tmp_path / "ssd.config"
    config_path.write_text(pipeline.format_pipeline(config))
    random = np.random.default_rng(0)
    found = []
    for image in range(3):
        for place in places:
            score = random.uniform()
            is_correct = random.uniform() < score / 2  # twice as sure as it is right
            box = place if is_correct else np.add(place, 300)
            found.append((image, 1, box, score))
    path = write_results(tmp_path, found)
    run = str(tmp_path / "run")
    arguments = ["evaluate", str(config_path), "--detections", path, "--model_dir", run]
    assert cli.main([*arguments, "--calibrate", "sigmoid_calibration"]) == 0
    text = pathlib.Path(run, "eval_0", "calibration-0.pbtxt").read_text()
    calibrated = pipeline.merge_text(config, text).model.ssd.post_processing.calibration_config
    grid = np.float32([0.3, 0.5, 0.8])
    scores = calibration.calibrate(calibrated, grid, np.ones(3, int))
    np.testing.assert_allclose(scores, grid / 2, atol=0.1)
    assert pathlib.Path(run, "eval_0", "calibration-0.png").stat().st_size > 1000
    shown = capsys.readouterr().out
    assert "sigmoid_calibration of 240 detections of '0':" in shown
    assert "expected calibration error 0.2" in shown
    assert f'--config_override "$(cat {run}/eval_0/calibration-0.pbtxt)"' in shown
    # What is written is what the option takes; a second calibration is refused by name.
    again = [*arguments, "--calibrate", "--config_override", text]
    assert cli.main(again) == 2
    assert "calibration_config: is set, so the scores are calibrated" in capsys.readouterr().err


def test_calibration_of_a_checkpoint(tmp_path, capsys, monkeypatch):
    evaluation = history.Evaluation("val", 20, {}, matches=synthetic(overconfident))
    monkeypatch.setattr(evaluator, "evaluate_newest", lambda *_, **__: [evaluation])
    monkeypatch.setattr(console, "check_config", lambda *_, **__: {})
    monkeypatch.delattr(evaluator, "require")  # the program alone checks
    (tmp_path / "pipeline.config").write_text(pipeline.format_pipeline(GOOD))
    assert cli.main(["evaluate", "--checkpoint_dir", str(tmp_path), "--calibrate"]) == 0
    shown = capsys.readouterr().out
    assert "function_approximation of 4,000 detections of 'val':" in shown
    assert "on images it is not fitted to" in shown
    assert (tmp_path / "eval_val" / "calibration-20.pbtxt").exists()
    # With other settings than the run's it replaces nothing there.
    changed = ["--set", "eval_config.num_examples=3"]
    assert cli.main(["evaluate", str(tmp_path), "--calibrate", *changed]) == 0
    assert "eval_config: not as in the run" in capsys.readouterr().err
    assert (tmp_path / OTHER_SETTINGS / "eval_val" / "calibration-20.pbtxt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the folder of a run, or --detections FILE, one of them"),
        (["--checkpoint_dir=r", "--detections=f"], "one of them"),
        (["--checkpoint_dir=r", "--model_dir=r", "--output_dir=o"], "remove --model_dir"),
        (["--checkpoint_dir=r", "--records=r"], "--records and --label_map require --detections"),
        (["--detections=f"], "needs a configuration, or --records and --label_map, not both"),
        (["--detections=f", "--records=r"], "belong together"),
        (
            ["--detections=f", "--records=r", "--label_map=m", "--calibrate"],
            "give the configuration",
        ),
        (["--checkpoint_dir=r", "--continuous", "--calibrate"], "remove --continuous"),
        (["--checkpoint_dir=r", "--continuous", "--timeout_secs=-5"], "give a number above 0"),
    ],
)
def test_options_that_contradict_each_other(arguments, message, capsys):
    assert cli.main(["evaluate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_checkpoint_of_a_run_by_its_prefix(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluator, "evaluate_newest", lambda *_, **__: [])
    monkeypatch.setattr(console, "check_config", lambda *_, **__: {})
    (tmp_path / "pipeline.config").write_text(pipeline.format_pipeline(GOOD))
    (tmp_path / "model.ckpt-20.index").touch()
    # By the configuration beside it.
    assert cli.main(["evaluate", "--model_dir", str(tmp_path / "model.ckpt-20")]) == 0
    assert "not as in the run" not in capsys.readouterr().err
    # In another run its thresholds are not where exports of that run look for their own.
    run = shutil.copytree(tmp_path, tmp_path / "run")
    assert cli.main(["evaluate", "--model_dir", str(tmp_path), "--output_dir", str(run)]) == 0
    assert f"results: {run / OTHER_SETTINGS}/other_detector" in capsys.readouterr().err

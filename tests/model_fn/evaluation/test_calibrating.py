"""From an evaluation to the text of a calibration, its picture and its use."""

from __future__ import annotations

import io
import pathlib

import numpy as np
import pytest
from PIL import Image

from estimator_det.config import pipeline
from estimator_det.config.text import ConfigError
from estimator_det.protos import pipeline_pb2
from model_fn.checkpoints.errors import RunError
from model_fn.evaluation import calibrating, calibration
from model_fn.evaluation.matching import Matches
from tests.model_fn.evaluation.test_calibration import (
    KINDS,
    overconfident,
    synthetic,
)


def _pipeline(text: str = "") -> pipeline_pb2.TrainEvalPipelineConfig:
    ssd = "model { ssd { num_classes: 5 post_processing { score_converter: SIGMOID } } }"
    empty = pipeline_pb2.TrainEvalPipelineConfig()
    return pipeline.merge_text(pipeline.merge_text(empty, ssd), text)


def test_text_picture_and_numbers(tmp_path: pathlib.Path) -> None:
    config = _pipeline()
    made = calibrating.make(config, "function_approximation", synthetic(overconfident))
    assert made.before.expected_error > 0.15 > 0.03 > made.after.expected_error
    # Slightly worse than on the detections of the fit, and still far better than before.
    assert made.held_out_error is not None
    assert made.after.expected_error <= made.held_out_error < 0.04
    scores = calibrating.scores_of(config)
    text, picture_path = calibrating.write(made, scores, str(tmp_path / "eval_0"), 20)
    assert pathlib.Path(text).name == "calibration-20.pbtxt"
    assert pathlib.Path(text).read_text() == calibrating.override_text(made.config, scores)
    with Image.open(picture_path) as picture:
        assert picture.width > picture.height > 100


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_through_the_configuration(kind: str) -> None:
    config = _pipeline()
    scores = calibrating.scores_of(config)
    fitted = calibration.fit(kind, synthetic(overconfident), scores)
    changed = pipeline.merge_text(config, calibrating.override_text(fitted, scores))
    assert changed.model.ssd.post_processing.calibration_config == fitted
    # Nothing else changes, and the result cannot be calibrated again.
    with pytest.raises(ConfigError, match="calibration_config is set"):
        calibrating.make(changed, kind, synthetic(overconfident))
    changed.model.ssd.post_processing.ClearField("calibration_config")
    assert changed == config


def test_long_texts_are_one_line_or_refused() -> None:
    config = _pipeline()
    scores = calibrating.scores_of(config)
    matches = synthetic(overconfident, classes=300, images=100)
    fitted = calibration.fit("class_id_sigmoid_calibrations", matches, scores)
    text = calibrating.override_text(fitted, scores)
    assert text.count("\n") == 1
    assert pipeline.merge_text(config, text).model.ssd.post_processing.calibration_config == fitted


def test_texts_that_no_command_line_takes_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "LONGEST_TEXT", 100)
    config = _pipeline()
    made = calibrating.make(config, "function_approximation", synthetic(overconfident))
    with pytest.raises(RunError, match="a command line takes 100; use a calibration of all"):
        calibrating.write(made, calibrating.scores_of(config), str(tmp_path), 0)
    assert not list(tmp_path.iterdir())


def test_few_images_give_no_held_out_error() -> None:
    made = calibrating.make(_pipeline(), "sigmoid_calibration", synthetic(overconfident, images=1))
    assert made.held_out_error is None


def test_models_without_class_scores_are_refused() -> None:
    proposals = pipeline_pb2.TrainEvalPipelineConfig()
    proposals.model.faster_rcnn.number_of_stages = 1
    for config in (proposals, pipeline_pb2.TrainEvalPipelineConfig()):
        with pytest.raises(ConfigError, match="model has no class scores"):
            calibrating.make(config, KINDS[0], Matches([1], ["cat"]))


def test_two_stages_have_their_calibration_in_the_second() -> None:
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.model.faster_rcnn.second_stage_post_processing.score_converter = 2
    made = calibrating.make(config, "function_approximation", synthetic(overconfident))
    text = calibrating.override_text(made.config, calibrating.scores_of(config))
    changed = pipeline.merge_text(config, text).model.faster_rcnn.second_stage_post_processing
    assert changed.calibration_config == made.config


def test_diagram_of_scores_that_leave_bins_empty() -> None:
    found = calibration.reliability(np.float32([0.99]), np.array([True]))
    made = calibrating.Calibrated("sigmoid_calibration", None, found, found, None)
    with Image.open(io.BytesIO(calibrating.reliability_diagram(made))) as picture:
        assert picture.format == "PNG"

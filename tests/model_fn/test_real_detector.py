"""The whole run with a real detector and real records, small."""

from __future__ import annotations

import pathlib

import pytest

from estimator_det.compat import tf1
from estimator_det.config import pipeline
from model_fn.runs import runner
from model_fn.runs.options import EvaluationOptions


@pytest.mark.slow
@pytest.mark.exhaustive
def test_train_evaluate_export(shared: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data = shared / "data"
    config = pipeline.read_pipeline(str(data / "configs" / "ssd_mobilenet_v1_pets.config"))
    record, labels = data / "pets_examples.record", data / "pet_label_map.pbtxt"
    config = pipeline.apply_overrides(
        config,
        [
            "model.ssd.feature_extractor.depth_multiplier=0.25",
            "model.ssd.image_resizer.fixed_shape_resizer.height=128",
            "model.ssd.image_resizer.fixed_shape_resizer.width=128",
            "train_config.batch_size=4",
            "train_config.fine_tune_checkpoint=",
            "eval_config.use_moving_averages=true",
            f"train_input_reader.tf_record_input_reader.input_path=[{record}]",
            f"train_input_reader.label_map_path={labels}",
            f"eval_input_reader[0].tf_record_input_reader.input_path=[{record}]",
            f"eval_input_reader[0].label_map_path={labels}",
        ],
    )
    assert config.train_config.optimizer.use_moving_average
    model_dir = str(tmp_path)
    metrics = runner.train_and_evaluate(
        config,
        model_dir,
        num_train_steps=2,
        evaluation=EvaluationOptions(sample_1_of_n=3),
        progress=False,
    )
    assert metrics["global_step"] == 2
    assert 0 < metrics["Loss/regularization_loss"] < metrics["Loss/total_loss"]
    assert -1 <= metrics["DetectionBoxes_Precision/mAP"] <= 1
    assert (tmp_path / "export" / "Servo").is_dir()
    names = {name for name, _ in tf1.train.list_variables(model_dir)}
    assert "BoxPredictor_0/ClassPredictor/biases/RMSProp_1" in names
    assert "BoxPredictor_0/ClassPredictor/biases/ExponentialMovingAverage" in names

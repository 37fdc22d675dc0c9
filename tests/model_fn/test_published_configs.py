"""Published configurations: graphs of all two-stage models, and a few runs from start to end."""

import pytest

from estimator_det.compat import tf
from estimator_det.config import pipeline
from exporters import export_saved_model
from model_fn.checks import graphs
from model_fn.runs import evaluator, runner
from model_fn.runs.options import EvaluationOptions, TrainOptions

# Light ones that differ in network, predictor, anchors and optimizer.
LIGHT = (
    "embedded_ssd_mobilenet_v1_coco",
    "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync",
    "ssd_mobilenet_v2_pets_keras",
)


@pytest.mark.exhaustive  # tests/model_fn/test_two_stage.py builds all graphs of a small network
@pytest.mark.parametrize("pattern", ["context*", "faster*", "mask*", "rfcn*"])
def test_graphs_of_two_stages(shared, pattern):
    paths = sorted((shared / "data" / "configs").glob(f"{pattern}.config"))
    assert paths
    for path in paths:
        config = pipeline.read_pipeline(path)
        config.train_config.fine_tune_checkpoint = ""
        for reader in (config.train_input_reader, *config.eval_input_reader):
            reader.ClearField("label_map_path")
        problems = graphs.examine(config).problems
        assert not [problem for problem in problems if problem.severity == "error"], path


@pytest.mark.slow
@pytest.mark.exhaustive  # tests/programs/test_runs.py takes one configuration the same way
@pytest.mark.parametrize("name", LIGHT)
def test_train_evaluate_export_detect(shared, tmp_path, name):
    data, model_dir = shared / "data", str(tmp_path / "model")
    record = str(data / "pets_examples.record")
    config = pipeline.override(
        pipeline.read_pipeline(data / "configs" / f"{name}.config"),
        batch_size=2,
        label_map_path=str(data / "pet_label_map.pbtxt"),
        train_input_path=record,
        eval_input_path=record,
    )
    config.train_config.fine_tune_checkpoint = ""
    config.model.ssd.num_classes = 37
    runner.train(config, model_dir, num_train_steps=2, progress=False)
    options = TrainOptions(evaluation=EvaluationOptions(sample_1_of_n=10))
    (evaluation,) = evaluator.evaluate(config, model_dir, options)
    metrics = evaluation.metrics
    assert metrics["Loss/total_loss"] > 0 and metrics["DetectionBoxes_Precision/mAP"] >= 0
    export_saved_model(config, model_dir, str(tmp_path / "exported"))
    model = tf.saved_model.load(str(tmp_path / "exported" / "saved_model"))
    detections = model.signatures["serving_default"](tf.zeros([1, 300, 200, 3], tf.uint8))
    boxes = detections["detection_boxes"].numpy()
    assert boxes.shape[2] == 4 and ((boxes >= 0) & (boxes <= 1)).all()

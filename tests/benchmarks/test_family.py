"""Whole configurations run from parsing to detecting; the command runs all of them."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks.family import __main__ as command
from benchmarks.family import stages
from estimator_det.compat import estimator, tf, tf1
from estimator_det.config import pipeline
from estimator_det.programs import demo
from estimator_det.protos import pipeline_pb2
from model_fn.model_fn import create_model_fn

# Light ones that differ in network, predictor, anchors and optimizer.
LIGHT = (
    "embedded_ssd_mobilenet_v1_coco",
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_pets_sync",
    "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync",
    "ssd_mobilenet_v2_pets_keras",
)


@pytest.mark.slow
@pytest.mark.exhaustive  # tests/programs/test_runs.py takes one configuration the same way
@pytest.mark.parametrize("name", LIGHT)
def test_light_configuration(
    shared: pathlib.Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shared / "data"
    arguments = ["--configs", str(data / "configs"), "--only", name]
    arguments += ["--record", str(data / "pets_examples.record")]
    arguments += ["--label_map", str(data / "pet_label_map.pbtxt")]
    assert command.main(arguments) == 0, capsys.readouterr().out
    header, row, last = capsys.readouterr().out.splitlines()
    assert header.split(" | ") == ["configuration", *command.NAMES, "peak GB"]
    cells = row.split(" | ")
    assert cells[0] == name and len(cells) == len(command.NAMES) + 2
    assert all(float(cell) >= 0 for cell in cells[1:])
    assert last == "1 of 1 configurations came through"


TWO_STAGES = (
    "context_rcnn_resnet101_snapshot_serengeti",
    "faster_rcnn_inception_resnet_v2_atrous_coco",
    "faster_rcnn_inception_resnet_v2_atrous_cosine_lr_coco",
    "faster_rcnn_inception_resnet_v2_atrous_oid",
    "faster_rcnn_inception_resnet_v2_atrous_pets",
    "faster_rcnn_inception_v2_coco",
    "faster_rcnn_nas_coco",
    "faster_rcnn_resnet101_atrous_coco",
    "faster_rcnn_resnet101_coco",
    "faster_rcnn_resnet101_fgvc",
    "faster_rcnn_resnet101_pets",
    "faster_rcnn_resnet152_pets",
    "faster_rcnn_resnet50_coco",
    "faster_rcnn_resnet50_fgvc",
    "faster_rcnn_resnet50_pets",
    "mask_rcnn_inception_resnet_v2_atrous_coco",
    "mask_rcnn_inception_v2_coco",
    "mask_rcnn_resnet101_atrous_coco",
    "mask_rcnn_resnet50_atrous_coco",
    "rfcn_resnet101_coco",
)


@pytest.mark.exhaustive  # tests/model_fn/test_two_stage.py builds all graphs of a small network
@pytest.mark.parametrize("name", TWO_STAGES)
def test_graphs_of_two_stages(shared: pathlib.Path, name: str, tmp_path: pathlib.Path) -> None:
    """Of training, evaluation and prediction, with the configuration's own number of classes."""
    config = pipeline.read_pipeline(shared / "data" / "configs" / f"{name}.config")
    config.train_config.fine_tune_checkpoint = ""
    for reader in (config.train_input_reader, *config.eval_input_reader):
        reader.ClearField("label_map_path")
    stages.build(stages.Run(config, "", tmp_path))


@pytest.mark.slow
@pytest.mark.exhaustive  # tests/model_fn/test_two_stage.py counts with a small network
def test_training_graph_does_not_grow_with_the_batch() -> None:
    """Of the smallest shipped configuration of two stages."""
    config = pipeline.read_pipeline(demo.MODELS["mask_rcnn"].config_file)
    counts = []
    for batch in (1, 2):
        config.train_config.batch_size = batch
        with tf.Graph().as_default() as graph:
            tf1.train.get_or_create_global_step()
            features, labels = stages.placeholders(config)
            create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN, {})
            counts.append(len(graph.get_operations()))
    assert counts[0] == counts[1]


def test_every_configuration_of_two_stages_is_among_them(shared: pathlib.Path) -> None:
    paths = (shared / "data" / "configs").glob("*rcnn*.config")
    others = (shared / "data" / "configs").glob("rfcn*.config")
    assert {path.stem for path in (*paths, *others)} == {*TWO_STAGES}


def test_stages_are_those_of_the_table() -> None:
    assert ("parse", *stages.STAGES) == command.NAMES


def test_failure_is_told_in_its_row(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.config").write_text("model { ssd { no_such_field: 1 } }")
    arguments = ["--configs", str(tmp_path), "--record", "none", "--label_map", "none"]
    assert command.main(arguments) == 1
    output = capsys.readouterr().out
    assert "broken | FAILED:" in output and "no_such_field" in output
    assert "0 of 1 configurations came through" in output
    assert command.main([*arguments, "--only", "other*"]) == 1
    assert "matches 'other*'" in capsys.readouterr().err


def test_configured(tmp_path: pathlib.Path) -> None:
    labels = tmp_path / "labels.pbtxt"
    labels.write_text("item { id: 1 name: 'a' } item { id: 3 name: 'b' }")
    config = pipeline.parse_pipeline(
        """model { ssd { num_classes: 90 } } graph_rewriter { quantization {} }
        train_config { batch_size: 64 fine_tune_checkpoint: "x" }
        train_input_reader { tf_record_input_reader {} }
        eval_input_reader { tf_record_input_reader {} }"""
    )
    assert isinstance(config, pipeline_pb2.TrainEvalPipelineConfig)
    found = stages.configured(config, "some.record", str(labels), 2)
    assert found.model.ssd.num_classes == 3
    assert not found.HasField("graph_rewriter")
    assert (found.train_config.batch_size, found.train_config.fine_tune_checkpoint) == (2, "")
    assert found.train_input_reader.tf_record_input_reader.input_path == ["some.record"]

"""CenterNet: targets and peaks by hand numbers, numbers of the Object Detection API, and rules.

Losses and gradients are the part of `python -m benchmarks.conformance`.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from google.protobuf import text_format

from benchmarks.conformance import checks, goldens
from benchmarks.conformance.compare import Check
from estimator_det.boxes import heatmaps
from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline, rules
from estimator_det.detectors import make_detector
from estimator_det.protos import pipeline_pb2
from tests.conftest import MODELS

MODEL = """model { center_net {
  num_classes: 2
  feature_extractor { type: "mobilenet_v2" }
  image_resizer { fixed_shape_resizer { height: 64 width: 64 } }
  object_detection_task { localization_loss { l1_localization_loss {} } }
  object_center_params { classification_loss {
    penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 } } } } }
  train_config { fine_tune_checkpoint: "a" fine_tune_checkpoint_type: "classification" }"""
LOSS, HEAD = "object_detection_task.localization_loss", "object_center_params.center_head_params"


def small_config(*overrides: str) -> pipeline_pb2.TrainEvalPipelineConfig:
    """The configuration above with changes inside the model."""
    config = text_format.Parse(MODEL, pipeline_pb2.TrainEvalPipelineConfig())
    return pipeline.apply_overrides(config, [f"model.center_net.{line}" for line in overrides])


NAME = "own_centernet_mobilenet_v2_fpn_512x512_kpts"
SLOW_NAMES = (
    "own_centernet_mobilenet_v2_512x512",
    "centernet_resnet50_v1_fpn_512x512_kpts_coco17_tpu-8",
    "centernet_resnet50_v2_512x512_kpts_coco17_tpu-8",
    "own_centernet_resnet101_v1_fpn_512x512",
    "centernet_hourglass104_512x512_coco17_tpu-8",
)


def test_a_box_has_the_radius_of_the_published_code():
    # Roots: 28.8, 55.7 and 3.68; 3 deviations are the least one rounded down, and a half.
    deviation = heatmaps.gaussian_deviations(tf.constant(10.0), tf.constant(20.0), 0.7)
    assert deviation.numpy() == pytest.approx(7 / 6)


def test_heatmaps_are_the_maximum_of_gaussians_of_a_channel():
    points = tf.constant([[[1.9, 1.0], [1.0, 2.0], [0.0, 0.0]]])
    maps = heatmaps.draw_gaussians(
        points, tf.ones([1, 3]), tf.constant([[1.0, 1.0, 0.0]]), tf.constant([[0, 0, 1]]), (3, 4, 2)
    ).numpy()[0]
    near, diagonal = np.exp(-0.5), np.exp(-1.0)
    assert maps[1, 1, 0] == maps[1, 2, 0] == 1.0
    assert maps[0, :, 0] == pytest.approx([diagonal, near, near, diagonal])
    assert not maps[..., 1].any()


def test_peaks_come_by_falling_value_and_then_by_place():
    maps = np.zeros([1, 4, 4, 2], np.float32)
    maps[0, 0, 0], maps[0, 0, 1], maps[0, 3, 3] = [0.5, 0.9], [0.4, 0.8], [0.9, 0.0]
    peaks = heatmaps.top_pixels(heatmaps.keep_peaks(tf.constant(maps), 3), 4)
    assert peaks.values.numpy()[0] == pytest.approx([0.9, 0.9, 0.5, 0.0])
    assert peaks.points.numpy()[0, :3].tolist() == [[0, 0], [3, 3], [0, 0]]
    assert peaks.channels.numpy()[0, :3].tolist() == [1, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [NAME, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in SLOW_NAMES)]
)
def test_a_network_has_the_numbers_of_the_object_detection_api(name):
    cells = {column: Check() for column in checks.COLUMNS}
    checks.check_evaluation(goldens.read(MODELS / "tf2", name), cells)
    compared = ("predictions", "detections")
    assert {column: str(cells[column]) for column in compared if not cells[column].ok} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [NAME, *SLOW_NAMES])
def test_variables_of_training(name):
    cells = {column: Check() for column in checks.COLUMNS}
    checks.check_graph(goldens.read(MODELS / "tf2", name), cells)
    assert cells["variables"].ok, str(cells["variables"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mobilenet_v2", "own_centernet_mobilenet_v2_512x512"),
        # The network of a record whose field says that it is separable.
        pytest.param("mobilenet_v2_fpn_sep_conv", NAME, marks=pytest.mark.exhaustive),
    ],
)
def test_a_classifier_restores_the_layers_of_its_object(kind, name):
    config = small_config(f"feature_extractor.type={kind}")
    with tf.Graph().as_default():
        detector = make_detector(config.model, is_training=False)
        detector.predict(tf.zeros([1, 64, 64, 3]))
        variables = [each.op.name for each in tf1.global_variables()]
        paths = detector.object_paths(variables, "classification")
    record = json.loads((MODELS / f"tf2/restore/{name}.json").read_text())
    assert len(paths) == record["classification"]["num"]
    assert all(path.startswith("feature_extractor/layer_with_weights-") for path in paths.values())


@pytest.mark.parametrize(
    ("override", "field", "message"),
    [
        ("densepose_estimation_task={}", "densepose_estimation_task", "is not supported yet"),
        ("mask_estimation_task={}", "mask_estimation_task", "center_net finds no masks"),
        ("post_processing={}", "post_processing.batch_non_max_suppression", "is missing"),
        ("post_processing.logit_scale=2.0", "post_processing.logit_scale", "has no effect"),
        ("feature_extractor.channel_means=[1.0]", "feature_extractor.channel_means", "has 1 value"),
        (f"{LOSS}.weighted_giou={{}}", LOSS, "must compare sizes"),
        (f"{HEAD}.num_filters=[8]", f"{HEAD}.kernel_sizes", "has 0 entries, and num_filters 1"),
        ("object_detection_task=null", "object_detection_task", "is missing"),
    ],
)
def test_what_cannot_be_built_is_refused(override, field, message):
    problems = {each.field: each.message for each in rules.check(small_config(override))}
    assert message in problems[f"model.center_net.{field}"]


@pytest.mark.parametrize(
    ("kind", "num_steps", "checkpoint", "is_warned"),
    [
        ("mobilenet_v2", 2_000, "", True),
        ("mobilenet_v2", 2_000, "a", False),
        ("mobilenet_v2", 20_000, "", False),
        ("resnet_v1_50_fpn", 2_000, "", False),
    ],
)
def test_a_training_that_is_too_short_for_batch_norm(kind, num_steps, checkpoint, is_warned):
    config = small_config(f"feature_extractor.type={kind}")
    config.train_config.num_steps = num_steps
    config.train_config.fine_tune_checkpoint = checkpoint
    messages = [problem.message for problem in rules.check(config)]
    assert any("averages of batch norm" in message for message in messages) == is_warned


def test_an_hourglass_has_no_classifier():
    config = small_config("feature_extractor.type=hourglass_104")
    problems = {problem.field: problem.message for problem in rules.check(config)}
    assert "no classifier" in problems["train_config.fine_tune_checkpoint_type"]

"""What parts of a run derive from the configuration of the model."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from estimator_det.config import pipeline
from estimator_det.config.derived_models import final_scores, with_static_shapes
from estimator_det.config.facts import score_threshold_field
from estimator_det.protos import model_pb2


def _model(text: str) -> model_pb2.DetectionModel:
    return text_format.Parse(text, model_pb2.DetectionModel())


@pytest.mark.parametrize(
    ("text", "path", "column"),
    [
        ("ssd {}", "model.ssd.post_processing", 3),  # add_background_class is true by default
        ("ssd { add_background_class: false }", "model.ssd.post_processing", 2),
        (
            "ssd { add_background_class: false explicit_background_class: true }",
            "model.ssd.post_processing",
            3,
        ),
        ("faster_rcnn {}", "model.faster_rcnn.second_stage_post_processing", 3),
        (
            "faster_rcnn { number_of_stages: 3 }",
            "model.faster_rcnn.second_stage_post_processing",
            3,
        ),
        ("center_net {}", "model.center_net.post_processing", 2),
    ],
)
def test_place_and_columns(text, path, column):
    found = final_scores(_model(text))
    assert (found.path, found.column_of(3)) == (path, column)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "faster_rcnn { number_of_stages: 1 }",
        "center_net { keypoint_estimation_task { rescore_instances: true } }",
    ],
)
def test_models_without_class_scores(text):
    assert final_scores(_model(text)) is None


def test_fingerprint():
    texts = ["", "score_converter: SIGMOID", "batch_non_max_suppression { iou_threshold: 0.5 }"]
    models = [_model(f"ssd {{ num_classes: 3 post_processing {{ {text} }} }}") for text in texts]
    prints = [found.fingerprint() for found in map(final_scores, models) if found]
    assert len(set(prints)) == 3
    models[1].ssd.num_classes = 5
    other = final_scores(models[1])
    assert other is not None and other.fingerprint() == prints[1]


SUPPRESSION = "batch_non_max_suppression { static_kernel: true }"
CENTER_NET = f"center_net {{ post_processing {{ {SUPPRESSION} }} }}"
TWO_STAGES = "use_static_shapes: true use_static_shapes_for_eval: true second_stage_post_processing"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("ssd {}", f"ssd {{ post_processing {{ {SUPPRESSION} }} }}"),
        ("faster_rcnn {}", f"faster_rcnn {{ {TWO_STAGES} {{ {SUPPRESSION} }} }}"),
        ("", ""),
        ("center_net { post_processing { calibration_config {} } }",) * 2,
    ],
)
def test_every_switch_is_on_and_nothing_else_changes(given, wanted):
    model = text_format.Parse(given, model_pb2.DetectionModel())
    before = model.SerializeToString()
    assert with_static_shapes(model) == text_format.Parse(wanted, model_pb2.DetectionModel())
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("text", "message", "field"),
    [
        ("ssd {}", "post_processing", "score_threshold"),
        ("faster_rcnn {}", "second_stage_post_processing", "score_threshold"),
        ("faster_rcnn { number_of_stages: 3 }", "second_stage_post_processing", "score_threshold"),
        ("faster_rcnn { number_of_stages: 1 }", "", "first_stage_nms_score_threshold"),
        (CENTER_NET, "post_processing", "score_threshold"),
    ],
)
def test_field_of_the_score_threshold(text, message, field):
    config = pipeline.parse_pipeline(f"model {{ {text} }}")
    path = score_threshold_field(config.model)
    changed = pipeline.apply_overrides(config, [f"{path}=0.25"])
    model = getattr(changed.model, changed.model.WhichOneof("model"))
    holder = getattr(model, message).batch_non_max_suppression if message else model
    assert getattr(holder, field) == 0.25


def test_no_field_drops_the_peaks_of_a_center_net():
    assert not score_threshold_field(pipeline.parse_pipeline("model { center_net {} }").model)

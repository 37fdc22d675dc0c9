"""Which part of a configuration makes the scores, and which columns are classes."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from estimator_det.config.derived_models import final_scores
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
    ],
)
def test_place_and_columns(text: str, path: str, column: int) -> None:
    found = final_scores(_model(text))
    assert found is not None
    assert (found.path, found.column_of(3)) == (path, column)


@pytest.mark.parametrize("text", ["", "faster_rcnn { number_of_stages: 1 }", "center_net {}"])
def test_models_without_class_scores(text: str) -> None:
    assert final_scores(_model(text)) is None


def test_fingerprint() -> None:
    texts = ["", "score_converter: SIGMOID", "batch_non_max_suppression { iou_threshold: 0.5 }"]
    models = [_model(f"ssd {{ num_classes: 3 post_processing {{ {text} }} }}") for text in texts]
    prints = [found.fingerprint() for found in map(final_scores, models) if found]
    assert len(set(prints)) == 3
    models[1].ssd.num_classes = 5
    other = final_scores(models[1])
    assert other is not None and other.fingerprint() == prints[1]

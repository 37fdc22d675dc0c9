"""Models that attend to context features, and the readers that load them."""

from __future__ import annotations

from typing import List, Optional, Tuple

import pytest
from google.protobuf import text_format

from estimator_det.config import context
from estimator_det.protos import input_reader_pb2, model_pb2

ATTENDS = "context_config { max_num_context_features: 3 context_feature_length: 2 %s }"
AMONG_BOXES = ATTENDS % "use_self_attention: true use_long_term_attention: false"


def model(text: str) -> model_pb2.DetectionModel:
    return text_format.Parse(f"faster_rcnn {{ {text} }}", model_pb2.DetectionModel())


@pytest.mark.parametrize(
    ("text", "shape"), [("", None), (ATTENDS % "", (3, 2)), (AMONG_BOXES, None)]
)
def test_shape(text: str, shape: Optional[Tuple[int, int]]) -> None:
    assert context.context_shape(model(text)) == shape
    assert context.context_shape(model_pb2.DetectionModel()) is None


@pytest.mark.parametrize(
    ("text", "reader", "fields"),
    [
        (ATTENDS % "", "", ["r.load_context_features"]),
        (ATTENDS % "", "load_context_features: true load_context_image_ids: true", []),
        ("", "load_context_features: true", ["r.load_context_features"]),
        (AMONG_BOXES, "load_context_image_ids: true", ["r.load_context_image_ids"]),
        (AMONG_BOXES, "", []),
    ],
)
def test_readers(text: str, reader: str, fields: List[str]) -> None:
    given = text_format.Parse(reader, input_reader_pb2.InputReader())
    found = list(context.check_context_reader(given, model(text), "r"))
    assert [problem.field for problem in found] == fields
    assert {problem.severity for problem in found} <= {"error"}


@pytest.mark.parametrize(
    ("text", "severity", "field"),
    [
        (ATTENDS % "attention_position: ATTENTION_DEFAULT", "error", "attention_position"),
        (ATTENDS % "use_long_term_attention: false", "error", "use_long_term_attention"),
        (AMONG_BOXES[:-1] + "self_attention_in_sequence: true }", "warning", "self_attention_in"),
        (ATTENDS % "" + "number_of_stages: 1", "error", ""),
        (ATTENDS % "" + "second_stage_box_predictor { rfcn_box_predictor {} }", "error", ""),
    ],
)
def test_problems(text: str, severity: str, field: str) -> None:
    (problem,) = context.check_context(model(text).faster_rcnn, "m")
    assert problem.severity == severity
    assert problem.field.startswith(f"m.context_config{'.' if field else ''}{field}")


def test_models_without_it_have_no_problem() -> None:
    assert not list(context.check_context(model("").faster_rcnn, "m"))
    assert not list(context.check_context(model(ATTENDS % "").faster_rcnn, "m"))

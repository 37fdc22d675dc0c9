from __future__ import annotations

import pytest

from estimator_det.config import pipeline
from estimator_det.config.check_model import score_threshold_field
from estimator_det.protos import pipeline_pb2


@pytest.mark.parametrize(
    ("text", "message", "field"),
    [
        ("ssd {}", "post_processing", "score_threshold"),
        ("faster_rcnn {}", "second_stage_post_processing", "score_threshold"),
        ("faster_rcnn { number_of_stages: 3 }", "second_stage_post_processing", "score_threshold"),
        ("faster_rcnn { number_of_stages: 1 }", "", "first_stage_nms_score_threshold"),
    ],
)
def test_field_of_the_score_threshold(text: str, message: str, field: str) -> None:
    config = pipeline.parse_pipeline(f"model {{ {text} }}")
    assert isinstance(config, pipeline_pb2.TrainEvalPipelineConfig)
    path = score_threshold_field(config.model)
    changed = pipeline.apply_overrides(config, [f"{path}=0.25"])
    model = getattr(changed.model, changed.model.WhichOneof("model"))
    holder = getattr(model, message).batch_non_max_suppression if message else model
    assert getattr(holder, field) == 0.25
